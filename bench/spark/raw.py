"""The same rows as anybody would read them with PyMySQL, a page at a time; and with PyArrow into Parquet."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any

import pymysql

from emsworker.core.url import DatabaseUrl

COLUMNS = "`key`, body, `offset`, born_at"
_PAGE = 10_000
_FILL = """INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, `key`, headers, body, size, born_at)
SELECT %s, 0, `offset` + %s, UNHEX(LEFT(SHA2(`offset` + %s, 256), 32)), `key`, headers, body, size, born_at
FROM ems_message WHERE topic_id = %s AND `offset` BETWEEN 1 AND %s"""


def connect(url: str) -> pymysql.connections.Connection[Any]:
    """A plain connection."""
    to = DatabaseUrl.parse(url)
    return pymysql.connect(
        host=to.host, port=to.port, user=to.user, password=to.password, database=to.database, autocommit=True
    )


def fill(url: str, topic_id: int, rows: int, size: int) -> None:
    """One row of a topic's first partition, and then copies of all there are, until there are enough."""
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, `key`, headers, body, size, born_at) "
            "VALUES (%s, 0, 1, UNHEX(LEFT(SHA2(1, 256), 32)), 'customer-17', '', REPEAT('x', %s), %s, NOW(6))",
            (topic_id, size, size),
        )
        count = 1
        while count < rows:
            cursor.execute(_FILL, (topic_id, count, count, topic_id, min(count, rows - count)))
            count = min(2 * count, rows)
        cursor.execute("UPDATE ems_partition SET next_offset = %s WHERE topic_id = %s", (rows + 1, topic_id))


@dataclass(frozen=True)
class Part:
    """What one process reads: offsets of topic 1, ``hi`` exclusive, into a file if one is named."""

    url: str
    lo: int
    hi: int
    parquet: str | None = None


def read(part: Part) -> int:
    """Read a part; returns the number of rows."""
    sink = _Parquet(part.parquet) if part.parquet else None
    count = 0
    with connect(part.url) as connection, connection.cursor() as cursor:
        for lo in range(part.lo, part.hi, _PAGE):
            cursor.execute(
                f"SELECT {COLUMNS} FROM ems_message WHERE topic_id = 1 AND `partition` = 0 "
                f"AND `offset` >= {lo} AND `offset` < {min(lo + _PAGE, part.hi)} AND kind = 'message' ORDER BY `offset`"
            )
            rows = cursor.fetchall()
            count += len(rows)
            if sink is not None:
                sink.write(rows)
    if sink is not None:
        sink.close()
    return count


class _Parquet:
    def __init__(self, path: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pa = pa
        kinds = {"key": pa.binary(), "value": pa.binary(), "offset": pa.int64(), "timestamp": pa.timestamp("us")}
        self._schema = pa.schema(list(kinds.items()))
        self._writer = pq.ParquetWriter(path, self._schema)  # with Snappy, as Spark writes

    def write(self, rows: Any) -> None:
        arrays = [
            self._pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_batch(self._pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class Readers:
    """Processes that read at once, one for each partition, started before anything is measured."""

    def __init__(self, url: str, rows: int, folder: Path) -> None:
        self._url, self._rows, self._folder = url, rows, folder
        self._pool = ProcessPoolExecutor(2, get_context("spawn"))

    def __enter__(self) -> Readers:
        list(self._pool.map(read, [Part(self._url, 1, 2)] * 2))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def read(self, partitions: int, *, parquet: bool) -> int:
        """All rows, shared by so many processes."""
        edges = [1 + self._rows * number // partitions for number in range(partitions + 1)]
        files = [str(self._folder / f"raw-{number}.parquet") if parquet else None for number in range(partitions)]
        parts = [Part(self._url, lo, hi, file) for lo, hi, file in zip(edges[:-1], edges[1:], files, strict=True)]
        return sum(self._pool.map(read, parts))
