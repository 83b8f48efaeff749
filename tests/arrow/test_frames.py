"""Reading the stream as Arrow, and with pandas, Polars and DuckDB, without Spark."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emsworker import EmsError, UnknownTopic
from emsworker.arrow import DataLoss, OutOfRange, read_arrow, read_pandas, scan, scan_polars
from emsworker.core.ids import uid_text
from emsworker.store.groups import progress
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, wait_until

pytest.importorskip("pyarrow")

KAFKA = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def fill(stream: Stream, topic: str = "t", count: int = 50) -> None:
    """Messages in two partitions, in each one every 1000 s."""
    app = stream.app()
    stream.topic(topic, partitions=2)
    app.send_many(topic, [{"n": n} for n in range(count)], key="a", headers={"from": "test"})
    app.send_many(topic, [{"n": n} for n in range(count)], key="d")
    stream.rows("UPDATE ems_message SET born_at = '2026-01-01' + INTERVAL `offset` * 1000 SECOND")


def stored(stream: Stream) -> list[tuple[Any, ...]]:
    """The messages, recounted by a statement of the test's own."""
    found = stream.rows(
        "SELECT m.`key`, m.body, t.name, m.`partition`, m.`offset`, m.born_at FROM ems_message m"
        " JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 ORDER BY t.name, m.`partition`, m.`offset`"
    )
    return [(*row[:5], row[5].replace(tzinfo=UTC), 1) for row in found]


def born(offset: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=1000 * offset)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[tuple[str, ...], int]]]:
    """What comes from the server: the columns and the number of rows of each fetch."""
    found: list[tuple[tuple[str, ...], int]] = []
    fetch = scan.fetch_packed

    def spy(session: Any, query: Any, offsets: Any) -> Any:
        part = fetch(session, query=query, offsets=offsets)
        found.append((query.columns, part.count))
        return part

    monkeypatch.setattr(scan, "fetch_packed", spy)
    yield found


def failure(work: Callable[[], Any]) -> str:
    with pytest.raises(EmsError) as caught:
        work()
    return str(caught.value)


def test_every_reader_returns_the_rows_of_the_table(named: Stream) -> None:
    import duckdb

    fill(named, "t")
    fill(named, "u", 3)
    every = stored(named)
    assert len(every) == 106
    given: dict[str, Any] = {"subscribe": ["t", "u"]}
    reader = read_arrow({"subscribe": "t,u"})
    assert reader.schema.names == KAFKA
    assert [tuple(row.values()) for row in reader.read_all().to_pylist()] == every
    frame = read_pandas(**given)
    assert list(frame.columns) == KAFKA
    assert [(*row[:5], row[5].to_pydatetime(), row[6]) for row in frame.itertuples(index=False)] == every
    assert scan_polars(**given).collect().rows() == every
    with duckdb.connect() as db:
        messages = read_arrow(**given, columns=["topic", "value"])
        db.register("messages", messages)
        found = db.sql(
            "SELECT topic, count(*), sum((decode(value)->>'n')::int) FROM messages GROUP BY topic ORDER BY topic"
        ).fetchall()
    assert found == [("t", 100, 2 * sum(range(50))), ("u", 6, 2 * sum(range(3)))]
    assert "pyspark" not in sys.modules


def test_headers_other_columns_and_the_log_of_groups(named: Stream) -> None:
    fill(named, count=2)
    (first,) = read_arrow(subscribe="t", include_headers=True, include_meta=True, limit=1).read_all().to_pylist()
    assert first["headers"] == [{"key": "from", "value": b"test"}] or first["headers"] == []
    assert first["kind"] == "message"
    uids = {uid_text(uid) for (uid,) in named.rows("SELECT uid FROM ems_message WHERE `offset` > 0")}
    assert set(scan_polars(subscribe="t", include_meta=True).select("uid").collect()["uid"]) == uids
    topic = named.topic("log")
    named.app().send_many("log", [1, 2, 3])
    group, client = named.group(topic, "g"), named.client()
    claim = named.take(topic, group, client, batch=3)
    progress.flush(named.session, flush_of(claim, topic, 3, failures=[failed(2, retry_in_s=None, dead="used up")]))
    (dead,) = read_arrow(subscribe="log", dataset="deadletters").read_all().to_pylist()
    assert (dead["group"], dead["offset"], dead["value"], dead["reason"]) == ("g", 2, b"2", "used up")
    claims = scan_polars(subscribe="log", dataset="claims").collect()
    assert claims.select("group", "lo", "hi", "ackedTo").rows() == [("g", 1, 3, 3)]


