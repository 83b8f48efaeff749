"""The nightly summary: who wants to see it does not want to wait for midnight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from emsworker import Ems
from emsworker.tasks.periodic import declare_schedules
from sample_app import tables
from sample_app.settings import NIGHTLY_NAME, REPORTS
from sample_app.tables import Connection
from sample_app.tasks import summarize

_AHEAD_S = 2
_PATIENCE_S = 30.0
_POLL_S = 0.05


class NightFailed(Exception):
    """The summary did not come."""


def bring_forward(app: Ems) -> datetime:
    """Give the schedule another time, one or two seconds from now, as a deployment of a changed app does.

    Returns:
        the slot, in UTC.
    """
    slot = app.server_time(_AHEAD_S).replace(microsecond=0)
    app.periodic(f"{slot.second} {slot.minute} {slot.hour} * * *", name=NIGHTLY_NAME)(summarize)
    declare_schedules(app.stream_of(REPORTS), app.settings, app.registry.schedules.values())
    return slot


def wait_for_summary(connections: Sequence[Connection], slot: datetime) -> None:
    """Return when a worker has written the summary of a slot.

    Raises:
        NightFailed: it takes too long.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not tables.read_summary(connections, slot):
        if time.monotonic() > deadline:
            raise NightFailed(f"no summary of {slot:%H:%M:%S} UTC came within {_PATIENCE_S:g} s")
        time.sleep(_POLL_S)
