"""``python -m bench.spark``: every way reads the same rows of one private server, in turns; the best of each is shown.

Spark's JDBC source takes part when MariaDB Connector/J is installed (Debian: libmariadb-java).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql

from emsworker.core.url import DatabaseUrl
from emsworker.local import Database as Server
from emsworker.store.database import Database
from emsworker.store.schema import migrate
from emsworker.store.topics import create_topic

_JAR = Path("/usr/share/java/mariadb-java-client.jar")
_COLUMNS = "`key`, body, `offset`, born_at"
_PAGE = 10_000
_FILL = """INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, `key`, headers, body, size, born_at)
SELECT 1, 0, `offset` + %s, UNHEX(MD5(`offset` + %s)), `key`, headers, body, size, born_at
FROM ems_message WHERE `offset` <= %s"""


def fill(url: DatabaseUrl, rows: int, size: int) -> None:
    """One row, and then copies of all there are, until there are enough."""
    with _connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, `key`, headers, body, size, born_at) "
            "VALUES (1, 0, 1, UNHEX(MD5(1)), 'customer-17', '', REPEAT('x', %s), %s, NOW(6))",
            (size, size),
        )
        count = 1
        while count < rows:
            cursor.execute(_FILL, (count, count, min(count, rows - count)))
            count = min(2 * count, rows)


def _connect(url: DatabaseUrl) -> pymysql.connections.Connection[Any]:
    return pymysql.connect(
        host=url.host, port=url.port, user=url.user, password=url.password, database=url.database, autocommit=True
    )


def raw(url: DatabaseUrl, rows: int) -> int:
    """The columns of the table with PyMySQL, page by page."""
    count = 0
    with _connect(url) as connection, connection.cursor() as cursor:
        for lo in range(1, rows + 1, _PAGE):
            cursor.execute(
                f"SELECT {_COLUMNS} FROM ems_message WHERE topic_id = 1 AND `partition` = 0 "
                f"AND `offset` >= {lo} AND `offset` < {lo + _PAGE} AND kind = 'message' ORDER BY `offset`"
            )
            count += len(cursor.fetchall())
    return count


def engine(rows: int) -> int:
    """Our reader without Spark around it."""
    from emsworker.spark.source import EmsSource

    source = EmsSource({"subscribe": "bench", "partitionBytes": "1g"})
    reader: Any = source.reader(source.schema())
    return sum(batch.num_rows for one in reader.partitions() for batch in reader.read(one))


def through_spark(spark: Any, partitions: int, sink: str | None) -> Callable[[], int]:
    """Our source, into nothing or into Parquet."""

    def run() -> int:
        reader = spark.read.format("ems").option("subscribe", "bench").option("partitionBytes", "1g")
        return _save(reader.option("minPartitions", str(partitions)).load(), sink)

    return run


def through_jdbc(spark: Any, url: DatabaseUrl, partitions: int, rows: int, sink: str | None) -> Callable[[], int]:
    """Spark's own source, on the same columns."""

    def run() -> int:
        table = f"(SELECT {_COLUMNS} FROM ems_message WHERE topic_id = 1 AND `partition` = 0) m"
        options = {
            "url": f"jdbc:mysql://{url.host}:{url.port}/{url.database}",
            "driver": "org.mariadb.jdbc.Driver",
            "user": url.user,
            "password": url.password,
            "dbtable": table,
            "fetchsize": "10000",
            "partitionColumn": "offset",
            "lowerBound": "1",
            "upperBound": str(rows + 1),
            "numPartitions": str(partitions),
        }
        return _save(spark.read.format("jdbc").options(**options).load(), sink)

    return run


def through_read_jdbc(spark: Any, partitions: int, sink: str | None) -> Callable[[], int]:
    """Our planning with Spark's own source."""

    def run() -> int:
        from emsworker.spark import read_jdbc

        frame = read_jdbc(spark, subscribe="bench", partitionBytes="1g", minPartitions=str(partitions))
        return _save(frame.select("key", "value", "offset", "timestamp"), sink)

    return run


def _save(frame: Any, sink: str | None) -> int:
    writer = frame.write.mode("overwrite")
    (writer.format("noop").save() if sink is None else writer.parquet(sink))
    return 0


def session(folder: Path) -> Any:
    """Two cores of this machine."""
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(Path.cwd())}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.local.dir", str(folder))
    if _JAR.exists():
        builder = builder.config("spark.jars", str(_JAR))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(ways: dict[str, Callable[[], int]], rows: int, rounds: int) -> dict[str, float]:
    """The best rate of each way, in rows a second; they take turns, so that all meet the same weather."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            best[name] = max(best.get(name, 0.0), rows / (time.perf_counter() - begun))
    return best


def main() -> None:
    """Start a server, fill it, measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=("mariadb", "mysql"), default="mariadb")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ems-bench-") as name:
        folder = Path(name)
        server = Server(folder / "server", given.server)
        server.start(120)
        try:
            run(server.url, folder, given)
        finally:
            server.kill()


def run(text: str, folder: Path, given: argparse.Namespace) -> None:
    """Everything on a server that runs."""
    os.environ["EMS_URL"] = text
    url = DatabaseUrl.parse(text)
    with Database(text).session() as store:
        migrate(store)
        assert create_topic(store, "bench").id == 1
    fill(url, given.rows, given.size)
    assert raw(url, given.rows) == engine(given.rows) == given.rows
    spark = session(folder)
    ways: dict[str, Callable[[], int]] = {"raw PyMySQL": lambda: raw(url, given.rows)}
    ways["reader without Spark"] = lambda: engine(given.rows)
    for partitions in (1, 2):
        for name, sink in (("noop", None), ("Parquet", str(folder / "out"))):
            ways[f"format(ems), {partitions} tasks, {name}"] = through_spark(spark, partitions, sink)
            if _JAR.exists():
                ways[f"format(jdbc), {partitions} tasks, {name}"] = through_jdbc(
                    spark, url, partitions, given.rows, sink
                )
                ways[f"read_jdbc(), {partitions} tasks, {name}"] = through_read_jdbc(spark, partitions, sink)
    best = measure(ways, given.rows, given.rounds)
    spark.stop()
    for name, rate in best.items():
        print(f"{name:36} {rate:>12,.0f} rows/s  {rate / best['raw PyMySQL']:6.0%} of raw")


if __name__ == "__main__":
    main()