def test_only_what_is_asked_for_is_fetched(named: Stream, fetched: list[tuple[tuple[str, ...], int]]) -> None:
    fill(named, "t")
    fill(named, "u")
    every = [row for row in stored(named) if row[2] == "t"]
    number = every[0][3]

    def asked(**more: Any) -> list[int]:
        fetched.clear()
        read = read_arrow(subscribe=["t", "u"], columns=["offset"], **more).read_all()
        return [row["offset"] for row in read.to_pylist()]

    mine = [("topic", "==", "t"), ("partition", "in", [number])]
    assert asked(filters=mine) == [row[4] for row in every if row[3] == number]
    assert {columns for columns, _ in fetched} == {("offset",)}
    assert asked(filters=[*mine, ("offset", ">", 10), ("offset", "<=", 12)]) == [11, 12]
    assert fetched == [(("offset",), 2)]
    assert asked(filters=[*mine, ("timestamp", ">=", born(20)), ("timestamp", "<", born(23))]) == [20, 21, 22]
    assert fetched == [(("offset",), 3)]
    assert asked(limit=7) == [1, 2, 3, 4, 5, 6, 7]
    assert sum(count for _, count in fetched) == 7
    assert asked(limit=0) == [] == fetched
    assert asked(starting_offsets={"t": {0: 5, 1: -2}, "u": {0: -1 + 1, 1: 1}}, limit=1) in ([5], [1])
    at = {"starting_timestamp": born(30), "ending_timestamp": born(32), "filters": mine}
    assert asked(**at) == [30, 31]


def test_polars_pushes_columns_predicates_and_limits(named: Stream, fetched: list[tuple[tuple[str, ...], int]]) -> None:
    import polars as pl

    fill(named)
    number = stored(named)[0][3]
    frame = scan_polars(subscribe="t")
    whole = frame.collect()
    offset, time, topic, partition = (pl.col(name) for name in ("offset", "timestamp", "topic", "partition"))
    nanoseconds = pl.lit(born(7)).dt.cast_time_unit("ns").dt.offset_by("500ns")
    fewest: list[tuple[pl.Expr, int]] = [  # the rows that come from the server
        ((partition == number) & (offset > 10) & (offset <= 12) & (pl.col("value") != b""), 2),
        (partition.is_in([number]) & offset.is_between(3, 6, closed="left"), 4),
        ((topic == "t") & topic.is_in(["t", "u"]) & (pl.lit(48) < offset), 4),
        ((time >= born(20)) & (time < born(22)), 6),  # the bounds are accepted, and filtered here
        (topic == "u", 0),
        ((offset == 3) | (topic == "u"), 100),
        (offset.cast(pl.Float64) > 49.5, 100),
        (pl.col("key") == b"a", 100),
        ((time > nanoseconds) & (offset < 9), 14),
    ]
    for predicate, count in fewest:
        fetched.clear()
        assert frame.filter(predicate).collect().equals(whole.filter(predicate)), predicate
        assert sum(rows for _, rows in fetched) <= count, predicate
    fetched.clear()
    assert frame.select((offset * 2).sum()).collect().item() == whole["offset"].sum() * 2
    assert {columns for columns, _ in fetched} == {("offset",)}
    fetched.clear()
    assert frame.head(3).filter(offset > 1).collect().equals(whole.head(3).filter(offset > 1))
    assert sum(rows for _, rows in fetched) == 3
    assert frame.filter(offset > 1).head(3).collect().equals(whole.filter(offset > 1).head(3))
    named.app().send("t", {"n": 100}, key="a")
    assert frame.select(pl.len()).collect().item() == 101, "it is read when it is collected"


def test_a_reader_holds_two_fetches_and_one_connection(
    named: Stream, fetched: list[tuple[tuple[str, ...], int]]
) -> None:
    named.topic("t")
    named.app().send_many("t", ["x" * 1000] * 20)
    named.app().send("t", "x" * 9000)
    threads = len(named.rows("SHOW PROCESSLIST"))
    reader = read_arrow(subscribe="t", columns=["value", "topic"], fetch_bytes="4k")
    assert fetched == []
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:  # as an engine with threads drives it
        sizes = [first.submit(reader.read_next_batch).result().num_rows]
        assert len(fetched) <= 3, "one that was too large, one that is used, and the next one"
        assert len(named.rows("SHOW PROCESSLIST")) == threads + 1
        sizes.append(second.submit(reader.read_next_batch).result().num_rows)
        assert len(fetched) <= 4 and len(named.rows("SHOW PROCESSLIST")) == threads + 1
    sizes += [batch.num_rows for batch in reader]
    assert sum(sizes) == 21 and max(sizes) <= 4 and sizes[-1] == 1
    batches = scan_polars(subscribe="t", fetch_bytes="4k").collect_batches(chunk_size=2)
    fetched.clear()
    assert next(batches).height == 2 and len(fetched) < 6, "Polars does not read ahead without a limit"
    assert sum(batch.height for batch in batches) == 19
    left = read_arrow(subscribe="t", fetch_bytes="4k")
    left.read_next_batch()
    del left
    wait_until(lambda: len(named.rows("SHOW PROCESSLIST")) == threads, what="the closed connection")


