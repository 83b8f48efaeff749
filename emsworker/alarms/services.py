"""The services of the leading beat."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.alarms.dead_man import PingDeadMan
from emsworker.alarms.watch import WatchAlarms
from emsworker.extending.declaration import LedStream, Service


def services(stream: LedStream) -> Sequence[Service]:
    """Return the services."""
    return [WatchAlarms(stream.locks), PingDeadMan(stream.server)]
