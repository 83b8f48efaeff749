"""Publishing through ``Ems.send`` and ``Ems.send_many``, every message confirmed."""

from __future__ import annotations

from collections.abc import Callable

from bench.app import build
from bench.load import BODY, rate
from bench.stage import Stage

_BATCH = 500


def _check(stage: Stage, count: int) -> None:
    """Everything that was confirmed is there, once, and the offsets have no holes."""
    stage.check("messages", count, "SELECT COUNT(*) FROM ems_message")
    stage.check("highest offset", count, "SELECT MAX(`offset`) FROM ems_message")
    stage.check("different uids", count, "SELECT COUNT(DISTINCT uid) FROM ems_message")


def send(threads: int) -> Callable[[Stage], dict[str, float]]:
    """So many threads of one process call ``send``."""

    def measure(stage: Stage) -> dict[str, float]:
        app = build(url=stage.url).app
        app.send("events", BODY)  # connects, and creates the topic

        def step() -> int:
            app.send("events", BODY)
            return 1

        per_s, count = rate(stage.size.seconds, threads, lambda number: step)
        app.close()
        _check(stage, count + 1)
        return {"messages/s": per_s}

    return measure


def send_many(stage: Stage) -> dict[str, float]:
    """One caller, 500 messages a call."""
    app = build(url=stage.url).app
    app.send("events", BODY)

    def step() -> int:
        return len(app.send_many("events", [BODY] * _BATCH))

    per_s, count = rate(stage.size.seconds, 1, lambda number: step)
    app.close()
    _check(stage, count + 1)
    return {"messages/s": per_s}
