"""Progress of streaming queries as Prometheus metrics: how far they are behind, as Spark's Kafka source tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from emsworker.arrow.options import TOPIC_ID
from emsworker.extending.declaration import require
from emsworker.extending.processes import Lock


@dataclass(frozen=True)
class OffsetsBehind:
    """Distances between the end of a micro-batch and the ends of the partitions of a topic, at that time."""

    avg: float
    max: int
    min: int


class QueryMetrics(StreamingQueryListener):
    """A listener and a collector: how far the streaming queries of a session are behind, by query and topic.

    Add it to the session with ``spark.streams.addListener(metrics)``, and to Prometheus with
    ``REGISTRY.register(metrics)``. Needs the extra ``metrics``. A query is named by its ``queryName``, or else by its
    id; its metrics end with it.
    """

    def __init__(self) -> None:
        require("metrics", type(self).__name__)
        self._lock = Lock()
        self._found: dict[str, tuple[str, Mapping[str, OffsetsBehind]]] = {}

    # -- listener ------------------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the first progress tells the distances."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Note the distances of a micro-batch, or of a query that found nothing new."""
        progress = event.progress
        found = offsets_behind(progress)
        if found:
            with self._lock:
                self._found[str(progress.runId)] = (progress.name or str(progress.id), found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that a query has read all there is."""
        with self._lock:
            name, found = self._found.get(str(event.runId), ("", {}))
            if found:
                self._found[str(event.runId)] = (name, {topic: OffsetsBehind(0.0, 0, 0) for topic in found})

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            self._found.pop(str(event.runId), None)

    # -- collector -----------------------------------------------------------------------------------------------------

    def describe(self) -> Iterator[Any]:
        """Return the metrics without numbers."""
        yield from _families({})

    def collect(self) -> Iterator[Any]:
        """Return the metrics as of the latest progress of each query."""
        with self._lock:
            found = dict(self._found)
        yield from _families({(name, topic): one for name, topics in found.values() for topic, one in topics.items()})


def _families(found: Mapping[tuple[str, str], OffsetsBehind]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for statistic, text in (("avg", "mean"), ("max", "most"), ("min", "least")):
        family = GaugeMetricFamily(
            f"ems_query_{statistic}_offsets_behind",
            f"Offsets of a partition that a streaming query has not read, {text}",
            labels=("query", "topic"),
        )
        for labels, one in found.items():
            family.add_metric(labels, getattr(one, statistic))
        yield family


def offsets_behind(progress: StreamingQueryProgress) -> dict[str, OffsetsBehind]:
    """Return how far a query was behind after a micro-batch, by topic, over all its sources of ``format("ems")``."""
    behind: dict[str, list[int]] = {}
    for source in progress.sources:
        ends, latest = _journal(source.endOffset), _journal(source.latestOffset)
        for topic, places in latest.items():
            read = ends.get(topic, {})
            behind.setdefault(topic, []).extend(
                max(0, end - read[number])
                for number, end in places.items()
                if number != TOPIC_ID and read.get(number, -1) >= 0
            )
    return {topic: OffsetsBehind(sum(all_) / len(all_), max(all_), min(all_)) for topic, all_ in behind.items() if all_}


def _journal(text: str | None) -> dict[str, dict[str, int]]:
    """Return the offsets of a source of ours, whose topics have ids beside their partitions; of others nothing."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {topic: places for topic, places in found.items() if isinstance(places, dict) and TOPIC_ID in places}
