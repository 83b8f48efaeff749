"""The state of each group's alerts in Spark: ``transformWithState`` around the rules of the module ``watching``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from emsworker.spark.jobs.alerts.watching import AlertLimits, Event, GroupSample, State, as_plain, end, from_plain, step

EVENT = (
    "id string, alert string, state string, rule string, topic string, `group` string, value double, `limit` double, "
    "since bigint, at bigint, reason string"
)


class Watcher(StatefulProcessor):
    """Keeps the state of a group; a timer detects that the group is gone.

    Args:
        limits: the rules.
        gone_ms: milliseconds without a look after which a group is gone.
    """

    def __init__(self, limits: AlertLimits, gone_ms: int) -> None:
        self._limits = limits
        self._gone_ms = gone_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._state = handle.getValueState("state", "json string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Process one look at the group, or several after a pause."""
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + self._gone_ms)
        state = self._load()
        for row in sorted(rows, key=lambda row: row.at):
            look = GroupSample(row.at, row.lag, row.oldest_s, row.position, row.failed, row.retried)
            for event in step((key[0], key[1]), state, look, self._limits):
                yield _row(event)
        self._state.update((json.dumps(as_plain(state)),))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Resolve the alerts of a group that is gone, and clear its state."""
        at = timerValues.getCurrentProcessingTimeInMs() * 1000
        for event in end((key[0], key[1]), self._load(), at):
            yield _row(event)
        self._state.clear()

    def _load(self) -> State:
        return from_plain(json.loads(self._state.get()[0])) if self._state.exists() else State()


def _row(event: Event) -> Row:
    return Row(**asdict(event))
