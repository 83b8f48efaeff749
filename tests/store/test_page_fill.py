"""The pages of ``ems_message`` are full: half-empty ones double what is written, kept and cached."""

import pytest

from emsworker.local import LocalDatabase
from tests.support.servers import connect
from tests.support.streams import Stream

ROWS, ENTRY_BYTES, PAGE_BYTES = 20_000, 36, 16_384  # an entry: topic, id, the rest of the primary key, and its header
BODIES, BODY_BYTES, PARTITIONS = 1_600, 6_000, 4
_REDO = "Innodb_os_log_written"


def _leaf_pages(stream: Stream, server: LocalDatabase, index: str) -> int:
    stream.rows("ANALYZE TABLE ems_message")
    ((database,),) = stream.rows("SELECT DATABASE()")
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT stat_value FROM mysql.innodb_index_stats WHERE database_name = %s AND table_name = 'ems_message' "
            "AND index_name = %s AND stat_name = 'n_leaf_pages'",
            (database, index),
        )
        ((pages,),) = cursor.fetchall()
    return int(pages)


def test_the_index_of_ids_is_filled_in_order(stream: Stream, server: LocalDatabase) -> None:
    app = stream.app()
    for _ in range(ROWS // 500):
        app.send_many("t", [b"x"] * 500)
    pages = _leaf_pages(stream, server, "uid")
    assert pages == pytest.approx(ROWS * ENTRY_BYTES / PAGE_BYTES, rel=0.25)  # twice as many if each is half empty


def test_large_bodies_fill_the_pages_of_every_partition(stream: Stream, server: LocalDatabase) -> None:
    """InnoDB copies the next row in key order to each page that it adds: it must not be a message."""
    app = stream.app()
    stream.topic("large", partitions=PARTITIONS)
    before = stream.status(_REDO)[_REDO]
    for number in range(BODIES):  # in any order partitions can get stuck at half-empty pages; in this one they do
        app.send("large", b"x" * BODY_BYTES, partition=3 if number < 1 else 2 if number < 4 else number % 2)
    redo = stream.status(_REDO)[_REDO] - before
    fill = BODIES * BODY_BYTES / (_leaf_pages(stream, server, "PRIMARY") * PAGE_BYTES)
    assert fill > 0.7  # 0.37 if it is one
    assert redo < 1.3 * BODIES * BODY_BYTES  # 2.1 times
