"""Reading at rest: our source, Spark's JDBC source, our planning with the latter, `read_arrow` and raw PyMySQL.

All read the same four columns of the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import read
from bench.spark import raw
from bench.spark.figure import Figure
from bench.stage import NotRight
from emsworker.arrow import read_arrow
from emsworker.core.url import DatabaseUrl

JAR = Path("/usr/share/java/mariadb-java-client.jar")
_ROWS = "WHERE topic_id = 1 AND `partition` = 0 AND kind = 'message'"
_OURS, _RAW, _JDBC, _PLANNED = 'format("ems")', "raw PyMySQL", 'format("jdbc")', "read_jdbc()"
_ARROW = "read_arrow()"
SCHEMA = "key binary, value binary, offset bigint, timestamp timestamp"  # of the columns that all others read


class Reading:
    """Every way to read the million rows of topic 1, called ``bench``.

    Args:
        spark: a session with two cores.
        url: of the database, which the profile ``bench`` names too.
        rows: how many there are.
        folder: where Parquet goes.
    """

    def __init__(self, spark: Any, url: str, rows: int, folder: Path) -> None:
        self._spark, self._url, self._rows, self._folder = spark, url, rows, folder

    def measure(self, rounds: int, say: Callable[[str], None]) -> list[Figure]:
        """All ways in turns, so that all meet the same weather."""
        found: dict[tuple[str, int, str], list[float]] = {}
        with raw.Readers(self._url, self._rows, self._folder) as readers:
            for number in range(rounds):
                for partitions in (1, 2):
                    for sink in ("noop", "Parquet"):
                        ways = self._ways(readers, partitions, sink)
                        rates = {name: self._rate(way) for name, way in ways.items()}
                        for name, rate in rates.items():
                            found.setdefault((name, partitions, sink), []).append(rate)
                        told = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items())
                        say(f"  round {number + 1}, {partitions} partition(s), {sink}: {told}")
        return [
            figure for partitions in (1, 2) for sink in ("noop", "Parquet") for figure in _of(found, partitions, sink)
        ]

    def _rate(self, way: Callable[[], Any]) -> float:
        began = time.perf_counter()
        way()
        return self._rows / (time.perf_counter() - began)

    def _ways(self, readers: raw.Readers, partitions: int, sink: str) -> dict[str, Callable[[], Any]]:
        ways: dict[str, Callable[[], Any]] = {
            _RAW: lambda: _whole(readers.read(partitions, parquet=sink == "Parquet"), self._rows),
            _OURS: lambda: self._save(self._ours(partitions), sink),
        }
        if partitions == 1 and sink == "noop":
            ways[_ARROW] = lambda: _whole(_arrow(), self._rows)
        if JAR.exists():
            ways[_JDBC] = lambda: self._save(self.jdbc(partitions), sink)
            ways[_PLANNED] = lambda: self._save(self._planned(partitions), sink)
        return ways

    def _save(self, frame: Any, sink: str) -> None:
        writer = frame.write.mode("overwrite")
        if sink == "noop":
            writer.format("noop").save()
        else:
            writer.parquet(str(self._folder / "out"))

    def _ours(self, partitions: int) -> Any:
        reader = self._spark.read.format("ems").option("profile", "bench").option("subscribe", "bench")
        reader = reader.option("partitionBytes", "1g").option("minPartitions", str(partitions))
        return reader.schema(SCHEMA).load()

    def _planned(self, partitions: int) -> Any:
        from emsworker.spark import read_jdbc

        options = {"profile": "bench", "subscribe": "bench", "partitionBytes": "1g", "minPartitions": str(partitions)}
        return read_jdbc(self._spark, **options).select("key", "value", "offset", "timestamp")

    def jdbc(self, partitions: int) -> Any:
        """A data frame of Spark's JDBC source, in so many tasks."""
        to = DatabaseUrl.parse(self._url)
        options = {
            "url": f"jdbc:mysql://{to.host}:{to.port}/{to.database}",
            "driver": "org.mariadb.jdbc.Driver",
            "user": to.user,
            "password": to.password,
            "dbtable": f"(SELECT {raw.COLUMNS} FROM ems_message {_ROWS}) m",
            "fetchsize": "10000",
            "partitionColumn": "offset",
            "lowerBound": "1",
            "upperBound": str(self._rows + 1),
            "numPartitions": str(partitions),
        }
        return self._spark.read.format("jdbc").options(**options).load()


def _arrow() -> int:
    return sum(batch.num_rows for batch in read_arrow(profile="bench", subscribe="bench", columns=read.COLUMNS))


def _whole(found: int, rows: int) -> None:
    if found != rows:
        raise NotRight(f"{found} rows were read of {rows}")


def _of(found: dict[tuple[str, int, str], list[float]], partitions: int, sink: str) -> list[Figure]:
    def rates(name: str) -> list[float]:
        return found[name, partitions, sink]

    where = f"{partitions} partition{'s' if partitions > 1 else ''}, to {'nowhere' if sink == 'noop' else sink}"
    against = (
        f"{_RAW}{' and PyArrow' if sink == 'Parquet' else ''}, {partitions} process{'es' if partitions > 1 else ''}"
    )
    figures = [Figure("read", f"`{_OURS}`, {where}", "rows/s", rates(_OURS), against, rates(_RAW), least=0.6)]
    if (_JDBC, partitions, sink) in found:
        figures.append(
            Figure("read", f"`{_PLANNED}`, {where}", "rows/s", rates(_PLANNED), f"`{_JDBC}`", rates(_JDBC), least=0.9)
        )
        figures.append(
            Figure("read", f"`{_OURS}`, {where}", "rows/s", rates(_OURS), f"`{_JDBC}`", rates(_JDBC), least=0.8)
        )
    if (_ARROW, partitions, sink) in found:
        figures.append(Figure("read", f"`{_ARROW}`", "rows/s", rates(_ARROW), against, rates(_RAW), least=5))
    return figures
