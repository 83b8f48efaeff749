"""Named statements, kept in a ``.sql`` file beside the module that uses them (the idea is Procrastinate's).

A file is a series of ``-- name: verb_noun`` lines, each followed by ``--`` lines that say what the statement is for and
by one statement with ``%(name)s`` parameters. A literal ``%`` is written ``%%``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class Statements:
    """The statements of one file, as attributes.

    Args:
        module: the module beside which the file lies: its ``__name__``.
    """

    def __init__(self, module: str) -> None:
        package, _, name = module.rpartition(".")
        text = (files(package) / f"{name}.sql").read_text(encoding="utf-8")
        parts = _NAME.split(text)
        self._statements = {name: _strip(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}

    def __getattr__(self, name: str) -> str:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(name) from None

    def __contains__(self, name: str) -> bool:
        return name in self._statements


def _strip(body: str) -> str:
    lines = [line for line in body.splitlines() if line.strip() and not line.startswith("--")]
    return "\n".join(lines).rstrip(";")


def split_script(text: str) -> list[str]:
    """Return the statements of a migration, which are separated by a ``;`` at the end of a line."""
    return [part for part in (_strip(part) for part in re.split(r";\s*\n", text)) if part]


def utc(text: str) -> datetime:
    """Parse a time of the server, which is in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
