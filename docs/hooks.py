"""Build hooks of the site: pages that would grow stale are made from the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from emsworker.core.config import Settings
from emsworker.core.extension import extensions
from emsworker.core.model import Group, Topic
from emsworker.core.options import options_of
from emsworker.core.settings import settings_of
from emsworker.store.engine.grants import Grants
from emsworker.store.engine.rights import Columns
from emsworker.store.engine.tables import CORE, create_statements
from emsworker.tasks.middleware import Middleware

_CLI = "emsworker.cli.main"


def settings_table() -> str:
    """Every setting with its variable, type, default and meaning."""
    head = "| setting | variable | type | default | meaning |\n| --- | --- | --- | --- | --- |"
    rows = [
        f"| `{name}` | `EMS_{name.upper()}` | {one.check.form} | `{one.default!r}` | {one.help} |"
        for name, one in options_of(Settings).items()
    ]
    return "\n".join([head, *rows])


def topic_settings_table() -> str:
    """Every setting of a topic."""
    return _settings_of(Topic)


def group_settings_table() -> str:
    """Every setting of a group."""
    return _settings_of(Group)


def _settings_of(owner: type) -> str:
    head = "| setting | type | default | meaning |\n| --- | --- | --- | --- |"
    rows = [
        f"| `{name}` | {', '.join(one.check.words) or one.check.form} | `{one.default}` | {one.help} |"
        for name, one in settings_of(owner).items()
    ]
    return "\n".join([head, *rows])


def tables() -> str:
    """The tables as the migrations create them."""
    return "\n\n".join(f"### {name}\n\n```sql\n{statement}\n```" for name, statement in _create_statements().items())


def _create_statements() -> dict[str, str]:
    packages = (CORE, *(one.package for one in extensions().values()))
    return {table: text for package in packages for table, text in create_statements(package).items()}


def writes_table() -> str:
    """All that each role may insert, change and delete: the tables, with the columns if not all."""
    rows = []
    grants = Grants(extensions().values())
    for role in grants.roles:
        own = grants.privileges(role)
        rows.append(_role_row(f"`{role}`", own))
        for one in grants.allowances:
            if role in grants.roles_allowed(one):
                more = {
                    table: {
                        verb: columns for verb, columns in verbs.items() if own.get(table, {}).get(verb, ()) != columns
                    }
                    for table, verbs in grants.privileges(role, [one]).items()
                }
                rows.append(_role_row(f"`{role}` with `--allow {one}`, besides", more))
    return "\n".join(["| role | inserts into | changes | deletes from |", "| --- | --- | --- | --- |", *rows])


def _role_row(name: str, granted: Mapping[str, Mapping[str, Columns]]) -> str:
    return f"| {' | '.join((name, *(_granted(granted, verb) for verb in ('INSERT', 'UPDATE', 'DELETE'))))} |"


def _granted(granted: Mapping[str, Mapping[str, Columns]], verb: str) -> str:
    found = {table: verbs[verb] for table, verbs in granted.items() if verb in verbs}
    if found.keys() == _create_statements().keys():
        return "every table"
    named = [f"`{table}`" + (f" ({', '.join(columns)})" if columns else "") for table, columns in sorted(found.items())]
    return ", ".join(named) or "nothing"


def commands() -> str:
    """The directive that has every command described, or a sentence where the commands are not installed."""
    if find_spec(_CLI) is None:
        return "The commands are not part of this installation."
    return f"::: mkdocs-click\n    :module: {_CLI}\n    :command: ems\n    :prog_name: ems\n    :depth: 1\n"


def metrics_table() -> str:
    """Every metric with its kind, its labels and its meaning."""
    if find_spec("prometheus_client") is None:
        return "The metrics are not part of this installation."
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics import MetricWrapperBase

    from emsworker.observe.metrics import Metrics

    rows = [
        f"| `{name}{'_total' if kind == 'counter' else ''}` | {kind} | {labels} | {meaning} |"
        for metric in vars(Metrics(registry=CollectorRegistry())).values()
        if isinstance(metric, MetricWrapperBase)
        for name, kind, labels, meaning in [_metric(metric)]
    ]
    return "\n".join(["| metric | type | labels | what is counted |", "| --- | --- | --- | --- |", *rows])


def _metric(metric: Any) -> tuple[str, str, str, str]:
    described = metric.describe()[0]
    return (
        described.name,
        described.type,
        ", ".join(f"`{name}`" for name in metric._labelnames),
        described.documentation,
    )


def events_table() -> str:
    """Every hook of middleware with its arguments."""
    rows = []
    for name, hook in vars(Middleware).items():
        if inspect.isfunction(hook):
            arguments = ", ".join(f"`{argument}`" for argument in list(inspect.signature(hook).parameters)[1:])
            rows.append(f"| `{name}` | {arguments} | {' '.join((hook.__doc__ or '').split())} |")
    return "\n".join(["| hook | arguments | when |", "| --- | --- | --- |", *rows])


_LEVELS = ("error", "warning", "info")


def log_table() -> str:
    """Every line that the library logs, with its level and its logger, from the source."""
    rows = {row for path, module in library_modules() for row in _log_lines(path, module)}
    found = sorted(rows, key=lambda row: (_LEVELS.index(row[0]), *row[1:]))
    table = [f"| {level} | `{logger}` | `{text}` |" for level, logger, text in found]
    return "\n".join(["| level | logger | line |", "| --- | --- | --- |", *table])


def library_modules() -> list[tuple[Path, str]]:
    """Return the files of the library and of its commands, which a checkout keeps elsewhere, with their modules."""
    found = {}
    for package in ("emsworker", "emsworker.cli"):
        for root in map(Path, import_module(package).__path__):
            for path in root.rglob("*.py"):
                found[path] = ".".join([package, *path.relative_to(root).with_suffix("").parts])
    return sorted(found.items())


def _log_lines(path: Path, logger: str) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=how), args=args):
                text = next((one.value for one in args if isinstance(one, ast.Constant)), None)
                level = {"exception": "error", "log": "warning"}.get(how, how)
                if isinstance(text, str) and level in _LEVELS:
                    yield level, logger, re.sub(r"%[.\d]*[sdrf]", "{}", text).replace("|", "or")
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="_trouble" | "trouble"), attr="note"), args=args):
                yield "warning", logger, f"{_template(args[0])}: {{}}"


def _template(text: ast.expr) -> str:
    """A text of the source, with {} for what is filled in."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


GENERATED: dict[str, Callable[[], str]] = {
    "<!-- generated: settings -->": settings_table,
    "<!-- generated: topic settings -->": topic_settings_table,
    "<!-- generated: group settings -->": group_settings_table,
    "<!-- generated: tables -->": tables,
    "<!-- generated: rights -->": writes_table,
    "<!-- generated: commands -->": commands,
    "<!-- generated: metrics -->": metrics_table,
    "<!-- generated: events -->": events_table,
    "<!-- generated: log lines -->": log_table,
}


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the generated parts where the page asks for them."""
    for mark, make in GENERATED.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


_ROLE = re.compile(r":(?:class|meth|func|attr|exc|mod):(?=<code>)")


def on_page_content(html: str, **_: object) -> str:
    """Show the roles of docstrings as code: Markdown does not know them, and editors do."""
    return _ROLE.sub("", html)
