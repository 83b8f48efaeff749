"""Topics on several servers in Spark: batches and queries read each where it is kept."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin.placement import TopicMove
from emsworker.core.errors import StoreUnavailable, UnknownTopic
from emsworker.local import LocalDatabase
from tests.support.several import Several, several_databases


@pytest.fixture
def several(server: LocalDatabase, profiles: Path) -> Iterator[Several]:
    with several_databases(server, "main", "east") as several:
        servers = several.setting(east="orders.*")
        profiles.write_text(
            f"[test]\nurl = {several.url}\nservers = {servers}\nread_url = {several.url}\n", encoding="utf-8"
        )
        app = Ems(url=several.url, servers=servers)
        app.send_many("orders.new", range(5))
        app.send_many("mail", range(10, 13))
        app.close()
        yield several


def test_a_batch_reads_each_topic_where_it_is_kept(spark_session: Any, several: Several) -> None:
    def load(**options: str) -> Any:
        return spark_session.read.format("ems").options(profile="test", **options).load()

    for found in (load(subscribe="mail,orders.new"), load(subscribePattern=".*")):
        rows = found.selectExpr("topic", "CAST(value AS STRING) AS value").collect()
        assert sorted((row["topic"], int(row["value"])) for row in rows) == [
            *(("mail", n) for n in range(10, 13)),
            *(("orders.new", n) for n in range(5)),
        ]
    assert {row["topic"] for row in load(subscribePattern=".*", server="east").collect()} == {"orders.new"}


def stream_reader(**given: str) -> Any:
    from pyspark.sql.types import StructType

    from emsworker.spark.stream import EmsStreamReader

    return EmsStreamReader(StructType([]), {"profile": "test", "startingOffsets": "earliest", **given})


class Query:
    """A streaming query that appends to files, run until nothing is left."""

    def __init__(self, spark: Any, folder: Path, **options: str) -> None:
        self._spark, self._folder, self._options = spark, folder, options

    def run(self) -> list[tuple[str, int]]:
        """Run it, and return all rows that it has ever written: topic and value."""
        (
            self._spark.readStream.format("ems")
            .options(profile="test", startingOffsets="earliest", **self._options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(self._folder / "rows"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        rows = self._spark.read.parquet(str(self._folder / "rows")).selectExpr(
            "topic", "CAST(value AS STRING) AS value"
        )
        return sorted((row["topic"], int(row["value"])) for row in rows.collect())


def test_a_query_reads_topics_of_several_servers(spark_session: Any, several: Several, tmp_path: Path) -> None:
    query = Query(spark_session, tmp_path, subscribePattern=".*")
    first = [*(("mail", n) for n in range(10, 13)), *(("orders.new", n) for n in range(5))]
    assert query.run() == first
    app = Ems(url=several.url, servers=several.setting(east="orders.*"))
    app.send("orders.new", 5)
    app.send("orders.late", 20)
    app.send("mail", 13)
    assert query.run() == sorted([*first, ("orders.new", 5), ("orders.late", 20), ("mail", 13)])
    assert query.run() == sorted([*first, ("orders.new", 5), ("orders.late", 20), ("mail", 13)])
    app.close()


def test_a_query_goes_on_with_a_topic_that_moves_away_and_back(
    spark_session: Any, several: Several, tmp_path: Path
) -> None:
    query = Query(spark_session, tmp_path, subscribe="orders.new,mail")
    sent = [("mail", n) for n in range(10, 13)] + [("orders.new", n) for n in range(5)]
    assert query.run() == sent
    app = Ems(url=several.url, servers=several.setting(east="orders.*"))
    number = 5
    for target in ("main", "east"):
        for _ in range(3):  # left behind on the server that keeps it until now
            app.send("orders.new", number)
            number += 1
        TopicMove(app, "orders.new", target).run(timeout_s=30)
        app.send("orders.new", number)
        number += 1
    app.close()
    assert query.run() == [("mail", n) for n in range(10, 13)] + [("orders.new", n) for n in range(number)]


def test_the_rest_of_a_topic_that_has_moved_is_read_first(several: Several) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    reader, limit = stream_reader(subscribe="orders.new"), ReadAllAvailable()
    begin = reader.latestOffset(reader.initialOffset(), limit)
    assert list(begin) == ["east/orders.new"]
    app = Ems(url=several.url, servers=several.setting(east="orders.*"))
    TopicMove(app, "orders.new", "main").run(timeout_s=30)
    app.send("orders.new", 5)
    app.close()
    seen = [begin]
    while len(seen) == 1 or seen[-1] != seen[-2]:
        seen.append(reader.latestOffset(seen[-1], limit))
    offsets = [(one["east/orders.new"]["0"], one.get("orders.new", {}).get("0")) for one in seen]
    assert offsets == [(1, None), (6, 1), (6, 2), (6, 2)]
    values = [[part.slices[0].server for part in reader.partitions(a, b)] for a, b in pairwise(seen)]
    assert values == [["east"], ["main"], []]


def test_offsets_by_hand_are_those_of_the_server_that_keeps_a_topic(several: Several) -> None:
    app = Ems(url=several.url, servers=several.setting(east="orders.*"))
    TopicMove(app, "orders.new", "main").run(timeout_s=30)
    app.send_many("orders.new", range(5, 8))
    app.close()
    for given, expected in (
        ({"startingOffsets": '{"orders.new": {"0": 2}}'}, (-1, 2)),
        ({"startingOffsets": "earliest"}, (-2, -2)),
        ({"startingTimestamp": "1000"}, (-3, -3)),
    ):
        begin = stream_reader(subscribe="orders.new", **given).initialOffset()
        assert (begin["east/orders.new"]["0"], begin["orders.new"]["0"]) == expected


def test_a_server_that_is_away_holds_up_its_own_topics_only(several: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    reader, limit = stream_reader(subscribe="orders.new,mail"), ReadAllAvailable()
    begin = reader.latestOffset(reader.initialOffset(), limit)
    east = reader.servers["east"]

    def away(work: Any) -> Any:
        raise StoreUnavailable("east is away")

    with monkeypatch.context() as patch:
        patch.setattr(east, "call", away)
        end = reader.latestOffset(begin, limit)
        assert (end["mail"]["0"], end["east/orders.new"]) == (4, begin["east/orders.new"])
        assert [part.slices[0].topic for part in reader.partitions(begin, end)] == ["mail"]
        with pytest.raises(StoreUnavailable, match="east is away"):
            stream_like = stream_reader(subscribe="mail")
            patch.setattr(stream_like.servers["east"], "call", away)
            stream_like.initialOffset()
    later = reader.latestOffset(end, limit)
    assert later["east/orders.new"]["0"] == 6
    assert [part.slices[0].topic for part in reader.partitions(end, later)] == ["orders.new"]


def test_a_query_of_one_server_by_name(several: Several) -> None:
    assert list(stream_reader(subscribe="orders.new", server="east").initialOffset()) == ["orders.new"]
    with pytest.raises(UnknownTopic, match="there is no topic 'mail' to read"):
        stream_reader(subscribe="mail", server="east").initialOffset()
    with pytest.raises(UnknownTopic, match="there is no topic 'nothing' to read"):
        stream_reader(subscribe="mail,nothing").initialOffset()
