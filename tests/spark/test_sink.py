"""Writing into the stream from Spark: once, whatever is run again."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from emsworker.core.errors import EmsError
from emsworker.spark import staging
from emsworker.spark.staging import SinkBatch, Staged
from tests.support.streams import Stream, in_threads

RETRYING_ROWS = 10_000


def bodies(stream: Stream) -> list[bytes]:
    return [
        body
        for (body,) in stream.rows("SELECT body FROM ems_message WHERE `offset` > 0 ORDER BY `partition`, `offset`")
    ]


def left_over(stream: Stream) -> tuple[int, int]:
    return tuple(stream.value(f"SELECT COUNT(*) FROM {table}") for table in ("ems_stage", "ems_stage_task"))  # type: ignore[return-value]


def holes(stream: Stream) -> int:
    return int(
        stream.value(
            "SELECT COALESCE(SUM(m - c), 0) FROM (SELECT MAX(`offset`) AS m, COUNT(*) AS c FROM ems_message WHERE `offset` > 0 GROUP BY topic_id, `partition`) x"
        )
    )


def writer(**options: str) -> Any:
    from emsworker.spark.source import EmsSource

    return EmsSource({"profile": "test", "topic": "t", **options}).writer(_schema(), False)


def _schema() -> Any:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField("key", StringType()), StructField("value", StringType())])


def rows(lo: int, hi: int) -> Any:
    return iter(
        [pa.record_batch({"key": [f"k{n % 3}" for n in range(lo, hi)], "value": [str(n) for n in range(lo, hi)]})]
    )


def test_a_data_frame_becomes_messages(stream: Stream, spark: Any) -> None:
    from emsworker.core.codec import decode_headers
    from emsworker.core.partitioner import partition_of

    stream.topic("t", partitions=3)
    columns = "key string, value string, headers array<struct<key string, value binary>>, topic string"
    frame = spark.createDataFrame(
        [(f"k{n}", f'{{"n":{n}}}', [("from", b"spark")], "t") for n in range(20)] + [(None, "{}", None, "u")], columns
    )
    frame.write.format("ems").options(profile="test", autoCreate=True).mode("append").save()
    found = stream.rows(
        "SELECT `key`, body, headers, size, `partition`, name, HEX(uid) FROM ems_message JOIN ems_topic t ON t.id = topic_id AND `offset` > 0"
    )
    assert len(found) == 21 and len({row[6] for row in found}) == 21
    for key, body, headers, size, partition, topic, _ in found:
        assert size == len(body)
        if topic == "t":
            assert dict(decode_headers(headers)) == {"from": "spark"}
            assert partition == partition_of(key, 3)
    assert {row[5] for row in found} == {"t", "u"}
    assert left_over(stream) == (0, 0) and holes(stream) == 0


def test_a_task_that_is_run_again_writes_once_and_keeps_the_order_of_a_key(
    stream: Stream, spark: Any, tmp_path: Path
) -> None:
    stream.topic("t", partitions=2)
    marker = str(tmp_path / "failed")

    def fails_once(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            yield batch
            if number == 2 and batch.column("value")[0].as_py() < 5000:
                try:
                    Path(marker).touch(exist_ok=False)
                except FileExistsError:
                    continue
                raise RuntimeError("on purpose")

    frame = spark.range(0, RETRYING_ROWS, 1, 2).selectExpr("concat('k', id % 7) AS key", "id AS value")
    frame = frame.mapInArrow(fails_once, "key string, value bigint").selectExpr("key", "string(value) AS value")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        frame.write.format("ems").option("profile", "test").option("topic", "t").mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(marker).exists()
    assert sorted(map(int, bodies(stream))) == list(range(RETRYING_ROWS))
    by_key: dict[bytes, list[int]] = {}
    for key, body in stream.rows(
        "SELECT `key`, body FROM ems_message WHERE `offset` > 0 ORDER BY `partition`, `offset`"
    ):
        by_key.setdefault(key, []).append(int(body))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert stream.value("SELECT COUNT(*) FROM ems_stage_task WHERE sink IS NOT NULL") == 0


def test_a_commit_that_is_repeated_and_an_abort_after_it_change_nothing(stream: Stream, profile: None) -> None:
    stream.topic("t")
    one = writer(jobId="daily")
    messages = [one.write(rows(0, 10)), one.write(rows(10, 20)), None]
    one.commit(messages)
    one.commit(messages)
    one.abort(messages)
    assert bodies(stream) == [b"%d" % n for n in range(20)]
    again = writer(jobId="daily")
    again.commit([again.write(rows(0, 20))])
    assert len(bodies(stream)) == 20 and left_over(stream) == (0, 0)
    other = writer(jobId="tomorrow")
    other.commit([other.write(rows(20, 21))])
    assert len(bodies(stream)) == 21


def test_a_job_id_that_is_used_again_for_other_data_is_told(
    stream: Stream, profile: None, caplog: pytest.LogCaptureFixture
) -> None:
    stream.topic("t")
    for count in (3, 3, 4):
        one = writer(jobId="daily")
        one.commit([one.write(rows(0, count))])
    assert [record.getMessage() for record in caplog.records if record.name == "emsworker.spark.sink"] == [
        "batch 0 of job:daily was written before, with 3 rows; the 4 of this run are other data and are NOT written: "
        "give them a jobId of their own"
    ]
    assert len(bodies(stream)) == 3


def typed(**columns: tuple[Any, Any, list[Any]]) -> tuple[Any, Any]:
    """A data frame's schema and its rows: columns by name, with their types for Spark and for Arrow."""
    from pyspark.sql.types import StructField, StructType

    schema = StructType([StructField(name, spark) for name, (spark, _, _) in columns.items()])
    batch = pa.record_batch({name: pa.array(values, arrow) for name, (_, arrow, values) in columns.items()})
    return schema, batch


