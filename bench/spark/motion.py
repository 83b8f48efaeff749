"""The stream in motion: rows a second from end to end, and the way of one row."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench.load import percentile
from bench.spark.figure import Figure
from bench.spark.reading import SCHEMA
from bench.stage import NotRight, Stage
from emsworker import Ems
from emsworker.admin import Admin

_PATIENCE_S = 120.0
_WARM_UP = 3  # the first rows wait until Python workers have started


def stream_of(spark: Any, topic: str) -> Any:
    """A stream of a topic of the stage that the profile names."""
    stream = spark.readStream.format("ems").option("profile", "bench").option("subscribe", topic)
    return stream.option("startingOffsets", "earliest")


class EndToEnd:
    """A query over all of the topic ``bench``, into Parquet with a checkpoint, from its start to its end.

    Args:
        spark: a session with two cores.
        rows: how many there are.
        folder: where everything goes.
        jdbc: makes a data frame of the same rows by Spark's JDBC source, in so many tasks; it has no streams, so that a
            batch of it into Parquet is what a query is compared with.
    """

    def __init__(self, spark: Any, rows: int, folder: Path, jdbc: Callable[[int], Any] | None) -> None:
        self._spark, self._rows, self._folder, self._jdbc = spark, rows, folder, jdbc
        self._runs = count()

    def measure(self, rounds: int, say: Callable[[str], None]) -> list[Figure]:
        """With one task and with two, in turns."""
        found: dict[int, list[float]] = {1: [], 2: []}
        others: dict[int, list[float]] = {1: [], 2: []}
        for number in range(rounds):
            for tasks, rates in found.items():
                rates.append(self._rate(lambda out, tasks=tasks: self._stream(tasks, out)))  # type: ignore[misc]
                if self._jdbc is not None:
                    write = self._jdbc(tasks).write.parquet
                    others[tasks].append(self._rate(write))
            told = ", ".join(f"{tasks} task(s) {rates[-1]:,.0f}/s" for tasks, rates in found.items())
            say(f"  round {number + 1}: {told}; by JDBC {[round(one[-1]) for one in others.values() if one]}")
        return [
            Figure(
                "stream",
                f"stream to Parquet, end to end, {tasks} task{'s' if tasks > 1 else ''}",
                "rows/s",
                rates,
                '`format("jdbc")`, a batch to Parquet' if others[tasks] else "",
                others[tasks],
                least=0.8 if others[tasks] else None,
            )
            for tasks, rates in found.items()
        ]

    def _stream(self, tasks: int, out: str) -> None:
        frame = stream_of(self._spark, "bench").option("minPartitions", str(tasks)).option("partitionBytes", "1g")
        writer = frame.schema(SCHEMA).load().writeStream.format("parquet").option("path", out)
        writer.option("checkpointLocation", f"{out}-at").trigger(availableNow=True).start().awaitTermination()

    def _rate(self, write: Callable[[str], Any]) -> float:
        out = str(self._folder / f"out-{next(self._runs)}")
        began = time.perf_counter()
        write(out)
        seconds = time.perf_counter() - began
        found = self._spark.read.parquet(out).count()
        if found != self._rows:
            raise NotRight(f"{found} rows of {self._rows} came out of the stream")
        return self._rows / seconds


def insert_to_batch(spark: Any, stage: Stage, rows: int) -> list[Figure]:
    """From just before an insert until ``foreachBatch`` has the row, one by one; the query asks again at once."""
    app = Ems("bench", url=stage.url)
    Admin(app).create_topic("one")
    seen: dict[int, float] = {}
    arrived = threading.Condition()

    def take(frame: Any, batch: int) -> None:
        values = frame.select("value").collect()
        with arrived:
            for row in values:
                seen[json.loads(bytes(row.value))] = time.perf_counter()
            arrived.notify_all()

    query = stream_of(spark, "one").load().writeStream.foreachBatch(take)
    query = query.option("checkpointLocation", str(stage.folder / "one")).trigger(processingTime="0 seconds").start()
    took = []
    try:
        for number in range(rows + _WARM_UP):
            began = time.perf_counter()
            app.send("one", number)
            deadline = began + _PATIENCE_S
            with arrived:
                while not arrived.wait_for(partial(seen.__contains__, number), 1.0):
                    if (error := query.exception()) is not None or time.perf_counter() > deadline:
                        raise NotRight(f"row {number} did not arrive within {_PATIENCE_S:g} s; the query: {error}")
            took.append((seen[number] - began) * 1000)
    finally:
        query.stop()
        app.close()
    took = took[_WARM_UP:]
    note = f"the slowest of {len(took)}: {max(took):,.0f} ms, p95 {percentile(took, 0.95):,.0f} ms"
    return [Figure("fresh", "insert to `foreachBatch`, median", "ms", took, most=1000.0, note=note)]
