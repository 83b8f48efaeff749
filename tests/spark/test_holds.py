"""A named query holds what its checkpoint has not behind it, also while it is dead."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emsworker.admin import Admin
from emsworker.beat.expiry import sweep_holds
from emsworker.beat.retention import trim
from emsworker.core.errors import ConfigError, HoldTaken
from emsworker.publish.outgoing import Outgoing
from emsworker.store.stream import holds
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.test_batch import fill
from tests.spark.test_kills import kill_all
from tests.spark.test_stream import ends, reader_of, slices
from tests.support.streams import Stream, wait_until

_PATIENCE_S = 300.0


def trimmed(stream: Stream) -> int:
    """Age all messages, let the beat delete what it may, and return the first offset that is left, or the next one."""
    stream.rows("UPDATE ems_message SET born_at = born_at - INTERVAL 1 DAY")
    sweep_holds(stream.session, stream.app().settings)
    while trim(stream.session, stream.app().settings) == 0.0:
        pass
    return int(stream.value("SELECT MIN(log_start) FROM ems_partition"))


def kept(stream: Stream) -> list[tuple[int, int, int]]:
    """Where each hold is: held_from, next_offset, lag."""
    return [(row.held_from, row.next_offset, row.lag) for row in holds.list_holds(stream.session)]


def held_topic(stream: Stream, count: int, partitions: int = 1) -> None:
    stream.topic("t", partitions=partitions, retention_s=3600)
    stream.app().send_many("t", range(count))


def test_a_hold_follows_the_checkpoint_and_never_runs_ahead(stream: Stream, profile: None) -> None:
    held_topic(stream, 10)
    reader = reader_of(holdName="nightly", maxOffsetsPerTrigger="4")
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert kept(stream) == [(1, 1, 10)], "before anything is read"
    second = reader.latestOffset(first, limit)
    assert slices(reader, first, second) == [(1, 5)] and trimmed(stream) == 1
    third = reader.latestOffset(second, limit)
    assert kept(stream) == [(1, 5, 6)], "read to 5; what Spark has committed is not told yet"
    reader.commit(second)
    assert kept(stream) == [(5, 5, 6)] and trimmed(stream) == 5
    assert slices(reader, second, third) == [(5, 9)]

    successor = reader_of(holdName="nightly")
    assert slices(successor, second, third) == [(5, 9)], "a batch that is run again after kill -9"
    assert kept(stream) == [(5, 5, 6)] and trimmed(stream) == 5
    with pytest.raises(HoldTaken, match="reader 'nightly' runs twice"):
        reader.commit(third)
    assert ends(successor, third) == {"t": {"0": 11}} and kept(stream) == [(5, 9, 2)]
    reader_of(holdName="nightly").latestOffset(third, limit)
    assert kept(stream) == [(9, 9, 2)], "a query that starts knows what is in its checkpoint"


def test_a_quiet_query_writes_nothing_but_renews(
    stream: Stream, profile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_topic(stream, 10, partitions=2)
    reader = reader_of(holdName="nightly", holdFor="100s")
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    renewed = stream.rows("SELECT renewed_at FROM ems_hold ORDER BY `partition`")
    assert len(renewed) == 2
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    assert stream.rows("SELECT renewed_at FROM ems_hold ORDER BY `partition`") == renewed
    now = reader.servers["main"]._hold._renewed
    monkeypatch.setattr("emsworker.spark.hold.time.monotonic", lambda: now + 25)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    later = stream.rows("SELECT renewed_at FROM ems_hold ORDER BY `partition`")
    assert all(one > before for one, before in zip(later, renewed, strict=True))


@pytest.mark.parametrize("released", [False, True])
def test_a_query_takes_again_what_it_lost_and_says_what_is_gone(
    stream: Stream, profile: None, caplog: pytest.LogCaptureFixture, released: bool
) -> None:
    from emsworker.arrow.planning import DataLoss

    held_topic(stream, 10)
    reader = reader_of(holdName="nightly")
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert trimmed(stream) == 1
    if released:
        assert holds.release(stream.session, stream.value("SELECT id FROM ems_topic"), "nightly") == 1
    else:
        stream.rows("UPDATE ems_hold SET expires_at = NOW(6) - INTERVAL 1 SECOND")
    assert trimmed(stream) == 11
    with pytest.raises(DataLoss, match="offsets 1 to 10 of t/0 have been deleted"):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    lax = reader_of(holdName="nightly", failOnDataLoss="false")
    fill(stream, count=3, partitions=1)
    assert ends(lax, start) == {"t": {"0": 14}}
    assert kept(stream) == [(11, 11, 3)] and trimmed(stream) == 11
    stream.rows("DELETE FROM ems_hold")
    monotonic = lax.servers["main"]._hold._renewed
    lax.servers["main"]._hold._renewed = monotonic - 31
    assert ends(lax, start) == {"t": {"0": 14}} and kept(stream) == [(11, 11, 3)]
    assert "reader 'nightly' takes its hold of 1 partition again" in caplog.text


def test_partitions_and_topics_that_are_added_are_held_too(stream: Stream, profile: None) -> None:
    held_topic(stream, 3)
    reader = reader_of(holdName="nightly")
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    Admin(stream.app()).change_topic("t", partitions=2)
    stream.app().send("t", 1, partition=1)
    reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [(row.partition, row.held_from, row.lag) for row in holds.list_holds(stream.session)] == [
        (0, 1, 3),
        (1, 1, 1),
    ]


def test_options_of_holds_are_checked(stream: Stream) -> None:
    from emsworker.arrow.options import read_options

    for given, streaming, text in (
        ({"holdFor": "1d"}, True, "option holdFor = '1d': it goes with holdName"),
        ({"holdName": "a/b"}, True, "option holdName = 'a/b': reader 'a/b' is not a valid name"),
        ({"holdName": "n", "holdFor": "10ms"}, True, "option holdFor = '10ms': must be a duration of a second or more"),
        ({"holdName": "n", "holdFor": "soon"}, True, "option holdFor = 'soon': 'soon' is not a duration"),
        ({"holdName": "n"}, False, "option holdName = 'n': it is for readStream"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_options({"subscribe": "t", **given}, streaming=streaming)
        assert text in str(caught.value)


@contextmanager
def holder(folder: Path, hold_for: str, until: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A driver with a hold, killed as one with its Java at the end."""
    command = [sys.executable, "-m", "tests.spark.apps.holding", str(folder), hold_for, until]
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **spark_environment()}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        kill_all(process)


