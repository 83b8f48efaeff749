"""Queries that run while their stream changes: new partitions, a topic that moves, failing tasks, a slow replica."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.admin.placement import TopicMove
from emsworker.local import LocalDatabase
from tests.support.replication import WORDS, replicating, run
from tests.support.servers import chosen_flavors, fresh_database
from tests.support.several import migrated, several_databases
from tests.support.streams import wait_until

_PATIENCE_S = 240.0
_FIRST, _MORE = 10, 5
_SLOW_PYTHON = "Python worker failed to connect back"


def failing_once(folder: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a map over batches whose first task in each stage fails after its rows, and succeeds when tried again."""

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            (folder / f"failed-{context.stageId()}").touch()
            raise RuntimeError("planned failure")

    return fail


class Query:
    """A query over the topic ``in`` into files, begun again where Spark gave up a Python that took 10 s to start."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._query = self._start()

    def _start(self) -> Any:
        reader = self._spark.readStream.format("ems").options(profile="test", subscribe="in")
        reader = reader.options(startingOffsets="earliest", minPartitions="2")
        frame = reader.load().select("value", "partition")
        writer = frame.mapInArrow(failing_once(self._folder), frame.schema).writeStream.format("parquet")
        writer = writer.options(path=str(self._folder / "rows"), checkpointLocation=str(self._folder / "checkpoint"))
        return writer.trigger(processingTime="1 second").start()

    def seen(self) -> list[tuple[int, int]]:
        """Return the numbers and partitions of the rows so far, by the log of the sink: failed tasks leave files."""
        if (error := self._query.exception()) is not None:
            if _SLOW_PYTHON not in str(error):
                raise error
            self._query = self._start()
        if not (self._folder / "rows" / "_spark_metadata" / "0").exists():
            return []
        rows = self._spark.read.schema("value binary, partition int").parquet(str(self._folder / "rows")).collect()
        return [(int(bytes(row.value)), row.partition) for row in rows]

    def stop(self) -> None:
        """Stop it."""
        self._query.stop()


@contextmanager
def running(spark: Any, folder: Path) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    """A query until the end of the block; yields what returns its rows so far."""
    query = Query(spark, folder)
    try:
        yield query.seen
    finally:
        query.stop()


class Sender:
    """A thread that sends 0, 1, 2 ... to the topic ``in``, in turns to the partitions that it is told."""

    def __init__(self, app: Ems) -> None:
        self._app = app
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent, self.partitions = 0, 1
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.1):
                self._app.send("in", self.sent, partition=self.sent % self.partitions)
                self.sent += 1
        except BaseException as error:
            self._error = error

    def __enter__(self) -> "Sender":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it; raises what has ended it before."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_running_query_follows_new_partitions_and_a_topic_that_moves(
    server: LocalDatabase, spark_session: Any, profiles: Path, tmp_path: Path
) -> None:
    """Sends go on, and in each micro-batch a task fails: every row comes once all the same."""
    with several_databases(server, "main", "east") as several:
        servers = several.setting(east="in")
        profiles.write_text(f"[test]\nurl = {several.url}\nservers = {servers}\n", encoding="utf-8")
        app = Ems("test", url=several.url, servers=servers)
        app.send("in", 0)
        with running(spark_session, tmp_path) as seen, Sender(app) as sender:
            sender.sent = 1
            wait_until(lambda: len(seen()) >= _FIRST, _PATIENCE_S, "the first rows")
            Admin(app.streams.server("east").database).change_topic("in", partitions=3)
            sender.partitions = 3
            wait_until(lambda: any(partition == 2 for _, partition in seen()), _PATIENCE_S, "rows of a new partition")
            for target in ("main", "east"):
                TopicMove(app, "in", target).run(timeout_s=60)
                later = sender.sent + _MORE
                wait_until(lambda later=later: max(seen())[0] >= later, _PATIENCE_S, f"rows sent to {target}")  # type: ignore[misc]
            sender.stop()
            wait_until(lambda: len(seen()) >= sender.sent, _PATIENCE_S, "all rows")
            assert sorted(number for number, _ in seen()) == list(range(sender.sent))
        app.close()
    assert len(list(tmp_path.glob("failed-*"))) > 2, "tasks failed while it went on"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tasks_read_from_a_replica_and_wait_for_one_that_is_behind(
    spark_session: Any, profiles: Path, tmp_path: Path
) -> None:
    flavor = chosen_flavors()[0]
    word = WORDS[flavor].follower
    with replicating(flavor, tmp_path / "servers") as pair, fresh_database(pair.primary) as url:
        ports = [urlsplit(one.url).port for one in (pair.primary, pair.replica)]
        migrated(url)
        read_url = url.replace(f":{ports[0]}/", f":{ports[1]}/")
        assert read_url != url
        profiles.write_text(f"[test]\nurl = {url}\nread_url = {read_url}\n", encoding="utf-8")
        app = Ems("test", url=url)
        app.send_many("in", range(5))
        wait_until(pair.has_applied_all, _PATIENCE_S, "the replica")
        with running(spark_session, tmp_path) as seen:
            wait_until(lambda: len(seen()) == 5, _PATIENCE_S, "the first rows")
            run(pair.replica, f"STOP {word} SQL_THREAD")
            app.send_many("in", range(5, 10))

            def readers() -> bool:
                return any(one["User"] == "ems" for one in run(pair.replica, "SHOW PROCESSLIST"))

            wait_until(readers, _PATIENCE_S, "a task that reads from the replica")
            assert len(seen()) == 5
            run(pair.replica, f"START {word} SQL_THREAD")
            wait_until(lambda: len(seen()) >= 10, _PATIENCE_S, "the rows that the replica did not have")
            assert sorted(number for number, _ in seen()) == list(range(10))
        batch = spark_session.read.format("ems").options(profile="test", subscribe="in").load()
        assert batch.count() == 10
        app.close()
