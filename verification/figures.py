"""Figures of how the library reads, counted in any checkout: ``python -m verification.figures [FOLDER ...]``.

Several checkouts, also older ones, are columns of one table. With ``--wheel`` their wheels are built, weighed, and
started. Nothing is imported from what is counted.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from verification import startup

_RIDDLES = ("What", "How", "Whether")
_RELATIVE = ("The same", "See", "Of", "As")
# Folders of what uses the queue and is not the queue; the others, with the commands, are the core.
_NEIGHBOURS = {
    "emsworker.alarms": "alarms",
    "emsworker.arrow": "arrow",
    "emsworker.chaos": "chaos",
    "emsworker.django": "django",
    "emsworker.flows": "flows",
    "emsworker.http": "http",
    "emsworker.integrations.celery": "celery",
    "emsworker.integrations.django": "django",
    "emsworker.integrations.opentelemetry": "opentelemetry",
    "emsworker.integrations": "frameworks",
    "emsworker.local": "local",
    "emsworker.monitoring": "monitoring",
    "emsworker.spark": "spark",
    "emsworker.top": "top",
    "emsworker.web": "web",
    "kombu_ems": "celery",
    "pyspark_ems": "spark",
}
# Where users come into a neighbour by a word of the core, which names its types, for type checkers alone.
_ENTRANCES = {("emsworker.app", "flows"), ("emsworker.tasks.task", "flows")}
_AT_THE_STORE = ("store", "publish", "broker", "admin", "extending")  # the rooms that may import the store freely


class Library:
    """The modules of a checkout's library, parsed.

    Args:
        root: the checkout.
    """

    def __init__(self, root: Path) -> None:
        folders = [root / name for name in ("emsworker", "cli", "kombu_ems", "pyspark_ems")]
        paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
        self.texts = {_module_of(path.relative_to(root)): path.read_text(encoding="utf-8") for path in paths}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    def docstrings(self) -> Iterator[str]:
        """Yield the first line of every docstring."""
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node)
                    if text:
                        yield text.splitlines()[0]

    def imports(self) -> dict[str, set[str]]:
        """Return the modules that each module imports, imports for type checkers and inside functions included."""
        found: dict[str, set[str]] = {name: set() for name in self.trees}
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                found[name] |= self._targets(node, name) - {name}
        return found

    def imports_of_types(self) -> dict[str, set[str]]:
        """Return the modules that each module imports for type checkers alone."""
        found: dict[str, set[str]] = {}
        for name, tree in self.trees.items():
            blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _is_for_types(node)]
            inner = [node for block in blocks for part in block.body for node in ast.walk(part)]
            found[name] = {target for node in inner for target in self._targets(node, name)}
        return found

    def _targets(self, node: ast.AST, importer: str) -> set[str]:
        """Return the modules of an import; a package only if it imports more of it than modules."""
        if isinstance(node, ast.Import):
            return {alias.name for alias in node.names} & self.trees.keys()
        if not isinstance(node, ast.ImportFrom):
            return set()
        package = ".".join(importer.split(".")[: -node.level]) if node.level else ""
        base = ".".join(part for part in (package, node.module or "") if part)
        inner = {f"{base}.{alias.name}" for alias in node.names}
        return (inner if inner <= self.trees.keys() else inner | {base}) & self.trees.keys()


def _is_for_types(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rings(library: Library) -> list[list[str]]:
    """Return the groups of modules that import each other, but for the imports of :data:`_ENTRANCES`."""
    return cycles(
        {
            importer: {target for target in targets if (importer, _neighbour(target)) not in _ENTRANCES}
            for importer, targets in library.imports().items()
        }
    )


def cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in imports[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in imports:
        if name not in index:
            visit(name)
    return found


def _neighbour(module: str) -> str:
    """Return the neighbour that a module belongs to, empty for the core."""
    return next((name for home, name in _NEIGHBOURS.items() if f"{module}.".startswith(f"{home}.")), "")


def _goes_past_the_broker(importer: str, target: str) -> bool:
    room = importer.removeprefix("emsworker.").partition(".")[0]
    return f"{target}.".startswith("emsworker.store.") and room not in _AT_THE_STORE and not _neighbour(importer)


def proportions(library: Library) -> dict[str, int]:
    """Count the core and each of its neighbours, and the imports between them.

    Returns:
        name of the figure -> its number.
    """
    modules = Counter(map(_neighbour, library.trees))
    lines: Counter[str] = Counter()
    for name, text in library.texts.items():
        lines[_neighbour(name)] += len(text.splitlines())
    pairs = [(importer, target) for importer, targets in library.imports().items() for target in targets]
    used: dict[str, set[str]] = defaultdict(set)
    for importer, target in pairs:
        if not _neighbour(target):
            used[_neighbour(importer)].add(target)
    found = {"core: modules": modules[""], "core: lines": lines[""]}
    found["core: imports past the broker"] = sum(_goes_past_the_broker(*pair) for pair in pairs)
    types = {(importer, target) for importer, targets in library.imports_of_types().items() for target in targets}
    neighbours = {(one, other) for one, other in pairs if not _neighbour(one) and _neighbour(other)}
    found["core: imports of a neighbour"] = len(neighbours - types)
    found["core: imports of a neighbour's types"] = len(neighbours & types)
    for name in sorted(set(_NEIGHBOURS.values())):
        found[f"{name}: modules"], found[f"{name}: lines"] = modules[name], lines[name]
        found[f"{name}: modules of the core that it uses"] = len(used[name])
    return found


def figures(root: Path) -> dict[str, int]:
    """Count a checkout.

    Returns:
        name of the figure -> its number.
    """
    library = Library(root)
    lines = [line for text in library.texts.values() for line in text.splitlines()]
    openings = Counter(
        next((word for word in (*_RIDDLES, *_RELATIVE) if line.startswith(f"{word} ")), "")
        for line in library.docstrings()
    )
    classes: dict[str, set[str]] = defaultdict(set)
    functions: Counter[str] = Counter()
    for name, tree in library.trees.items():
        for node in tree.body:
            # Django finds its commands by the name of the class, which is the same in all of them.
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ".management." not in name:
                classes[node.name].add(name)
            functions[name] += isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    importers = Counter(target for targets in library.imports().values() for target in targets)
    found = rings(library)
    return {
        "modules": len(library.trees),
        "lines": len(lines),
        "lines of code": sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines),
        "modules of the store": sum(name.startswith("emsworker.store.") for name in library.trees),
        "modules of the worker": sum(name.startswith("emsworker.worker.") for name in library.trees),
        "modules with one importer": sum(importers[name] == 1 for name in library.trees),
        "modules with one function": sum(functions[name] == 1 for name in library.trees),
        "class names used twice": sum(len(where) > 1 for where in classes.values()),
        "docstrings that open with What, How or Whether": sum(openings[word] for word in _RIDDLES),
        "docstrings that open with The same, See, Of or As": sum(openings[word] for word in _RELATIVE),
        "cycles of modules": len(found),
        "modules in the largest cycle": max(map(len, found), default=0),
        **proportions(library),
    }


_NEVER = ("class names used twice", "docstrings that open with What, How or Whether", "cycles of modules")


def main() -> None:
    """Print the figures of checkouts as a table; fail if one of the last checkout that must be 0 is not."""
    parser = argparse.ArgumentParser(description="Figures of how the library reads.")
    parser.add_argument("folders", nargs="*", type=Path, default=[Path()], help="checkouts; by default this one")
    parser.add_argument("--wheel", action="store_true", help="build wheels, and time what they install")
    given = parser.parse_args()
    roots = [folder.resolve() for folder in given.folders]
    columns = [figures(root) for root in roots]
    if given.wheel:
        with tempfile.TemporaryDirectory() as folder:
            for column, more in zip(columns, startup.measure(roots, Path(folder)), strict=True):
                column.update(more)
    _print_table([str(folder) for folder in given.folders], columns)
    if wrong := [name for name in _NEVER if columns[-1][name]]:
        groups = [" <-> ".join(ring) for ring in rings(Library(roots[-1]))]
        sys.exit(f"these must be 0: {', '.join(wrong + groups)}")


def _print_table(heads: list[str], columns: list[dict[str, int]]) -> None:
    print("| figure |", " | ".join(heads), "|")
    print("| --- |" + " ---: |" * len(heads))
    for name in columns[-1]:
        print(f"| {name} |", " | ".join(f"{column[name]:,}" for column in columns), "|")


if __name__ == "__main__":
    main()