@pytest.mark.timeout(900)
def test_retention_takes_nothing_from_a_query_that_is_killed_until_its_hold_expires(
    stream: Stream, spark: Any, tmp_path: Path
) -> None:
    stream.topic("in", partitions=2, retention_s=3600)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        stream.app().send_many(
            "in", [Outgoing("in", number, key=f"k{number % 7}") for number in range(sent, sent + count)]
        )
        sent += count

    def log() -> str:
        return (tmp_path / "driver.log").read_text()[-4000:]

    def found() -> list[int]:
        if not (tmp_path / "out" / "_spark_metadata").exists():
            return []
        return sorted(
            int(row.n) for row in spark.read.parquet(str(tmp_path / "out")).selectExpr("string(value) AS n").collect()
        )

    send(400)
    with holder(tmp_path, "1h", "forever") as process:

        def deleted(offsets: int) -> bool:
            """Retention runs all the while, and follows the query."""
            assert process.poll() is None, log()
            if not kept(stream):  # it has not begun: nobody holds anything yet
                return False
            trimmed(stream)
            return int(stream.value("SELECT SUM(log_start) FROM ems_partition")) > offsets

        wait_until(lambda: deleted(40), _PATIENCE_S, "a first deletion")
        wait_until(lambda: deleted(100), _PATIENCE_S, "more of them")
    assert len(found()) < sent, "the kill came too late to be in the middle"
    send(50)
    trimmed(stream)
    left = {row.partition: row.held_from for row in holds.list_holds(stream.session)}
    assert dict(stream.rows("SELECT `partition`, log_start FROM ems_partition")) == left, (
        "as far as the hold, no further"
    )
    with holder(tmp_path, "2s", "end") as process:
        assert process.wait(_PATIENCE_S) == 0, log()
    assert found() == list(range(sent)), "each message once, and none was deleted before it was read"

    send(20)
    wait_until(
        lambda: trimmed(stream) and all(row.lost_at for row in holds.list_holds(stream.session)), 60, "the limit"
    )
    trimmed(stream)
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 0
    with holder(tmp_path, "2s", "end") as process:
        assert process.wait(_PATIENCE_S) != 0
    assert "have been deleted (its log start offset is" in log()
