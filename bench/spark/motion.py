"""``python -m bench.spark.motion``: the stream in motion. Rows a second, the way of one row, and what it costs workers.

- *end to end*: a query over all that is there, into Parquet with a checkpoint, from its start to its end.
- *insert to foreachBatch*: from just before an insert until a running query's ``foreachBatch`` has the row.
- *workers beside it*: a drain of no-op tasks by real workers, in turns without and with a query on the same topic.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.load import percentile
from bench.spark.__main__ import fill, session
from bench.stage import DEFAULT, QUICK, Servers, Stage
from emsworker import Ems
from emsworker.admin import Admin
from emsworker.core.url import DatabaseUrl

_PATIENCE_S = 120.0


def reader(spark: Any, topic: str) -> Any:
    """A stream of a topic of the stage whose address is in the profile file."""
    stream = spark.readStream.format("ems").option("profile", "bench").option("subscribe", topic)
    return stream.option("startingOffsets", "earliest")


def end_to_end(spark: Any, stage: Stage, rows: int, size: int, partitions: int) -> float:
    """Rows a second of a query into Parquet."""
    app = Ems("bench", url=stage.url)
    assert Admin(app).create_topic("bench").id == 1
    app.close()
    fill(DatabaseUrl.parse(stage.url), rows, size)
    frame = reader(spark, "bench").option("minPartitions", str(partitions)).option("partitionBytes", "1g").load()
    writer = frame.writeStream.format("parquet").option("path", str(stage.folder / f"out-{partitions}"))
    began = time.perf_counter()
    query = (
        writer.option("checkpointLocation", str(stage.folder / f"at-{partitions}")).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    seconds = time.perf_counter() - began
    found = spark.read.parquet(str(stage.folder / f"out-{partitions}")).count()
    assert found == rows, f"{found} rows of {rows}"
    return rows / seconds


def insert_to_batch(spark: Any, stage: Stage, count: int) -> list[float]:
    """Milliseconds of each row, one by one; the query asks again as soon as it is done."""
    app = Ems("bench", url=stage.url)
    Admin(app).create_topic("one")
    seen: dict[int, float] = {}
    arrived = threading.Condition()

    def take(frame: Any, batch: int) -> None:
        rows = frame.select("value").collect()
        with arrived:
            for row in rows:
                seen[json.loads(bytes(row.value))] = time.perf_counter()
            arrived.notify_all()

    query = reader(spark, "one").load().writeStream.foreachBatch(take)
    query = query.option("checkpointLocation", str(stage.folder / "one")).trigger(processingTime="0 seconds").start()
    took = []
    try:
        for number in range(count + 3):
            began = time.perf_counter()
            app.send("one", number)
            with arrived:
                assert arrived.wait_for(partial(seen.__contains__, number), _PATIENCE_S), f"row {number} did not arrive"
            took.append((seen[number] - began) * 1000)
    finally:
        query.stop()
        app.close()
    return took[3:]  # the first ones start Python workers


@contextmanager
def reading(spark: Any, stage: Stage) -> Iterator[None]:
    """A query that reads along, each second."""
    writer = reader(spark, "noop").load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(stage.folder / "along"))
    query = writer.trigger(processingTime="1 second").start()
    try:
        yield
        query.processAllAvailable()
    finally:
        query.stop()


def beside_workers(spark: Any, servers: Servers, profiles: Path, rounds: int, size: Any) -> dict[str, list[float]]:
    """Messages a second of the workers, without and with a reader."""
    from bench.lines import LINES

    drain = next(line for line in LINES if line.name == "drain").measure
    found: dict[str, list[float]] = {"alone": [], "beside": []}
    for _ in range(rounds):
        for name in found:
            with servers.stage(size) as stage:
                _point(profiles, stage)
                app = Ems("bench", url=stage.url)
                Admin(app).create_topic("noop")
                app.close()
                with reading(spark, stage) if name == "beside" else nullcontext():
                    found[name].append(drain(stage)["messages/s"])
    return found


def _point(profiles: Path, stage: Stage) -> None:
    profiles.write_text(f"[bench]\nurl = {stage.url}\n", encoding="utf-8")


def main() -> None:
    """Start a server, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.motion", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one-by-one", type=int, default=20, help="rows of insert to foreachBatch")
    parser.add_argument("--quick", action="store_true", help="a small drain for the workers")
    parser.add_argument("--server", choices=("mariadb", "mysql"), default="mariadb")
    given = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("EMS_") and name != "EMS_MYSQL_ROOT"]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="ems-bench-") as name:
        profiles = Path(name) / "profiles.ini"
        os.environ["EMS_PROFILES"] = str(profiles)
        with Servers(Path(name), given.server) as servers:
            spark = session(Path(name))
            try:
                _measure(spark, servers, profiles, given)
            finally:
                spark.stop()


def _measure(spark: Any, servers: Servers, profiles: Path, given: argparse.Namespace) -> None:
    size = QUICK if given.quick else DEFAULT
    for partitions in (1, 2):
        rates = []
        for _ in range(given.rounds):
            with servers.stage(size) as stage:
                _point(profiles, stage)
                rates.append(end_to_end(spark, stage, given.rows, given.size, partitions))
        print(f"{f'end to end, {partitions} tasks, Parquet':40} {max(rates):>12,.0f} rows/s", flush=True)
    with servers.stage(size) as stage:
        _point(profiles, stage)
        took = insert_to_batch(spark, stage, given.one_by_one)
    label = "insert to foreachBatch"
    print(f"{label:40} p50 {percentile(took, 0.5):8,.0f} ms   max {max(took):,.0f} ms", flush=True)
    rates_of = beside_workers(spark, servers, profiles, given.rounds, size)
    alone, beside = median(rates_of["alone"]), median(rates_of["beside"])
    print(f"{'workers alone':40} {alone:>12,.0f} messages/s")
    print(f"{'workers beside a reader':40} {beside:>12,.0f} messages/s  {beside / alone:6.0%} of alone")


if __name__ == "__main__":
    main()