def write(schema: Any, batches: Any, **options: str) -> None:
    """Write as Spark's driver and one task do, without Java."""
    from emsworker.spark.source import EmsSource

    one = EmsSource({"profile": "test", "topic": "t", **options}).writer(schema, False)
    one.commit([one.write(iter(batches))])


def test_rows_have_priorities_and_delays(stream: Stream, profile: None) -> None:
    from pyspark.sql.types import DoubleType, IntegerType, StringType

    from emsworker.core.codec import decode_headers
    from emsworker.store.topics import delete_topic

    topic = stream.topic("t", priorities=2)
    schema, batch = typed(
        value=(StringType(), pa.string(), ["now", "soon", "later", "high", "both"]),
        priority=(IntegerType(), pa.int32(), [None, 0, None, 9, 7]),
        delay=(DoubleType(), pa.float64(), [None, 0.0, 60.0, None, 90.5]),
    )
    write(schema, [batch])
    assert stream.rows("SELECT body, `partition` FROM ems_message WHERE `offset` > 0 ORDER BY `partition`, `offset`") == [
        (b"now", 0), (b"soon", 0), (b"high", 5000),
    ]  # fmt: skip
    waiting = stream.rows(
        "SELECT body, level, `partition`, headers, ROUND(TIMESTAMPDIFF(MICROSECOND, created_at, due_at) / 1e6, 1) + 0e0"
        " FROM ems_outbox ORDER BY due_at"
    )
    assert [(body, level, partition, due) for body, level, partition, _, due in waiting] == [
        (b"later", 0, None, 60.0), (b"both", 5, None, 90.5),
    ]  # fmt: skip
    assert dict(decode_headers(waiting[1][3])) == {"ems-priority": "7"}
    for column, value, why in (
        ("priority", 10, "priority 10 is not valid"),
        ("delay", -1.0, "a delay of -1 s for topic"),
    ):
        kind = (IntegerType(), pa.int32()) if column == "priority" else (DoubleType(), pa.float64())
        schema, batch = typed(value=(StringType(), pa.string(), ["x"]), **{column: (*kind, [value])})
        with pytest.raises(EmsError, match=why):
            write(schema, [batch])
    late = writer(jobId="late")
    message = late.write(iter([pa.record_batch({"key": ["a"], "value": ["b"]})]))
    stream.rows("UPDATE ems_stage SET delay_us = 1")
    delete_topic(stream.session, topic, force=True)
    with pytest.raises(EmsError, match="a topic or partition that it writes to was deleted"):
        late.commit([message])
    assert stream.rows("SELECT * FROM ems_outbox") == []


