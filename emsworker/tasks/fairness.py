"""Fair groups of an app: a group is fair by one header, which its handlers agree on, and has no order."""

from __future__ import annotations

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.model import Order
from emsworker.tasks.handler import Handler
from emsworker.tasks.route import Route
from emsworker.tasks.task import Task


def fair_of(route: Route) -> str:
    """Return the header whose values share a group fairly; empty if it is not fair."""
    return next((handler.options.fair for handler in route.handlers if handler.options.fair), "")


def limits_keys(route: Route) -> bool:
    """Return whether a group limits how many messages of each key run at once."""
    return any(handler.options.max_running_per_key is not None for handler in route.handlers)


def check_fair(route: Route, handler: Handler) -> None:
    """Refuse a handler whose calls have no key, whose group is fair by another header, or runs in order.

    Raises:
        ConfigError: it does.
    """
    wanted, present = handler.options.fair or "", fair_of(route)
    if wanted and present not in ("", wanted):
        place = f"group {route.group!r} of topic {route.topic!r}"
        fix = f"{place} is fair by {present!r} already; ask for the same, or name another group"
        raise ConfigError([Problem(f"fair of {handler.name}", repr(wanted), fix)])
    if isinstance(handler, Task):
        _check_argument(handler)
    check_no_order(route, wanted or present, route.order)


def _check_argument(task: Task) -> None:
    """Refuse what looks like an argument, and is none of the task's: all of its calls would have one key in common."""
    name, names = task.options.fair, task.argument_names
    if name is None or names is None or name in names or not name.isidentifier():
        return
    fix = (
        f"must name an argument of the task, which takes ({', '.join(names)}), or a header that you give to its calls, "
        f"with a hyphen in it, like 'x-{name}'"
    )
    raise ConfigError([Problem(f"fair of task {task.name}", repr(name), fix)])


def check_no_order(route: Route, fair: str, order: Order) -> None:
    """Refuse a fair group that runs in order.

    Raises:
        ConfigError: it does.
    """
    if fair and order is not Order.NONE:
        place = f"group {route.group!r} of topic {route.topic!r}"
        fix = f"{place} runs in order ({order}), where nothing may overtake; leave one of them out"
        raise ConfigError([Problem("fair", repr(fair), fix)])
