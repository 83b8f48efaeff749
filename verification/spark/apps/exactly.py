"""A driver that is to be killed: copies topic ``in`` to topic ``out`` by the sink, and to ``each`` by ``foreachBatch``.

Usage: exactly.py MASTER FOLDER OWN (forever | end)

Under ``forever`` the cluster has trouble on purpose, once for each driver: a task fails three times, a task dawdles
until Spark runs it a second time beside itself, and a batch of ``foreachBatch`` is saved and never committed.
OWN/attempts has a line for each attempt of the tasks that were chosen.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.spark.conftest import SETTINGS

FAILURES = 3
_MOST_FAILURES = 12  # beside the planned ones, Python may be too slow for Spark, on any attempt
_BEHIND_S = 60.0
_HELD_BATCH = 3
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.efficiency.enabled": "false",
    "spark.task.maxFailures": str(_MOST_FAILURES),
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
}


def attempts(folder: Path, kind: str) -> list[int]:
    """The attempts of the task that was chosen for some trouble, as they began."""
    path = folder / "attempts"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(attempt) for name, _, attempt, _ in lines if name == kind]


def trouble(folder: Path, kind: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a map over batches that hands out all rows of a task, and then fails or dawdles if the task is chosen."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        context = TaskContext.get()
        if context is None or not rows:
            return
        key, attempt = f"{context.stageId()}-{context.partitionId()}", context.attemptNumber()
        if not _chosen(folder / kind, key):
            return
        with (folder / "attempts").open("a") as log:
            log.write(f"{kind} {key} {attempt} {os.getpid()}\n")
        before = attempts(folder, kind).index(attempt)  # not its number: Spark counts what has not run, and overtakes
        if kind == "fails" and before < FAILURES:
            raise RuntimeError(f"planned failure of task {key}, attempt {attempt}")
        if kind == "slow" and before == 0:
            # Spark compares it with others, which are slow on a busy machine.
            while attempts(folder, kind) == [attempt]:
                time.sleep(0.1)
            time.sleep(_BEHIND_S)

    return run


def _chosen(marker: Path, key: str) -> bool:
    """Return whether this task is the one: the first one that asks is."""
    try:
        with marker.open("x") as file:
            file.write(key)
    except FileExistsError:
        return marker.read_text() == key
    return True


def save(folder: Path, until: str) -> Callable[[Any, int], None]:
    """Return a function for ``foreachBatch``; one batch is saved, and then stays where it is until the driver dies."""

    def write(frame: Any, batch: int) -> None:
        writer = frame.write.format("ems").options(profile="test", topic="each", jobId=f"each-{batch}")
        writer.mode("append").save()
        if until == "forever" and batch >= _HELD_BATCH:
            (folder / "saved").write_text(str(batch))
            time.sleep(3600)

    return write


def main(master: str, folder: Path, own: Path, until: str) -> None:
    """Run both queries until they end, or for ever."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("exactly")
    for name, value in (SETTINGS | _SPECULATION).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    trigger = {"availableNow": True} if until == "end" else {"processingTime": "0 seconds"}

    def source(kind: str) -> Any:
        reader = spark.readStream.format("ems").options(profile="test", subscribe="in", startingOffsets="earliest")
        reader = reader.options(maxOffsetsPerTrigger="1000000" if until == "end" else "40", minPartitions="2")
        frame = reader.load().select("key", "value")
        return frame.mapInArrow(trouble(own, kind), frame.schema) if until == "forever" else frame

    def start(name: str, writer: Any) -> Any:
        query = writer.option("checkpointLocation", str(folder / name)).trigger(**trigger).start()
        while query.isActive and query.lastProgress is None:  # Spark gives each Python 10 s to start: one at a time
            time.sleep(0.1)
        return query

    queries = [
        start("by-sink", source("fails").writeStream.format("ems").options(profile="test", topic="out")),
        start("by-batch", source("slow").writeStream.foreachBatch(save(folder, until))),
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
