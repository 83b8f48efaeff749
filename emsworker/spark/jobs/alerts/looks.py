"""Samples of the groups as a stream for Structured Streaming: one look for each group and trigger, even if idle.

Spark writes the offset of a micro-batch into the checkpoint before it runs the batch. Here the offset contains the
looks themselves, so that a batch that is run again has the same input and sends the same alerts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from emsworker.admin.monitoring import Monitoring
from emsworker.spark.profile import closing_session, open_stream
from emsworker.store.inspect import monitoring as store

NAME = "ems_looks"
_COLUMNS = (
    "topic string, `group` string, at bigint, lag bigint, oldest_s double, "
    "position bigint, failed bigint, retried bigint"
)


@dataclass(frozen=True)
class Looks(InputPartition):
    """The looks of one micro-batch."""

    rows: tuple[tuple[Any, ...], ...]


class LookSource(DataSource):
    """``format("ems_looks")``; options ``profile``, ``topics`` (separated by commas) and ``group``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> str:
        """Return the columns: topic, group and the fields of ``GroupSample``."""
        return _COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader for ``spark.readStream``."""
        topics = tuple(name for name in self.options.get("topics", "").split(",") if name)
        return LookReader(self.options.get("profile"), topics, self.options.get("group"))


class LookReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the state of the groups on the driver; the executors get the looks from the partition."""

    def __init__(self, profile: str | None, topics: tuple[str, ...], group: str | None) -> None:
        self._profile, self._topics, self._group = profile, topics, group
        self._goal: dict[str, Any] | None = None
        self._once = False

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first look."""
        return {"at": 0, "looks": []}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Look now; with availableNow only at the first call."""
        if not self._once:
            return self._look(int(start["at"]))
        if self._goal is None:
            self._goal = self._look(int(start["at"]))
        return self._goal

    def prepareForTriggerAvailableNow(self) -> None:
        """Look only once."""
        self._once = True

    def _look(self, since: int) -> dict[str, Any]:
        with closing_session(open_stream(self._profile).stream.database) as database:
            at = max(since + 1, database.call(store.get_settled_time))
            lags = [
                lag
                for lag in Monitoring(database).lag()
                if self._group in (None, lag.group.name) and (not self._topics or lag.topic.name in self._topics)
            ]
            ids = [lag.group.id for lag in lags]
            # The first look has no earlier time: it only reads where the groups are.
            counts = database.call(lambda session: store.count_attempts(session, ids, since or at, at))
        looks = [
            [
                lag.topic.name,
                lag.group.name,
                at,
                lag.lag,
                lag.oldest_age_s,
                sum(part.cursor for part in lag.partitions),
                *count,
            ]
            for lag, count in zip(lags, counts, strict=True)
        ]
        return {"at": at, "looks": looks}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition with the looks of the offset."""
        return [Looks(tuple(tuple(look) for look in end["looks"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return the looks."""
        assert isinstance(partition, Looks)
        return iter(partition.rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: progress is in the checkpoint alone."""

    def stop(self) -> None:
        """Do nothing: no resource is kept between calls."""
