"""The nightly summary and its rehearsal: who wants to see them does not want to wait for midnight."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from emsworker import Ems
from emsworker.tasks.periodic import declare_schedules
from sample_app import stream, tables
from sample_app.settings import NIGHT_SHIFT, NIGHTLY_NAME, REHEARSAL, REPORTS
from sample_app.summary import rehearse, summarize
from sample_app.tables import Connection

_AHEAD_S = 2
_PATIENCE_S = 30.0
_POLL_S = 0.05


class NightFailed(Exception):
    """The summary did not come, or a flow did not end."""


def bring_forward(app: Ems) -> datetime:
    """Give the schedule another time, one or two seconds from now, as a deployment of a changed app does.

    Returns:
        the slot, in UTC.
    """
    slot = app.server_time(_AHEAD_S).replace(microsecond=0)
    app.periodic(f"{slot.second} {slot.minute} {slot.hour} * * *", name=NIGHTLY_NAME)(summarize)
    declare_schedules(app.streams.kept_by(REPORTS), app.settings, app.registry.schedules.values())
    return slot


def wait_for_summary(connections: Sequence[Connection], slot: datetime) -> None:
    """Return when a worker has written the summary of a slot.

    Raises:
        NightFailed: it takes too long.
    """
    _wait(lambda: bool(tables.read_summary(connections, slot)), f"no summary of {slot:%H:%M:%S} UTC came")


def rehearse_next(app: Ems, slot: datetime) -> datetime:
    """Start the rehearsal of the night after a slot, and return the slot of that one."""
    following = slot + timedelta(days=1)
    flow = app.flow(name=rehearse.name, topic=REPORTS, group=NIGHT_SHIFT)(rehearse.function)
    flow.start(following.isoformat(), id=REHEARSAL)
    return following


def wait_for_flows(connections: Sequence[Connection]) -> None:
    """Return when all flows that were started have ended.

    Raises:
        NightFailed: it takes too long.
    """
    _wait(lambda: not stream.count_open_flows(connections), "a flow has not ended")


def _wait(is_over: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_over():
        if time.monotonic() > deadline:
            raise NightFailed(f"{otherwise} within {_PATIENCE_S:g} s")
        time.sleep(_POLL_S)
