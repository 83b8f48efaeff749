"""How far queries are behind, by a listener of a real session and as Prometheus sees it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from emsworker.admin import Admin
from tests.spark.test_batch import fill
from tests.support.streams import Stream, wait_until


def behind(registry: CollectorRegistry, query: str, topic: str) -> tuple[float | None, ...]:
    names = (f"ems_query_{one}_offsets_behind" for one in ("avg", "max", "min"))
    return tuple(registry.get_sample_value(name, {"query": query, "topic": topic}) for name in names)


@pytest.mark.timeout(300)
def test_a_listener_tells_how_far_each_query_is_behind(
    stream: Stream, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emsworker.spark.progress import QueryMetrics, offsets_behind

    stream.topic("t", partitions=2)
    app = stream.app()
    for partition, count in enumerate((40, 10)):
        for number in range(count):
            app.send("t", number, partition=partition)
    registry, metrics = CollectorRegistry(), QueryMetrics()
    registry.register(metrics)
    spark.streams.addListener(metrics)
    seen = []
    noted = metrics.onQueryProgress

    def note(event: Any) -> None:
        seen.append(offsets_behind(event.progress).get("t"))
        noted(event)

    monkeypatch.setattr(metrics, "onQueryProgress", note)
    reader = spark.readStream.format("ems").options(profile="test", subscribe="t", startingOffsets="earliest")
    frame = reader.options(maxOffsetsPerTrigger="10", holdName="nightly").load()
    writer = frame.writeStream.format("noop").queryName("lake").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        wait_until(lambda: behind(registry, "lake", "t") == (0, 0, 0), 120, "the end of the backlog")
        found = [one for one in seen if one is not None]
        assert (found[0].avg, found[0].max, found[0].min) == (25, 40, 10), "the first batch reads nothing"
        assert (found[1].avg, found[1].max, found[1].min) == (20, 32, 8), "the second 10, by the sizes of the backlogs"
        assert [one.max for one in found] == sorted((one.max for one in found), reverse=True)
        assert b'ems_query_max_offsets_behind{query="lake",topic="t"} 0.0' in generate_latest(registry)
        # The stream's own metrics know the same of a query with a name, wherever it runs.
        wait_until(lambda: [one.lags for one in Admin(app).readers.holds("t")] == [[0, 0]], 30, "the hold's lag")
        fill(stream, "other", 3, partitions=1)
        assert behind(registry, "lake", "other") == (None, None, None)
    finally:
        query.stop()
        wait_until(lambda: behind(registry, "lake", "t") == (None, None, None), 60, "the end of its metrics")
        spark.streams.removeListener(metrics)


def test_other_sources_and_unknown_offsets_count_for_nothing() -> None:
    from pyspark.sql.streaming.listener import SourceProgress

    from emsworker.spark.progress import OffsetsBehind, offsets_behind

    progress: Any = SimpleNamespace(
        sources=[
            SourceProgress("rate", "0", "5", "9", 1, 1.0, 1.0, {}),
            SourceProgress("kafka", "null", '{"t":{"0":1}}', '{"t":{"0":9}}', 1, 1.0, 1.0, {}),
            SourceProgress("none", "null", "null", "None", 1, 1.0, 1.0, {}),
            SourceProgress(
                "ems", "null", '{"t":{"0":5,"1":-2,"id":1}}', '{"t":{"0":9,"1":9,"2":4,"id":1}}', 1, 1.0, 1.0, {}
            ),
        ]
    )
    assert offsets_behind(progress) == {"t": OffsetsBehind(4.0, 4, 4)}