def test_a_read_ends_where_it_was_planned_and_tells_of_loss(named: Stream) -> None:
    fill(named, count=5)
    reader = read_arrow(subscribe="t")
    lossy = read_arrow(subscribe="t", fail_on_data_loss=False)
    named.app().send("t", {"n": 100}, key="a")
    assert reader.read_all().num_rows == 10
    doomed = read_arrow(subscribe="t", columns=["offset"])
    rows.trim(named.rows, 4)
    with pytest.raises(DataLoss, match=r"offsets 1 to 3 of t/\d were deleted while they were read"):
        doomed.read_all()
    with pytest.raises(DataLoss, match="offsets 1 to 3 of"):
        scan_polars(assign={"t": [0, 1]}, starting_offsets={"t": {0: 1, 1: 1}}).collect()
    assert lossy.read_all()["offset"].to_pylist() == [4, 5, 4, 5]


def test_what_is_wrong_is_named_with_the_words_of_spark(named: Stream) -> None:
    fill(named, count=1)
    for read in (read_arrow, read_pandas, scan_polars):
        with pytest.raises(UnknownTopic, match="there is no topic 'nowhere' to read"):
            read(subscribe="nowhere")
        text = failure(lambda read=read: read({"colour": "red"}, fail_on_data_loss="perhaps", password="hunter2"))
        assert "option failOnDataLoss = 'perhaps': must be true or false" in text
        assert "option colour = 'red': a batch read has no such option" in text
        assert "option subscribe = not given: give exactly one of" in text
        assert "name the server by EMS_URL or a profile" in text and "hunter2" not in text
    with pytest.raises(OutOfRange, match="names no offset for t/"):
        read_arrow(subscribe="t", starting_offsets={"t": {0: 1}})
    wrong: dict[str, dict[str, Any]] = {
        "column = 'colour': dataset=messages has no such column; it has key,": {"columns": ["colour"]},
        "column = 'key': it is named twice": {"columns": ["key", "key"]},
        "columns = []: name one or more": {"columns": []},
        "limit = -1: must be a whole number": {"limit": -1},
        "filter key == = b'k': the server compares topic, partition, offset, timestamp;": {
            "filters": [("key", "==", b"k")]
        },
        "filter offset in = [1]: its operator must be one of ==, <": {"filters": [("offset", "in", [1])]},
        "filter offset == = 'one': its value must be a whole number": {"filters": [("offset", "==", "one")]},
        "its value must be a datetime": {"filters": [("timestamp", ">", "2026-01-01")]},
        "filters = 'offset > 1': must be a list of tuples like": {"filters": "offset > 1"},
        "columns = 'offset': must be a list of columns like": {"columns": "offset"},
        "option group = 5: must be text": {"group": 5},
        "option profile = b'p': must be text": {"profile": b"p"},
        "each must be a tuple like": {"filters": ["offset > 1"]},
    }
    for text, more in wrong.items():
        assert text in failure(lambda more=more: read_arrow(subscribe="t", **more)), text
    misnamed: dict[str, Any] = {
        "options = 't': must be a mapping of options by their names in Spark; name topics by subscribe=": "t",
        "options = [('subscribe', 't')]: must be a mapping of options": [("subscribe", "t")],
        "option subscribe = 5: must be text, or a list of topics": {"subscribe": 5},
        "option subscribe = ['t', 5]: must be text, or a list of topics": {"subscribe": ["t", 5]},
        "option subscribePattern = ['t']: must be text": {"subscribePattern": ["t"]},
    }
    for text, options in misnamed.items():
        for read in (read_arrow, read_pandas, scan_polars):
            assert text in failure(lambda read=read, options=options: read(options)), text


def test_a_time_without_a_zone_is_utc(named: Stream) -> None:
    fill(named, count=5)
    naive = born(3).replace(tzinfo=None)
    for more in (
        {"starting_timestamp": naive},
        {"starting_offsets_by_timestamp": {"t": {0: naive, 1: naive}}},
        {"filters": [("timestamp", ">=", naive)]},
    ):
        arguments: dict[str, Any] = more
        assert sorted(read_arrow(subscribe="t", **arguments).read_all()["offset"].to_pylist()) == [3, 3, 4, 4, 5, 5]
