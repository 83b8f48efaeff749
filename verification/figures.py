"""Figures of how the library reads, counted in any checkout: ``python -m verification.figures [FOLDER]``.

Run it in two checkouts to compare them. Nothing is imported from what is counted.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

_RIDDLES = ("What", "How", "Whether")
_RELATIVE = ("The same", "See", "Of", "As")


class Library:
    """The modules of a checkout's library, parsed.

    Args:
        root: the checkout.
    """

    def __init__(self, root: Path) -> None:
        folders = [root / name for name in ("emsworker", "cli", "pyspark_ems")]
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


def _module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


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


def _opening(line: str) -> str:
    return next((word for word in (*_RIDDLES, *_RELATIVE) if line.startswith(f"{word} ")), "")


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
    rings = cycles(library.imports())
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
        "cycles of modules": len(rings),
        "modules in the largest cycle": max(map(len, rings), default=0),
    }


_NEVER = ("class names used twice", "docstrings that open with What, How or Whether", "cycles of modules")


def main() -> None:
    """Print the figures of a checkout, one a line; fail if one that must be 0 is not."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = figures(root)
    for name, number in found.items():
        print(f"{number:8,}  {name}")
    if wrong := [name for name in _NEVER if found[name]]:
        rings = [" <-> ".join(ring) for ring in cycles(Library(root).imports())]
        sys.exit(f"these must be 0: {', '.join(wrong + rings)}")


if __name__ == "__main__":
    main()
