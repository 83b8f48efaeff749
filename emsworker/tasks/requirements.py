"""The worker tags that a group requires: those of its handlers, which must agree.

The group is the unit, because a worker claims ranges of a partition for a group: if tasks with different requirements
shared one, a worker would claim calls that it must not run. A task that requires tags and names no group has one of its
own, beside the others of its topic, so neither holds up the other.
"""

from __future__ import annotations

from emsworker.core.errors import ConfigError, Problem
from emsworker.tasks.handler import Handler
from emsworker.tasks.route import Route


def requires_of(route: Route) -> tuple[str, ...]:
    """Return the tags that a worker needs to run a group."""
    return next((handler.options.tags for handler in route.handlers), ())


def check_requires(route: Route, handler: Handler) -> None:
    """Refuse a handler whose group requires other tags than it does.

    Raises:
        ConfigError: it does.
    """
    tags, others = handler.options.tags, requires_of(route)
    if route.handlers and tags != others:
        fix = (
            f"group {route.group!r} of topic {route.topic!r} requires {', '.join(others) or 'no tag'}, and a group is "
            "run by workers of one kind: give the task a group of its own, or none"
        )
        raise ConfigError([Problem(f"requires of {handler.name}", ", ".join(tags) or "none", fix)])


def default_group(group: str, tags: tuple[str, ...]) -> str:
    """Return the group of a task that names none: ``workers`` if it requires nothing, else ``workers-gpu``."""
    return "-".join((group, *tags))
