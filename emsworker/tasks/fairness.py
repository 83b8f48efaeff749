"""Fair groups of an app: a group is fair by one header, which its handlers agree on, and has no order."""

from __future__ import annotations

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.model import Order
from emsworker.tasks.handler import Handler
from emsworker.tasks.route import Route


def fair_of(route: Route) -> str:
    """Return the header whose values share a group fairly; empty if it is not fair."""
    return next((handler.options.fair for handler in route.handlers if handler.options.fair), "")


def check_fair(route: Route, handler: Handler) -> None:
    """Refuse a handler that asks for another header than the group has, or for one in a group that runs in order.

    Raises:
        ConfigError: it does.
    """
    wanted, present = handler.options.fair or "", fair_of(route)
    if wanted and present not in ("", wanted):
        place = f"group {route.group!r} of topic {route.topic!r}"
        fix = f"{place} is fair by {present!r} already; ask for the same, or name another group"
        raise ConfigError([Problem(f"fair of {handler.name}", repr(wanted), fix)])
    check_no_order(route, wanted or present, route.order)


def check_no_order(route: Route, fair: str, order: Order) -> None:
    """Refuse a fair group that runs in order.

    Raises:
        ConfigError: it does.
    """
    if fair and order is not Order.NONE:
        place = f"group {route.group!r} of topic {route.topic!r}"
        fix = f"{place} runs in order ({order}), where nothing may overtake; leave one of them out"
        raise ConfigError([Problem("fair", repr(fair), fix)])
