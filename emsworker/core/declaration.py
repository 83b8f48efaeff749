"""A group as a handler declares it, beside the group that is there."""

from __future__ import annotations

import shlex

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.model import Group, Order, Topic
from emsworker.core.selection.filters import Filter


def check_declared(topic: Topic, group: Group, declared: Filter | None, order: Order) -> None:
    """Refuse a group whose filter or order differs from what its handler declares.

    Raises:
        ConfigError: naming both.
    """
    if declared is not None and declared != group.filter:
        raise _other_filter(topic, group, declared)
    if order not in (Order.NONE, group.order):
        fix = (
            f"group {group.name!r} of topic {topic.name!r} has {str(group.order)!r}, and a group's order is for "
            "good; ask for the same, or name another group"
        )
        raise ConfigError([Problem("order", repr(str(order)), fix)])


def _other_filter(topic: Topic, group: Group, declared: Filter) -> ConfigError:
    fix = (
        f"group {group.name!r} of topic {topic.name!r} has {str(group.filter)!r}; declare the same in every worker, or "
        f"change it with `{change_command(topic.name, group.name, declared)}`"
    )
    return ConfigError([Problem("filter", repr(str(declared)), fix)])


def change_command(topic: str, name: str, wanted: Filter) -> str:
    """The command line that gives a group a filter."""
    options = [f"--tag={tag}" for tag in wanted.tags] + [f"--header={k}={v}" for k, v in wanted.headers.items()]
    return shlex.join(["ems", "groups", "change", topic, name, *(options or ["--no-filter"])])
