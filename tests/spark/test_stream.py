"""Reading the stream in motion. Queries run in the test's own session unless their driver is to be killed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_batch import fill, insert
from tests.support import rows
from tests.support.streams import Stream


def run(spark: Any, folder: Path, topic: str = "t", **options: Any) -> list[int]:
    """All that is there now into Parquet, then stop; returns the rows of each micro-batch."""
    reader = spark.readStream.format("ems").option("profile", "test").option("subscribe", topic).options(**options)
    writer = reader.load().writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
        return [progress["numInputRows"] for progress in query.recentProgress]
    finally:
        query.stop()


def found(spark: Any, folder: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(folder / "out")).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def stored(stream: Stream) -> list[tuple[int, int]]:
    return sorted(stream.rows("SELECT `partition`, `offset` FROM ems_message WHERE kind = 'message'"))


def ends(reader: Any, start: Any, limit: Any = None) -> dict[str, dict[str, int]]:
    """The offsets at which the next batch ends, without the ids of the topics."""
    journal = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return {
        topic: {name: offset for name, offset in places.items() if name != "id"} for topic, places in journal.items()
    }


def slices(reader: Any, start: Any, end: Any) -> list[tuple[int, int]]:
    return [(one.slices[0].offsets.start, one.slices[0].offsets.end) for one in reader.partitions(start, end)]


def test_a_query_goes_on_where_its_checkpoint_ends(stream: Stream, spark: Any, tmp_path: Path) -> None:
    fill(stream, count=50)
    batches = run(spark, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert sum(batches) == 50 and max(batches) <= 20
    fill(stream, count=10)
    assert sum(run(spark, tmp_path, startingOffsets="earliest")) == 10
    assert found(spark, tmp_path) == stored(stream)


def test_latest_is_where_the_query_first_began(stream: Stream, spark: Any, tmp_path: Path) -> None:
    fill(stream, count=10)
    assert sum(run(spark, tmp_path)) == 0
    fill(stream, count=6)
    assert sum(run(spark, tmp_path)) == 6


@pytest.mark.parametrize(
    "beginning",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": "earliest"},
        {"startingOffsets": '{"t": {"0": -2}}'},
        {"startingTimestamp": "1000000000000"},
    ],
)
def test_a_restart_before_the_first_batch_is_committed_keeps_the_beginning(
    stream: Stream, profile: None, beginning: dict[str, str]
) -> None:
    """Spark asks for the beginning again then: the same must come, although messages were sent and deleted since."""
    from emsworker.arrow.planning import DataLoss

    fill(stream, count=10, partitions=1)
    first, second = reader_of(**beginning), reader_of(**beginning)
    start = first.initialOffset()
    end = first.latestOffset(start, first.getDefaultReadLimit())
    begin = 11 if beginning.get("startingOffsets") == "latest" else 1
    assert ends(first, start) == {"t": {"0": begin}} and slices(first, start, end) == []
    fill(stream, count=5, partitions=1)
    assert second.initialOffset() == start and slices(second, start, end) == []
    assert ends(second, end) == {"t": {"0": 16}} and slices(second, end, {"t": {"0": 16}}) == [(begin, 16)]
    rows.trim(stream.rows, 14)
    third = reader_of(**beginning)
    assert third.initialOffset() == start and slices(third, start, end) == []
    with pytest.raises(DataLoss, match=f"offsets {begin} to 13 of t/0 have been deleted"):
        ends(third, end)


def test_a_partition_that_was_added_begins_with_a_batch_of_its_own(stream: Stream, profile: None) -> None:
    """As at the beginning: a batch that is run again after retention must not miss rows silently."""
    from emsworker.store import topics

    fill(stream, count=3, partitions=1)
    reader = reader_of()
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    topic = topics.get_topic(stream.session, "t")
    assert topic is not None
    topics.change_topic(stream.session, replace(topic, partitions=2))
    stream.app().send("t", 1, partition=1)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert ends(reader, start) == {"t": {"0": 4, "1": 1}} and slices(reader, start, end) == [(1, 4)]
    assert ends(reader, end) == {"t": {"0": 4, "1": 2}}


def test_a_topic_that_was_created_again_is_noticed_although_it_is_longer(stream: Stream, profile: None) -> None:
    from emsworker.arrow.planning import DataLoss
    from emsworker.store import topics

    fill(stream, count=3, partitions=1)
    reader, lax = reader_of(), reader_of(failOnDataLoss="false")
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    old = topics.get_topic(stream.session, "t")
    assert old is not None
    topics.delete_topic(stream.session, old, force=True)
    fill(stream, count=10, partitions=1)
    for ask in (lambda: ends(reader, end), lambda: slices(reader, start, end)):
        with pytest.raises(DataLoss, match="topic 't' was deleted and created again"):
            ask()
    assert slices(lax, start, end) == []
    anew = lax.latestOffset(end, lax.getDefaultReadLimit())
    assert slices(lax, end, anew) == [] and ends(lax, end) == {"t": {"0": 1}} and ends(lax, anew) == {"t": {"0": 11}}


def test_a_stream_waits_at_a_hole_and_goes_on_when_it_is_filled(stream: Stream, spark: Any, tmp_path: Path) -> None:
    topic = stream.topic("t")
    for offset in (1, 2, 4):
        insert(stream, topic.id, offset)
    assert sum(run(spark, tmp_path, startingOffsets="earliest")) == 2
    insert(stream, topic.id, 3)
    assert sum(run(spark, tmp_path, startingOffsets="earliest")) == 2
    assert found(spark, tmp_path) == [(0, 1), (0, 2), (0, 3), (0, 4)]


def test_new_partitions_and_topics_are_read_from_their_beginning(stream: Stream, spark: Any, tmp_path: Path) -> None:
    fill(stream, "t1", 4, partitions=1)

    def all_topics() -> int:
        reader = spark.readStream.format("ems").option("profile", "test").option("subscribePattern", "t.*")
        writer = reader.option("startingOffsets", "earliest").load().writeStream.format("parquet")
        writer = writer.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    assert all_topics() == 4
    fill(stream, "t2", 3, partitions=1)
    assert all_topics() == 3


def reader_of(**options: str) -> Any:
    from pyspark.sql.types import StructType

    from emsworker.spark.stream import EmsStreamReader

    given = {"subscribe": "t", "profile": "test", "startingOffsets": "earliest", **options}
    return EmsStreamReader(StructType([]), given)


def test_limits_are_shared_by_the_partitions(stream: Stream, profile: None) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    topic = stream.topic("t", partitions=2)
    for offset in range(1, 91):
        insert(stream, topic.id, offset)
    stream.rows("UPDATE ems_message SET `partition` = 1, `offset` = `offset` - 80 WHERE `offset` > 80")
    reader = reader_of(maxOffsetsPerTrigger="30")
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert ends(reader, start) == {"t": {"0": 1 + 26, "1": 1 + 3}}
    assert reader.servers["main"].high_watermarks == {(topic.id, 0): 31, (topic.id, 1): 11}, (
        "of a long backlog the rest is not looked through"
    )


def test_a_backlog_behind_a_hole_takes_nothing_from_the_others(stream: Stream, profile: None) -> None:
    topic = stream.topic("t", partitions=2)
    for offset in range(2, 92):  # the first is missing
        insert(stream, topic.id, offset)
    stream.rows("UPDATE ems_message SET `partition` = 1, `offset` = `offset` - 71 WHERE `offset` > 71")
    reader = reader_of(maxOffsetsPerTrigger="10")
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert ends(reader, start) == {"t": {"0": 1, "1": 11}}


def test_a_minimum_is_waited_for_but_not_for_ever(stream: Stream, profile: None) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from tests.support.streams import wait_until

    fill(stream, count=10, partitions=1)
    start = {"t": {"0": 1}}
    patient = reader_of(minOffsetsPerTrigger="11")
    assert ends(patient, start, ReadAllAvailable()) == start
    fill(stream, count=2, partitions=1)
    assert ends(patient, start, ReadAllAvailable()) == {"t": {"0": 13}}
    hasty = reader_of(minOffsetsPerTrigger="100", maxTriggerDelay="200ms")
    assert ends(hasty, start, ReadAllAvailable()) == start
    wait_until(lambda: ends(hasty, start, ReadAllAvailable()) == {"t": {"0": 13}}, what="the delay's end")


def test_what_is_lost_is_told(stream: Stream, profile: None) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from emsworker.arrow.planning import DataLoss

    fill(stream, count=10, partitions=1)
    rows.trim(stream.rows, 5, deleted=False)
    everything = ReadAllAvailable()
    with pytest.raises(DataLoss, match="offsets 2 to 4 of t/0 have been deleted"):
        reader_of().latestOffset({"t": {"0": 2}}, everything)
    with pytest.raises(DataLoss, match="t/0 ends at 11, but the checkpoint has it at offset 99"):
        reader_of().latestOffset({"t": {"0": 99}}, everything)
    with pytest.raises(DataLoss, match="u/3 is gone, but the checkpoint has it at offset 7"):
        reader_of().latestOffset({"t": {"0": 6}, "u": {"3": 7}}, everything)
    assert ends(reader_of(failOnDataLoss="false"), {"t": {"0": 2}}, everything) == {"t": {"0": 11}}


def test_a_stream_goes_on_without_a_topic_that_was_deleted(
    stream: Stream, profile: None, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from emsworker.core.errors import UnknownTopic
    from emsworker.store import topics

    fill(stream, count=10, partitions=1)
    fill(stream, "u", 5, 1)
    options = {"subscribe": "t,u", "failOnDataLoss": "false"}
    lax, everything = reader_of(**options), ReadAllAvailable()
    start = lax.latestOffset(lax.initialOffset(), everything)
    old = topics.get_topic(stream.session, "u")
    assert old is not None
    topics.delete_topic(stream.session, old, force=True)
    for reader in (lax, reader_of(**options)):  # the second one after a restart
        caplog.clear()
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, everything)
        assert reader.latestOffset(end, everything) == end
        assert ends(reader, start, everything) == {"t": {"0": 11}, "u": {"0": 1}}
        assert slices(reader, start, end) == [(1, 11)]
        assert [one.getMessage().split(";")[0] for one in caplog.records] == ["topic u was deleted"]
    with pytest.raises(UnknownTopic, match="there is no topic 'u'"):
        reader_of(subscribe="t,u").latestOffset(start, everything)
    with pytest.raises(UnknownTopic, match="there is no topic 'x'"):
        reader_of(subscribe="t,x", failOnDataLoss="false").initialOffset()


def test_streaming_options_are_checked(stream: Stream, profile: None) -> None:
    from emsworker.arrow.options import read_options
    from emsworker.core.errors import ConfigError

    given = {"subscribe": "t", "endingOffsets": "latest", "dataset": "claims", "engine": "jdbc", "assign": "{}"}
    with pytest.raises(ConfigError) as caught:
        read_options({**given, "maxTriggerDelay": "soon"}, streaming=True)
    names = [problem.name for problem in caught.value.problems]
    assert names == [
        f"option {name}" for name in ("endingOffsets", "subscribe", "maxTriggerDelay", "engine", "dataset")
    ]
    assert json.dumps(str(caught.value)).count("soon") == 2
    assert "trigger(availableNow=True)" in str(caught.value.problems[0])


def test_what_the_beat_has_noted_is_not_counted_again(
    stream: Stream, profile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from emsworker.arrow import planning, scan
    from emsworker.arrow.options import read_options
    from emsworker.core.offsets import OffsetRange

    counted: list[tuple[int, int]] = []
    find_hole = scan.find_hole

    def spy(session: Any, offsets: OffsetRange) -> int:
        if offsets:
            counted.append((offsets.start, offsets.end))
        return find_hole(session, offsets)

    monkeypatch.setattr(scan, "find_hole", spy)
    fill(stream, count=10, partitions=1)
    stream.rows("UPDATE ems_partition SET high_watermark = 6")
    assert ends(reader_of(), {"t": {"0": 1}}, ReadAllAvailable()) == {"t": {"0": 11}}
    (one,) = planning.plan(stream.session, read_options({"subscribe": "t"}, streaming=False))
    assert (one.offsets.start, one.offsets.end) == (1, 11)
    near = read_options({"subscribe": "t", "endingOffsets": '{"t":{"0":4}}'}, streaming=False)
    (short,) = planning.plan(stream.session, near)
    assert (short.offsets.start, short.offsets.end) == (1, 4)
    assert counted == [(6, 11), (6, 11)]
