"""Events of flows as they are in their topic, and what a report makes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from emsworker.publish.outgoing import Outgoing
from tests.support.streams import Stream

TOPIC = "ems.flow-events"
_START = datetime(2026, 1, 31, 12, tzinfo=UTC)
_FLOWS: dict[str, tuple[str, list[tuple[str, float]]]] = {
    "a": ("checkout", [("ready", 0), ("waiting", 1), ("waiting", 2), ("done", 4)]),
    "b": ("checkout", [("ready", 0), ("done", 10)]),
    "c": ("checkout", [("ready", 0), ("failed", 5), ("ready", 6), ("done", 20)]),
    "d": ("checkout", [("ready", 0), ("running", 5), ("failed", 6)]),
    "e": ("ship", [("ready", 0), ("waiting", 0.5)]),
    "f": ("ship", [("ready", 0), ("cancelled", 3)]),
}
EXPECTED: list[dict[str, Any]] = [
    {
        **{"name": "checkout", "flows": 4, "done": 3, "failed": 1, "cancelled": 0, "unfinished": 0, "waits": 0.5},
        **{"took_p50_ms": 10_000.0, "took_p95_ms": 20_000.0, "took_p99_ms": 20_000.0, "took_max_ms": 20_000.0},
    },
    {
        **{"name": "ship", "flows": 2, "done": 0, "failed": 0, "cancelled": 1, "unfinished": 1, "waits": 0.5},
        **dict.fromkeys(("took_p50_ms", "took_p95_ms", "took_p99_ms", "took_max_ms")),
    },
]


def send_events(stream: Stream) -> None:
    """Send the events of some flows, each flow's in its order."""
    stream.topic(TOPIC, partitions=2)
    started_at = _time(0)
    stream.app().send_many(
        TOPIC,
        [
            Outgoing(
                TOPIC,
                {"flow": flow, "name": name, "version": 1, "state": state, "waits": None, "error": None, "run": 1}
                | {"started_at": started_at, "at": _time(after_s)},
                key=flow,
                tag=state,
            )
            for flow, (name, changes) in _FLOWS.items()
            for state, after_s in changes
        ],
    )


def _time(after_s: float) -> str:
    return (_START + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%S.%f")
