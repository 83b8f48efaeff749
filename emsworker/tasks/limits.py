"""Limits that an app declares for its groups and tasks, written into the stream when a worker starts."""

from __future__ import annotations

import logging

from emsworker.broker.mysql import MysqlBroker
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.limits import Limit
from emsworker.core.model import Group, Order
from emsworker.tasks.route import Route

log = logging.getLogger(__name__)


def limit_of(route: Route) -> Limit:
    """Return the limit of a group: that of its only handler. One of several tasks has a limit of its own."""
    handlers = route.handlers
    return handlers[0].options.limit if len(handlers) == 1 else Limit()


def task_limits_of(route: Route, order: Order) -> dict[str, Limit]:
    """Return the limits of single tasks of a group that has several.

    Raises:
        ConfigError: the group runs in order, where what waits would hold up what follows.
    """
    tasks = route.tasks if len(route.handlers) > 1 else {}
    found = {name: task.options.limit for name, task in tasks.items() if task.options.limit}
    if found and order is not Order.NONE:
        name, limit = next(iter(found.items()))
        fix = f"{route.topic}/{route.group} runs in order ({order}); give the task a topic, or a group, of its own"
        raise ConfigError([Problem(f"limit of {name}", str(limit), fix)])
    return found


def declare_limits(broker: MysqlBroker, group: Group, route: Route) -> dict[str, Limit]:
    """Set the limit that the only handler of a group declares, unless one has been set already, which then holds.

    Returns:
        the limits of single tasks, which hold as they are declared.

    Raises:
        ConfigError: a group in order has limits of single tasks.
    """
    own = task_limits_of(route, group.order)
    if route.tasks:
        broker.declare_task_limits(group, own, route.tasks.keys() - own.keys())
    wanted = limit_of(route)
    if not wanted:
        return own
    holds = broker.declare_limit(group, wanted)
    if holds != wanted:
        log.warning(
            "%s/%s declares %s, but %s was set before and holds; `ems groups limit %s %s` changes it",
            route.topic,
            route.group,
            wanted,
            holds,
            route.topic,
            route.group,
        )
    return own