def test_what_was_read_can_be_written_and_keeps_its_priority(stream: Stream, profile: None) -> None:
    from emsworker.spark.source import EmsSource

    stream.topic("from", partitions=2, priorities=10)
    stream.topic("t", partitions=2, priorities=10)
    app = stream.app()
    app.send("from", {"n": 1}, key="k", priority=3, headers={"h": "1"}, tag="x")
    app.send("from", {"n": 2}, priority=0)
    for options in ({"includeMeta": "true", "includeHeaders": "true"}, {"includeMeta": "true"}):
        source = EmsSource({"profile": "test", "subscribe": "from", **options})
        reader = source.reader(source.schema())
        write(source.schema(), [batch for one in reader.partitions() for batch in reader.read(one)])
    columns = "SELECT `partition`, `key`, tag, headers, body FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0"
    sent = sorted(stream.rows(f"{columns} WHERE t.name = 'from'"))
    assert sorted(stream.rows(f"{columns} WHERE t.name = 't'")) == sorted(sent * 2)
    assert {row[0] // 1000 for row in sent} == {0, 3}


def test_a_mistyped_topic_is_not_created(stream: Stream, profile: None) -> None:
    from emsworker.core.errors import UnknownTopic

    with pytest.raises(UnknownTopic, match=r"there is no topic 'tt'.*autoCreate=true"):
        writer(topic="tt").write(rows(0, 1))
    assert stream.rows("SELECT * FROM ems_topic") == [] and left_over(stream) == (0, 0)
    one = writer(topic="tt", autoCreate="true")
    one.commit([one.write(rows(0, 1))])
    assert bodies(stream) == [b"0"]


def test_an_aborted_job_leaves_nothing(stream: Stream, profile: None) -> None:
    stream.topic("t")
    one = writer()
    messages = [one.write(rows(0, 10)), None]
    one.abort(messages)
    assert bodies(stream) == [] and left_over(stream) == (0, 0)
    with pytest.raises(staging.StagingLost, match="rows that a task staged are gone; nothing was written"):
        one.commit([messages[0]])
    assert stream.value("SELECT COUNT(*) FROM ems_ledger") == 0


def test_an_abort_that_finds_no_server_does_not_hide_why_spark_aborts(
    stream: Stream, profile: None, profiles: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream.topic("t")
    one = writer()
    messages = [one.write(rows(0, 10)), None]
    profiles.write_text("[test]\nurl = mysql://ems:x@127.0.0.1:1/ems\n", encoding="utf-8")
    monkeypatch.setenv("EMS_PUBLISH_TIMEOUT_S", "0.1")
    one.abort(messages)
    assert "the rows that 1 task staged stay until a later write deletes them: MySQL could not" in caplog.text
    one.abort([None])  # nothing is staged: it does not even look for the server


def chunks(stream: Stream, topic_id: int, token: bytes, count: int, first: int = 0) -> Staged:
    from emsworker.core.ids import new_uid
    from emsworker.core.model import NewMessage

    staging.begin_task(stream.session, token)
    for chunk in range(count):
        message = NewMessage(new_uid(), b"k", None, b"", b"%d" % (first + chunk))
        for _ in range(2):  # an answer was lost
            staging.stage(stream.session, token, chunk, [staging.StagedRow(topic_id, 0, message)])
    return Staged(token, count)


def test_a_mover_that_dies_is_followed_by_the_next_run(stream: Stream) -> None:
    topic = stream.topic("t")
    batch = SinkBatch("query:q", 7)
    first = chunks(stream, topic.id, b"a" * 16, 4)
    assert staging.commit(stream.session, batch, [first])
    args = batch.args | {"moved": 0, "producer_id": "p", "token": first.token, "chunk": 0}
    staging._move_chunk(stream.session, args)  # and then it dies
    assert bodies(stream) == [b"0"]
    second = chunks(stream, topic.id, b"b" * 16, 4)
    assert not staging.commit(stream.session, batch, [second])
    staging.give_up(stream.session, [first, second])
    assert staging.move(stream.session, batch, "p") == {topic.id}
    assert bodies(stream) == [b"0", b"1", b"2", b"3"] and left_over(stream) == (0, 0)
    assert staging.move(stream.session, batch, "p") == set()


def test_movers_at_once_move_each_chunk_once(stream: Stream) -> None:
    topic = stream.topic("t")
    batch = SinkBatch("query:q", 1)
    staged = [chunks(stream, topic.id, bytes([n]) * 16, 15, n * 15) for n in range(4)]
    assert staging.commit(stream.session, batch, staged)

    def mover(number: int) -> None:
        with stream.new_session() as session:
            staging.move(session, batch, "p")

    in_threads(4, mover)
    assert bodies(stream) == [b"%d" % n for n in range(60)]
    assert holes(stream) == 0 and left_over(stream) == (0, 0)


def test_commits_at_once_have_one_winner(stream: Stream) -> None:
    topic = stream.topic("t")
    batch = SinkBatch("query:q", 1)
    staged = [chunks(stream, topic.id, bytes([n]) * 16, 3) for n in range(4)]

    def committer(number: int) -> bool:
        with stream.new_session() as session:
            won = staging.commit(session, batch, [staged[number]])
            if not won:
                staging.give_up(session, [staged[number]])
            staging.move(session, batch, "p")
            return won

    assert sum(in_threads(4, committer)) == 1
    assert bodies(stream) == [b"0", b"1", b"2"] and left_over(stream) == (0, 0)


def test_what_dead_jobs_left_is_tidied(stream: Stream) -> None:
    topic = stream.topic("t")
    committed, abandoned = chunks(stream, topic.id, b"a" * 16, 2), chunks(stream, topic.id, b"b" * 16, 2)
    assert staging.commit(stream.session, SinkBatch("job:dead"), [committed])
    assert staging.tidy(stream.session, "p") == set()
    assert left_over(stream) == (4, 2)
    assert staging.tidy(stream.session, "p", abandoned_s=-1, stuck_s=-1) == {topic.id}
    assert bodies(stream) == [b"0", b"1"] and left_over(stream) == (0, 0)
    with pytest.raises(staging.StagingLost):
        staging.commit(stream.session, SinkBatch("job:late"), [abandoned])


def test_producers_beside_a_mover_neither_lose_nor_double(stream: Stream) -> None:
    topic = stream.topic("t")
    staged = chunks(stream, topic.id, b"a" * 16, 40)
    assert staging.commit(stream.session, SinkBatch("job:x"), [staged])
    app = stream.app()

    def work(number: int) -> None:
        if number:
            for n in range(20):
                app.send("t", {"from": number, "n": n})
        else:
            with stream.new_session() as session:
                staging.move(session, SinkBatch("job:x"), "p")

    in_threads(3, work)
    assert len(bodies(stream)) == 40 + 40 and holes(stream) == 0
    moved = [body for body in bodies(stream) if not body.startswith(b"{")]
    assert moved == [b"%d" % n for n in range(40)]


def test_the_ledger_does_not_grow(stream: Stream) -> None:
    stream.topic("t")
    for number in range(105):
        staging.commit(stream.session, SinkBatch("query:q", number), [])
        staging.move(stream.session, SinkBatch("query:q", number), "p")
    assert stream.rows("SELECT MIN(batch), MAX(batch) FROM ems_ledger") == [(4, 104)]
    for name in ("old", "new"):
        staging.commit(stream.session, SinkBatch(f"job:{name}"), [])
        staging.move(stream.session, SinkBatch(f"job:{name}"), "p")
    stream.rows("UPDATE ems_ledger SET moved_at = NOW(6) - INTERVAL 91 DAY WHERE sink <> 'job:new'")
    staging.tidy(stream.session, "p")
    assert stream.rows("SELECT DISTINCT sink FROM ems_ledger ORDER BY sink") == [(b"job:new",), (b"query:q",)]


def test_a_deleted_topic_is_named(stream: Stream) -> None:
    from emsworker.core.errors import UnknownTopic
    from emsworker.store.topics import delete_topic

    topic = stream.topic("t")
    staged = chunks(stream, topic.id, b"a" * 16, 1)
    assert staging.commit(stream.session, SinkBatch("job:x"), [staged])
    delete_topic(stream.session, topic)
    with pytest.raises(UnknownTopic, match="batch 0 of job:x is committed, but a topic or partition"):
        staging.move(stream.session, SinkBatch("job:x"), "p")
    assert bodies(stream) == []


def test_bad_rows_and_options_are_named(stream: Stream, profile: None) -> None:
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    from emsworker.spark.source import EmsSource

    wrong = StructType([StructField("key", IntegerType()), StructField("colour", StringType())])
    with pytest.raises(EmsError) as caught:
        EmsSource({"profile": "test"}).writer(wrong, False)
    text = str(caught.value)
    for part in (
        "column key = int: must be string or binary",
        "column colour = string",
        "column value = missing",
        "option topic",
    ):
        assert part in text
    with pytest.raises(EmsError, match=r"option colour = 'red': a batch write has no such option; .*mode = overwrite"):
        EmsSource({"colour": "red"}).writer(_schema(), True)
    stream.topic("t", max_message_bytes=5)
    with pytest.raises(EmsError, match="a value of 6 bytes is over the limit of topic 't', 5 bytes"):
        writer().write(iter([pa.record_batch({"key": ["a"], "value": ["123456"]})]))
    with pytest.raises(EmsError, match="a row for topic 't' has no value"):
        writer().write(iter([pa.record_batch({"key": ["a"], "value": pa.array([None], pa.string())})]))


def test_a_query_writes_each_micro_batch_once(stream: Stream, spark: Any, tmp_path: Path) -> None:
    """Its checkpoint is set back to before its last commit, as a kill there leaves it: the batch is run again."""
    app = stream.app()
    stream.topic("in", partitions=2)
    stream.topic("t", partitions=2)

    def run() -> int:
        reader = spark.readStream.format("ems").option("profile", "test").option("subscribe", "in")
        frame = reader.option("startingOffsets", "earliest").load().select("key", "value")
        sink = frame.writeStream.format("ems").option("profile", "test").option("topic", "t")
        query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    def copied() -> list[bytes]:
        return sorted(
            body
            for (body,) in stream.rows(
                "SELECT body FROM ems_message m JOIN ems_topic t ON t.id = topic_id AND `offset` > 0 WHERE name = 't'"
            )
        )

    for n in range(30):
        app.send("in", n, key=f"k{n % 5}")
    run()
    assert copied() == sorted(b"%d" % n for n in range(30))
    last = max(
        (path for path in (tmp_path / "commits").iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
    )
    last.unlink()
    (tmp_path / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    assert run() == 30
    assert copied() == sorted(b"%d" % n for n in range(30))
    app.send("in", 30)
    run()
    assert copied() == sorted(b"%d" % n for n in range(31))
    assert left_over(stream) == (0, 0)
    assert stream.value("SELECT COUNT(DISTINCT sink) FROM ems_ledger WHERE sink LIKE 'query:%%'") == 1
