"""Limits that an app declares for its groups, written into the stream when a worker starts."""

from __future__ import annotations

import logging

from emsworker.broker.mysql import MysqlBroker
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.limits import Limit
from emsworker.core.model import Group
from emsworker.tasks.route import Route

log = logging.getLogger(__name__)


def limit_of(route: Route) -> Limit:
    """Return the limit that the handlers of a group declare.

    Raises:
        ConfigError: they do not agree.
    """
    declared = {handler.name: handler.options.limit for handler in route.handlers}
    if len(set(declared.values())) > 1:
        fix = (
            f"a limit is that of a group, and {', '.join(sorted(declared))} share {route.topic}/{route.group}: declare "
            "the same for all of them, or give the task a topic of its own"
        )
        name, limit = next((name, limit) for name, limit in declared.items() if limit)
        raise ConfigError([Problem(f"limit of {name}", str(limit), fix)])
    return next(iter(declared.values()), Limit())


def declare_limit(broker: MysqlBroker, group: Group, route: Route) -> None:
    """Set the limit that the handlers of a group declare, unless one has been set already, which then holds.

    Raises:
        ConfigError: the handlers do not agree.
    """
    wanted = limit_of(route)
    if not wanted:
        return
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
