"""Build hooks of the site: pages that would grow stale are made from the code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, get_type_hints

from emsworker.core.config import Settings

_CLI = "emsworker.cli.main"


def settings_table() -> str:
    """Every setting with its variable, type, default and meaning."""
    hints = get_type_hints(Settings)
    rows = [
        f"| `{item.name}` | `EMS_{item.name.upper()}` | {_type(hints[item.name])} | `{item.default!r}` "
        f"| {item.metadata['help']} |"
        for item in dataclasses.fields(Settings)
    ]
    return "\n".join(["| setting | variable | type | default | meaning |", "| --- | --- | --- | --- | --- |", *rows])


def _type(hint: Any) -> str:
    name = getattr(hint, "__name__", None) if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    return f"`{name}`".replace("|", "or")


def tables() -> str:
    """The tables as the migrations create them."""
    return "\n\n".join(f"### {name}\n\n```sql\n{statement}\n```" for name, statement in _create_statements())


def _create_statements() -> Iterator[tuple[str, str]]:
    folder = files("emsworker.store") / "migrations"
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name.endswith(".sql"):
            script = item.read_text(encoding="utf-8")
            for found in re.finditer(r"CREATE TABLE IF NOT EXISTS (\w+) \(.*?\n\)[^;]*;", script, re.DOTALL):
                yield found[1], found[0]


def commands() -> str:
    """The directive that has every command described, or a sentence where the commands are not installed."""
    if find_spec(_CLI) is None:
        return "The commands are not part of this installation."
    return f"::: mkdocs-click\n    :module: {_CLI}\n    :command: ems\n    :prog_name: ems\n    :depth: 1\n"


GENERATED: dict[str, Callable[[], str]] = {
    "<!-- generated: settings -->": settings_table,
    "<!-- generated: tables -->": tables,
    "<!-- generated: commands -->": commands,
}


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the generated parts where the page asks for them."""
    for mark, make in GENERATED.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown
