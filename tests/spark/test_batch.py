"""Reading the stream at rest."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from emsworker.arrow import scan
from emsworker.core.codec import encode_headers
from emsworker.core.errors import EmsError
from emsworker.core.offsets import OffsetRange
from emsworker.store.groups import progress
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of

Read = Any


@dataclass
class Direct:
    """The source without Java, as Spark drives it: planned, pickled, read piece by piece."""

    def source(self, topic: str = "t", **options: str) -> Any:
        from emsworker.spark.source import EmsSource

        return EmsSource({"profile": "test", "subscribe": topic, **options})

    def pieces(self, topic: str = "t", schema: Any = None, filters: Any = (), **options: str) -> list[Any]:
        from pyspark.cloudpickle import dumps, loads

        source = self.source(topic, **options)
        reader = source.reader(schema or source.schema())
        if filters:
            assert list(reader.pushFilters(list(filters))) == []
        return [list(loads(dumps(reader)).read(one)) for one in reader.partitions()]

    def rows(self, topic: str = "t", schema: Any = None, filters: Any = (), **options: str) -> list[dict[str, Any]]:
        pieces = self.pieces(topic, schema, filters, **options)
        return [row for piece in pieces for batch in piece for row in batch.to_pylist()]

    def offsets(self, **options: Any) -> list[int]:
        return [row["offset"] for row in self.rows(**options)]


@pytest.fixture
def direct(profile: None) -> Direct:
    return Direct()


def fill(stream: Stream, topic: str = "t", count: int = 10, partitions: int = 2, **options: Any) -> None:
    app = stream.app()
    stream.topic(topic, partitions=partitions)
    for half in (range(count // 2), range(count // 2, count)):  # keyless messages sent together share a partition
        app.send_many(topic, [{"n": n} for n in half], **options)


def insert(
    stream: Stream, topic_id: int, offset: int, kind: str = "message", body: bytes = b"1", ago_s: int = 0
) -> None:
    """A row at a place of the test's choosing, as a producer with an offset from Redis writes it."""
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, kind, headers, body, size, born_at)"
        " VALUES (%s, 0, %s, UNHEX(REPLACE(UUID(), '-', '')), %s, '', %s, %s, NOW(6) - INTERVAL %s SECOND)",
        topic_id,
        offset,
        kind,
        body,
        len(body),
        ago_s,
    )


def failure(work: Callable[[], Any]) -> str:
    with pytest.raises(EmsError) as caught:
        work()
    return str(caught.value)


def test_columns_are_those_of_kafkas_source(stream: Stream, read: Read) -> None:
    app = stream.app()
    stream.topic("orders", partitions=3)
    before = datetime.now(UTC) - timedelta(seconds=60)
    for n in range(7):
        app.send("orders", {"n": n}, key=f"k{n}", headers={"from": "test"})
    frame = read("orders")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    rows = {bytes(row.key): row for row in frame.collect()}
    stored = stream.rows("SELECT `key`, body, `partition`, `offset` FROM ems_message WHERE `offset` > 0")
    assert len(stored) == 7
    for key, body, partition, offset in stored:
        row = rows[key]
        assert (bytes(row.value), row.topic, row.partition, row.offset) == (body, "orders", partition, offset)
        assert row.timestampType == 1
        assert before < row.timestamp.replace(tzinfo=UTC) < before + timedelta(seconds=600)
    headers = read("orders", includeHeaders="true").select("headers").first().headers
    assert [(one.key, bytes(one.value)) for one in headers] == [("from", b"test")]


def test_timestamps_are_the_servers_to_the_microsecond(stream: Stream, read: Read) -> None:
    fill(stream, count=1, partitions=1)
    born = stream.value("SELECT born_at FROM ems_message WHERE `offset` > 0")
    found = read().selectExpr("unix_micros(timestamp)").first()[0]
    assert found == round(born.replace(tzinfo=UTC).timestamp() * 1_000_000)


def test_a_schema_chooses_columns_in_any_order(stream: Stream, read: Read, direct: Direct) -> None:
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    fill(stream, count=5, key="k")
    frame = read(schema="uid string, kind string, offset bigint, topic string, size int, rawHeaders binary, tag binary")
    rows = frame.collect()
    assert sorted(row.offset for row in rows) == [1, 2, 3, 4, 5]
    assert {row.uid.replace("-", "") for row in rows} == {
        uid.hex() for (uid,) in stream.rows("SELECT uid FROM ems_message WHERE `offset` > 0")
    }
    assert {(row.kind, row.topic, row.size, row.tag) for row in rows} == {("message", "t", 7, None)}
    assert read(schema="topic string").count() == 5  # no column of the table at all
    wrong = StructType([StructField("offset", StringType()), StructField("colour", IntegerType())])
    text = failure(lambda: direct.rows(schema=wrong))
    assert "column offset = string: its type is bigint" in text
    assert "column colour = int: dataset=messages has no such column" in text


def test_reading_stops_at_a_hole_and_tombstones_do_not_come(
    stream: Stream, direct: Direct, caplog: pytest.LogCaptureFixture
) -> None:
    topic = stream.topic("t")
    for offset in (1, 2, 4, 5, 7):
        insert(stream, topic.id, offset)
    assert direct.offsets() == [1, 2]
    assert "t/0 is read up to offset 3 and not to its end, 8: offset 3 is not resolved yet" in caplog.text
    insert(stream, topic.id, 3, "tombstone")
    assert direct.offsets() == [1, 2, 4, 5]
    insert(stream, topic.id, 6, "cancelled", b"")
    assert direct.offsets() == [1, 2, 4, 5, 7]
    assert direct.offsets(includeCancelled="true") == [1, 2, 4, 5, 6, 7]


def test_an_end_beyond_a_hole_is_refused(stream: Stream, direct: Direct) -> None:
    topic = stream.topic("t")
    for offset in (1, 2, 4):
        insert(stream, topic.id, offset)
    text = failure(lambda: direct.rows(endingOffsets=json.dumps({"t": {"0": 5}})))
    assert "endingOffsets = 5 for t/0: offset 3 is not resolved yet" in text
    assert "it ends at 5" in failure(lambda: direct.rows(endingOffsets=json.dumps({"t": {"0": 99}})))
    assert "it ends at 5" in failure(lambda: direct.rows(startingOffsets=json.dumps({"t": {"0": 99}})))


def test_offsets_and_times_bound_what_is_read(stream: Stream, direct: Direct) -> None:
    topic = stream.topic("t")
    for offset in range(1, 101):
        insert(stream, topic.id, offset, ago_s=1000 - 10 * offset)  # one each ten seconds
    assert direct.offsets(startingOffsets='{"t":{"0":98}}') == [98, 99, 100]
    assert direct.offsets(endingOffsets='{"t":{"0":3}}') == [1, 2]
    assert len(direct.offsets(startingOffsets='{"t":{"0":-2}}', endingOffsets='{"t":{"0":-1}}')) == 100
    born = stream.value("SELECT born_at FROM ems_message WHERE `offset` = 50").replace(tzinfo=UTC)
    at_50 = str(round(born.timestamp() * 1000) - 5000)
    assert direct.offsets(startingTimestamp=at_50) == list(range(50, 101))
    assert direct.offsets(endingTimestamp=at_50) == list(range(1, 50))
    assert direct.offsets(startingOffsetsByTimestamp=f'{{"t": {{"0": {at_50}}}}}') == list(range(50, 101))
    late = str(int(at_50) + 10_000_000)
    assert "startingOffsetsByTimestampStrategy=latest" in failure(lambda: direct.rows(startingTimestamp=late))
    assert direct.offsets(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    assert len(direct.offsets(endingTimestamp=late)) == 100


def test_topics_are_chosen_by_name_pattern_or_partition(stream: Stream, direct: Direct) -> None:
    from emsworker.spark.source import EmsSource

    for name in ("orders", "orders-eu", "other"):
        fill(stream, name, 4)

    def count(**options: str) -> dict[tuple[str, int], int]:
        source = EmsSource({"profile": "test", **options})
        reader = source.reader(source.schema())
        places = [one.place for partition in reader.partitions() for one in partition.slices]
        rows = [sum(batch.num_rows for batch in reader.read(one)) for one in reader.partitions()]
        return dict(zip(places, rows, strict=True))

    assert count(subscribe="orders, other") == {("orders", 0): 2, ("orders", 1): 2, ("other", 0): 2, ("other", 1): 2}
    assert {name for name, _ in count(subscribePattern="orders.*")} == {"orders", "orders-eu"}
    assert count(assign='{"orders": [1]}') == {("orders", 1): 2}
    text = failure(lambda: count(assign='{"orders": [7]}'))
    assert "topic 'orders' has no partition 7; it has 0 to 1" in text


def test_pieces_are_cut_by_offsets_and_by_bytes(stream: Stream, direct: Direct) -> None:
    fill(stream, count=1000, partitions=1)

    def parts(**options: str) -> int:
        pieces = direct.pieces(**options)
        found = [row["offset"] for piece in pieces for batch in piece for row in batch.to_pylist()]
        assert found == list(range(1, 1001))
        return len(pieces)

    assert parts() == 1
    assert parts(minPartitions="4") == 4
    assert parts(maxRecordsPerPartition="100") == 10
    assert parts(partitionBytes="4k") == -(
        -int(stream.value("SELECT SUM(size) FROM ems_message WHERE `offset` > 0")) // 4096
    )


def test_trimmed_offsets_are_told_or_left_out(stream: Stream, direct: Direct) -> None:
    fill(stream, count=10, partitions=1)
    rows.trim(stream.rows, 5)
    assert direct.offsets() == [5, 6, 7, 8, 9, 10]
    text = failure(lambda: direct.rows(startingOffsets='{"t":{"0":2}}'))
    assert "offsets 2 to 4 of t/0 have been deleted (its log start offset is 5)" in text
    assert "failOnDataLoss=false" in text
    assert len(direct.offsets(startingOffsets='{"t":{"0":2}}', failOnDataLoss="false")) == 6


def test_retention_that_overtakes_a_reader_is_told(stream: Stream, profile: None) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    from emsworker.arrow.options import read_options
    from emsworker.arrow.planning import DataLoss
    from emsworker.spark.batch import EmsReader

    fill(stream, count=10, partitions=1)
    schema = StructType([StructField("offset", LongType())])
    given = {"subscribe": "t", "profile": "test"}
    reader = EmsReader(schema, read_options(given, streaming=False))
    (partition,) = reader.partitions()
    rows.trim(stream.rows, 5)
    with pytest.raises(DataLoss, match="offsets 1 to 4 of t/0 were deleted while they were read"):
        list(reader.read(partition))
    lenient = EmsReader(schema, read_options({**given, "failOnDataLoss": "false"}, streaming=False))
    assert [batch.column(0).to_pylist() for batch in lenient.read(partition)] == [[5, 6, 7, 8, 9, 10]]


def test_filters_are_pushed_down_and_give_what_spark_would(stream: Stream, read: Read) -> None:
    topic = stream.topic("t")
    for offset in range(1, 51):
        insert(stream, topic.id, offset, ago_s=100_000 - 1000 * offset)
    fill(stream, "u", 20, 2)
    middle = stream.value("SELECT born_at FROM ems_message WHERE topic_id = %s AND `offset` = 25", topic.id)
    condition = "topic IN ('t', 'w') AND partition = 0 AND offset > 10 AND offset <= 25 AND length(value) = 1"
    condition += f" AND timestamp >= timestamp'{middle - timedelta(seconds=2500)}+00:00'"
    pushed = read("t,u", pushFilters="true").where(condition + f" AND timestamp < timestamp'{middle}+00:00'")
    assert [row.offset for row in pushed.collect()] == [23, 24]
    plan = pushed._jdf.queryExecution().executedPlan().toString()
    (left,) = [line for line in plan.splitlines() if "Filter (" in line]
    assert "length(value" in left and not any(name in left for name in ("topic", "partition", "offset", "timestamp"))


def test_every_filter_gives_what_it_says(stream: Stream, direct: Direct) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

    topic = stream.topic("t")
    for offset in range(1, 51):
        insert(stream, topic.id, offset, ago_s=100_000 - 1000 * offset)
    times = [
        born.replace(tzinfo=UTC)
        for (born,) in stream.rows("SELECT born_at FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")
    ]
    at, every = times[24], list(range(1, 51))
    expected = {
        EqualTo(("offset",), 7): [7],
        GreaterThan(("offset",), 47): [48, 49, 50],
        GreaterThanOrEqual(("offset",), 48): [48, 49, 50],
        LessThan(("offset",), 3): [1, 2],
        LessThanOrEqual(("offset",), 2): [1, 2],
        EqualTo(("timestamp",), at): [25],
        GreaterThan(("timestamp",), at): every[25:],
        GreaterThanOrEqual(("timestamp",), at): every[24:],
        LessThan(("timestamp",), at): every[:24],
        LessThanOrEqual(("timestamp",), at): every[:25],
        EqualTo(("topic",), "t"): every,
        EqualTo(("topic",), "u"): [],
        In(("partition",), (0, 3)): every,
        In(("topic",), ("u", "w")): [],
    }
    for one, offsets in expected.items():
        assert direct.offsets(filters=[one], pushFilters="true") == offsets, one


def test_pushed_filters_narrow_what_is_planned(stream: Stream, profile: None) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan, StringContains
    from pyspark.sql.types import StructType

    from emsworker.arrow.options import read_options
    from emsworker.spark.batch import FilteringReader

    topic = stream.topic("t")
    for offset in range(1, 51):
        insert(stream, topic.id, offset, ago_s=100_000 - 1000 * offset)
    reader = FilteringReader(StructType([]), read_options({"subscribe": "t", "profile": "test"}, streaming=False))
    middle = stream.value("SELECT born_at FROM ems_message WHERE `offset` = 25").replace(tzinfo=UTC)
    other = StringContains(("topic",), "x")
    pushed = [EqualTo(("topic",), "t"), GreaterThanOrEqual(("timestamp",), middle), LessThan(("offset",), 40), other]
    assert list(reader.pushFilters(pushed)) == [other]
    (partition,) = reader.partitions()
    assert (partition.slices[0].offsets.start, partition.slices[0].offsets.end) == (25, 40)


@pytest.mark.parametrize(
    ("kind", "column", "value", "left"), [("EqualTo", "partition", 1, []), ("GreaterThan", "offset", 3, [4, 5])]
)
def test_only_what_filters_leave_is_searched_for_holes(
    stream: Stream, profile: None, monkeypatch: pytest.MonkeyPatch, kind: str, column: str, value: int, left: list[int]
) -> None:
    from pyspark.sql import datasource
    from pyspark.sql.types import StructType

    from emsworker.arrow.options import read_options
    from emsworker.spark.batch import FilteringReader

    searched: list[int] = []
    find_hole = scan.find_hole

    def spy(session: Any, offsets: OffsetRange) -> int:
        searched.extend(range(offsets.start, offsets.end))
        return find_hole(session, offsets)

    monkeypatch.setattr(scan, "find_hole", spy)
    topic = stream.topic("t", partitions=2)
    for offset in range(1, 6):
        insert(stream, topic.id, offset)
    reader = FilteringReader(StructType([]), read_options({"subscribe": "t", "profile": "test"}, streaming=False))
    assert list(reader.pushFilters([getattr(datasource, kind)((column,), value)])) == []
    reader.partitions()
    assert searched == left


def test_times_at_both_ends_of_the_calendar_are_compared(stream: Stream, direct: Direct) -> None:
    from pyspark.sql.datasource import GreaterThan, LessThan

    insert(stream, stream.topic("t").id, 1)
    west, east = timezone(timedelta(hours=-14)), timezone(timedelta(hours=14))
    last, first = datetime(9999, 12, 31, 23, 59, 59, tzinfo=west), datetime(1, 1, 1, tzinfo=east)
    for one, offsets in ((LessThan, [[1], []]), (GreaterThan, [[], [1]])):
        found = [direct.offsets(filters=[one(("timestamp",), at)], pushFilters="true") for at in (last, first)]
        assert found == offsets, one


def test_errors_name_what_is_wrong(stream: Stream, direct: Direct) -> None:
    assert "there is no topic 'nowhere' to read" in failure(lambda: direct.rows("nowhere"))
    stream.topic("t")
    text = failure(lambda: direct.rows(minPartitions="many", failOnDataLoss="perhaps", colour="red"))
    assert "option minPartitions = 'many': must be a whole number of 1 or more" in text
    assert "option failOnDataLoss = 'perhaps': must be true or false" in text
    assert "option colour = 'red': a batch read has no such option" in text
    text = failure(lambda: direct.rows(password="hunter2"))
    assert "name the server by EMS_URL or a profile" in text and "hunter2" not in text
    assert "has no section [nobody] with a url; it has test" in failure(lambda: direct.rows(profile="nobody"))
    assert "names no offset for t/0" in failure(lambda: direct.rows(startingOffsets='{"u":{"0":1}}'))
    for unread in ('{"t":{"0":1},"u":{"0":1}}', '{"t":{"0":1,"7":1}}'):
        for limit in ("startingOffsets", "endingOffsets"):
            assert ", which is not read" in failure(lambda limit=limit, unread=unread: direct.rows(**{limit: unread}))
    assert direct.rows(startingOffsets="Earliest", endingOffsets=" LATEST ") == []  # as Kafka's source reads them


def test_what_belongs_to_kafkas_client_is_refused_by_name(stream: Stream, direct: Direct) -> None:
    stream.topic("t")
    refused = {
        "kafka.bootstrap.servers": "there is no Kafka client here",
        "groupIdPrefix": "it is for Kafka's client; take it out",
        "kafkaConsumer.pollTimeoutMs": "it is for Kafka's client; take it out",
        "fetchOffset.numRetries": "it is for Kafka's client; take it out",
        "maxOffsetsPerTrigger": "it is for readStream; minPartitions and maxRecordsPerPartition cut a batch read",
        "engine": 'format("ems") runs in Python; emsworker.spark.read_jdbc(spark, ...) reads by JDBC',
    }
    text = failure(lambda: direct.rows(**{name: "jdbc" if name == "engine" else "1" for name in refused}))
    for name, fix in refused.items():
        assert f"option {name} = " in text and fix in text, (name, text)


def test_spark_shows_our_words(stream: Stream, read: Read) -> None:
    with pytest.raises(Exception, match="there is no topic 'nowhere' to read"):
        read("nowhere").collect()


def test_the_address_is_in_no_plan(stream: Stream, read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    fill(stream, count=1)
    frame = read()
    frame.explain(True)
    plan = capsys.readouterr().out + str(frame._jdf.queryExecution().toString())
    assert "PythonDataSource" in plan or "BatchScan" in plan
    assert "mysql://" not in plan and stream.url not in plan


def test_claims_attempts_and_dead_letters_are_tables_too(stream: Stream, read: Read, direct: Direct) -> None:
    fill(stream, count=6, partitions=1)
    topic = stream.topic("t")
    group, client = stream.group(topic, "g"), stream.client()
    claim = stream.take(topic, group, client, batch=4)
    ended = [failed(2, retry_in_s=None, dead="used up"), failed(3)]
    progress.flush(stream.session, flush_of(claim, topic, 4, failures=ended))
    (row,) = read(dataset="claims").collect()
    assert (row.group, row.topic, row.partition, row.lo, row.hi, row.ackedTo) == ("g", "t", 0, 1, 4, 4)
    assert (row.state, row.source, row.client) == ("done", "stream", client)
    attempts = read(dataset="attempts", group="g").orderBy("offset").collect()
    assert [(row.offset, row.attempt, row.outcome) for row in attempts] == [(2, 1, "failed"), (3, 1, "failed")]
    (retry,) = read(dataset="retries").collect()
    stored = stream.rows("SELECT `offset`, attempt, due_at, last_error FROM ems_retry")
    due = retry.dueAt.astimezone(UTC).replace(tzinfo=None)
    assert [(retry.offset, retry.attempt, due, retry.error)] == stored
    assert (retry.group, retry.topic, retry.partition, retry.key) == ("g", "t", 0, None)
    stream.rows("UPDATE ems_retry SET due_at = '9999-12-31'")  # as one that waits for an earlier message of its key
    assert direct.rows(dataset="retries", schema=None)[0]["dueAt"] is None
    (dead,) = read(dataset="deadletters", includeHeaders="true").collect()
    assert (dead.offset, bytes(dead.value), dead.reason, dead.attempts) == (2, b'{"n":1}', "used up", 1)
    assert "there is no group 'x' of t" in failure(lambda: direct.rows(dataset="claims", group="x"))


def test_small_pieces_of_the_log_are_read_together(stream: Stream, direct: Direct) -> None:
    fill(stream, count=40, partitions=4)
    topic = stream.topic("t")
    for name in ("g1", "g2", "g3"):
        group, client = stream.group(topic, name), stream.client()
        for partition in range(4):
            if stream.value("SELECT COUNT(*) FROM ems_message WHERE `partition` = %s AND `offset` > 0", partition):
                stream.take(topic, group, client, partition=partition)
    every = sorted((row["group"], row["partition"], row["lo"]) for row in direct.rows(dataset="claims"))
    assert every == sorted(
        (name, partition, lo)
        for name, partition, lo in stream.rows(
            "SELECT g.name, c.`partition`, c.lo FROM ems_claim c JOIN ems_group g ON g.id = c.group_id"
        )
    )
    assert len(every) >= 6
    assert len(direct.pieces(dataset="claims")) == 1
    assert len(direct.pieces(dataset="claims", partitionBytes="400")) >= len(every) // 2
    assert len(direct.pieces(dataset="claims", minPartitions="2")) >= 12, (
        "one for each group and partition, as asked for"
    )


def test_headers_are_as_the_codec_writes_them(stream: Stream, direct: Direct) -> None:
    topic = stream.topic("t")
    raw = encode_headers({"ä": "ö", "b": ""})
    insert(stream, topic.id, 1)
    with stream.sql.cursor() as cursor:
        cursor.execute("UPDATE ems_message SET headers = %s", (raw,))
    (row,) = direct.rows(includeHeaders="true")
    assert [(one["key"], one["value"]) for one in row["headers"]] == [("ä", "ö".encode()), ("b", b"")]
