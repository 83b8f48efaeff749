"""Topics on several servers in Spark: a batch reads each where it is kept, a query reads one server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.errors import ConfigError
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


def test_a_query_reads_the_server_of_its_topics(spark_session: Any, several: Several, tmp_path: Path) -> None:
    stream = spark_session.readStream.format("ems").option("profile", "test").option("startingOffsets", "earliest")
    query = (
        stream.option("subscribe", "orders.new")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark_session.read.parquet(str(tmp_path / "rows")).selectExpr("CAST(value AS STRING) AS value").collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(5))


@pytest.mark.parametrize("subscription", [{"subscribe": "orders.new,mail"}, {"subscribePattern": "orders.*"}])
def test_a_query_of_several_servers_is_refused(several: Several, subscription: dict[str, str]) -> None:
    from pyspark.sql.types import StructType

    from emsworker.arrow.options import read_options
    from emsworker.spark.stream import EmsStreamReader

    given = {"profile": "test", "startingOffsets": "earliest", **subscription}
    reader = EmsStreamReader(StructType([]), read_options(given, streaming=True))
    with pytest.raises(
        ConfigError, match=r"option server = not given: a query reads one server: name it \(main, east\)"
    ):
        reader.initialOffset()
    given |= {"server": "east"} | ({"subscribe": "orders.new"} if "subscribe" in given else {})
    named = EmsStreamReader(StructType([]), read_options(given, streaming=True))
    assert list(named.initialOffset()) == ["orders.new"]
