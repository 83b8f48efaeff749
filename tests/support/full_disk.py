"""A server that refuses to add rows to some tables, with the error of a full disk."""

from collections.abc import Iterator
from contextlib import contextmanager

from emsworker.local import LocalDatabase
from tests.support.servers import connect

_TRIGGER = (
    "CREATE TRIGGER `{0}`.full_{1} BEFORE INSERT ON `{0}`.{1} FOR EACH ROW "
    "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table {1} is full'"
)


@contextmanager
def full_disk(server: LocalDatabase, url: str, *tables: str) -> Iterator[None]:
    """No row is added to these tables of a stream, by default to that of messages alone, as while nothing is written."""
    database = url.rsplit("/", 1)[1]
    tables = tables or ("ems_message",)
    with connect(server.admin_url, autocommit=True) as root, root.cursor() as cursor:
        for table in tables:
            cursor.execute(_TRIGGER.format(database, table))
        try:
            yield
        finally:
            for table in tables:
                cursor.execute(f"DROP TRIGGER `{database}`.full_{table}")
