"""Stores how the handlers of a group are charged, for recovery, which does not load the app."""

from __future__ import annotations

from emsworker.broker.mysql import MysqlBroker
from emsworker.core.ladder import Ladder
from emsworker.core.model import Group, HandlerRow
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.route import Route


def declare_handlers(broker: MysqlBroker, group: Group, route: Route) -> None:
    """Write the handlers of a group that have changed into the stream; idempotent."""
    if route.subscription is not None:
        rows = [_row("", route.subscription.options)]
    else:
        rows = [_row(name, task.options) for name, task in route.tasks.items()]
    broker.declare_handlers(group, rows)


def _row(name: str, options: HandlerOptions) -> HandlerRow:
    ladder = None if options.ladder is None else str(Ladder.parse(options.ladder))
    return HandlerRow(name, options.on_error, ladder, options.max_attempts, ",".join(options.tags))


def options_of(row: HandlerRow | None) -> HandlerOptions:
    """Return the options that decide about a failed run, as in the worker; those of the group without a row."""
    if row is None:
        return HandlerOptions()
    return HandlerOptions(on_error=row.on_error, ladder=row.ladder, max_attempts=row.max_attempts)
