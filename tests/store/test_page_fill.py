"""The pages of ``ems_message`` are full: half-empty ones double what is written, kept and cached."""

import pytest

from emsworker.local import LocalDatabase
from tests.support.servers import connect
from tests.support.streams import Stream

ROWS, ENTRY_BYTES, PAGE_BYTES = 20_000, 36, 16_384  # an entry: topic, id, the rest of the primary key, and its header


def test_the_index_of_ids_is_filled_in_order(stream: Stream, server: LocalDatabase) -> None:
    app = stream.app()
    for _ in range(ROWS // 500):
        app.send_many("t", [b"x"] * 500)
    stream.rows("ANALYZE TABLE ems_message")
    ((database,),) = stream.rows("SELECT DATABASE()")
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT stat_value FROM mysql.innodb_index_stats WHERE database_name = %s AND table_name = 'ems_message' "
            "AND index_name = 'uid' AND stat_name = 'n_leaf_pages'",
            (database,),
        )
        ((pages,),) = cursor.fetchall()
    assert pages == pytest.approx(ROWS * ENTRY_BYTES / PAGE_BYTES, rel=0.25)  # twice as many if each is half empty
