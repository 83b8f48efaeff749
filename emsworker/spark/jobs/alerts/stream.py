"""Samples of the groups as a stream of Structured Streaming, and the alarms of each group as its state.

Spark writes the offset of a micro-batch into the checkpoint before it runs the batch. Here the offset contains the
samples themselves, one for each group and trigger, so that a batch that is run again has the same input and sends the
same notifications.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from emsworker.alarms.machine import Attempts
from emsworker.alarms.measurements import measure
from emsworker.arrow.profile import call
from emsworker.extending.database import Session, server_now
from emsworker.extending.values import Metric, Rule
from emsworker.spark.jobs.alerts.group_alarms import GroupAlarms

NAME = "ems_samples"
NOTIFICATION = "uid string, event string, at string, body string"
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Samples(InputPartition):
    """The samples of one micro-batch: topic, group, time, and the measured value of each rule as JSON."""

    rows: tuple[tuple[str, str, str, str], ...]


class SampleSource(DataSource):
    """``format("ems_samples")``; options ``profile``, ``topics`` (separated by commas) and ``rules`` (JSON)."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> str:
        return "topic string, `group` string, at string, measured string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader for ``spark.readStream``."""
        topics = tuple(name for name in self.options.get("topics", "").split(",") if name)
        rules = [Rule(**one | {"metric": Metric(one["metric"])}) for one in json.loads(self.options["rules"])]
        return SampleReader(self.options.get("profile"), topics, rules)


class SampleReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Measures the groups on the driver; the executors get the samples from the partition."""

    def __init__(self, profile: str | None, topics: tuple[str, ...], rules: Sequence[Rule]) -> None:
        self._profile, self._topics, self._rules = profile, topics, rules
        self._goal: dict[str, Any] | None = None
        self._once = False

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first sample."""
        return {"at": None, "samples": []}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Measure now; with availableNow only at the first call."""
        if self._goal is None or not self._once:
            since = None if start["at"] is None else datetime.fromisoformat(start["at"])
            self._goal = call(self._profile, lambda session: self._measure(session, since))
        return self._goal

    def prepareForTriggerAvailableNow(self) -> None:
        """Measure only once."""
        self._once = True

    def _measure(self, session: Session, since: datetime | None) -> dict[str, Any]:
        # Later than the last sample in any case: an offset that does not change would be no new batch.
        now = max(server_now(session), (since or _NEVER) + timedelta(microseconds=1))
        found: dict[tuple[str, str], dict[str, float | Attempts]] = {}
        for rule, values in measure(session, self._rules, now, since).items():
            for place, value in values.items():
                if not self._topics or place[0] in self._topics:
                    found.setdefault(place, {})[rule] = value
        at = now.isoformat()
        return {"at": at, "samples": [[*place, at, json.dumps(measured)] for place, measured in found.items()]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition with the samples of the offset."""
        return [Samples(tuple(tuple(sample) for sample in end["samples"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, str, str]]:
        assert isinstance(partition, Samples)
        return iter(partition.rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: progress is in the checkpoint alone."""

    def stop(self) -> None:
        """Do nothing: no resource is kept between calls."""


class Watcher(StatefulProcessor):
    """Keeps the alarms of a group as state; a timer detects that the group is gone.

    Args:
        rules: the rules.
        gone_ms: milliseconds without a sample after which a group is gone.
    """

    def __init__(self, rules: Sequence[Rule], gone_ms: int) -> None:
        self._rules = rules
        self._gone_ms = gone_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._state = handle.getValueState("state", "json string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Process one sample of the group, or several after a pause."""
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + self._gone_ms)
        alarms = self._load(key)
        for row in sorted(rows, key=lambda row: row.at):
            yield from map(_row, alarms.take(json.loads(row.measured), datetime.fromisoformat(row.at)))
        self._state.update((alarms.dump(),))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Resolve the alarms of a group that is gone, and clear its state."""
        now = datetime.fromtimestamp(timerValues.getCurrentProcessingTimeInMs() / 1000, UTC)
        yield from map(_row, self._load(key).end(now))
        self._state.clear()

    def _load(self, key: Any) -> GroupAlarms:
        return GroupAlarms(self._rules, (key[0], key[1]), self._state.get()[0] if self._state.exists() else None)


def _row(notification: dict[str, Any]) -> Row:
    """Make the row of a notification; its uid is the same whenever the micro-batch is run."""
    uid = str(uuid5(UUID(notification["id"]), notification["event"]))
    return Row(uid=uid, event=notification["event"], at=notification["at"], body=json.dumps(notification))
