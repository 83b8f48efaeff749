"""Declaration of the settings of topics and of groups, from which everything that knows a setting is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emsworker.core.options import Check, Option, option_field, options_of


@dataclass(frozen=True)
class Setting(Option):
    """Setting of a topic or a group: its option, its column, and its place in commands and lists.

    Its command-line option, its check, its column in every statement, its line in lists and its row in the reference
    are made from this declaration.

    Args:
        column: the name of its column, by default its own.
        listed: ``ems topics list`` or ``ems groups list`` shows it; its record always does.
        created, changed: it can be given when the topic or group is created, and later on.
        switch: its option on the command line, if that is not made from its name; empty for none.
        to_column, from_column: convert a value to the one in its column, and back.
    """

    column: str | None = None
    listed: bool = False
    created: bool = True
    changed: bool = True
    switch: str | None = None
    to_column: Callable[[Any], Any] = lambda value: value
    from_column: Callable[[Any], Any] = lambda value: value


def setting(default: Any, check: Check, *, help: str, **more: Any) -> Any:
    """Define a field of a topic's or a group's class as a setting; ``more`` as in :class:`Setting`."""
    if check.form == "flag":
        more = {"to_column": int, "from_column": bool, **more}
    if check.form == "choice":
        more = {"from_column": check.read, **more}
    return option_field(Setting(default, check, help, **more))


def settings_of(owner: Any) -> dict[str, Setting]:
    """Return the settings of a class, ``Topic`` or ``Group``, by name, in the order of their declaration."""
    return {name: one for name, one in options_of(owner).items() if isinstance(one, Setting)}
