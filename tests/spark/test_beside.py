"""A reader holds nothing that workers wait for; ``./dev bench-spark beside`` measures what it costs them."""

from collections.abc import Iterator
from typing import Any

from emsworker.core.model import Group, Topic
from emsworker.local import LocalDatabase as Server
from emsworker.store.groups import progress
from tests.support.servers import connect
from tests.support.streams import Stream, failed, flush_of

_ROWS = 3000


def batches_of() -> Iterator[Any]:
    """The record batches of the topic, about a hundred rows each, read as a task of Spark reads them."""
    from emsworker.spark.source import EmsSource

    source = EmsSource({"profile": "test", "subscribe": "t", "fetchBytes": "20k", "includeHeaders": "true"})
    reader: Any = source.reader(source.schema())
    (part,) = reader.partitions()
    return iter(reader.read(part))


def transactions(server: Server) -> list[Any]:
    """The transactions that are open anywhere on the server, but for this look."""
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT trx_state FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()"
        )
        return list(cursor.fetchall())


def work(stream: Stream, topic: Topic, group: Group, client: str) -> None:
    """One claim: taken, one of its messages failed, finished; nobody waits longer than a second for a lock."""
    claim = stream.take(topic, group, client, 100)
    progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=[failed(claim.lo)]))


def test_a_reader_keeps_no_lock_and_no_snapshot_between_its_fetches(
    stream: Stream, server: Server, profile: None
) -> None:
    """Workers claim and finish the very rows that are being read, and producers add others, between any two fetches."""
    topic = stream.topic("t")
    group = stream.group(topic)
    app, me = stream.app(), stream.client()
    app.send_many("t", [{"text": "x" * 200}] * _ROWS)
    stream.session.execute("SET SESSION innodb_lock_wait_timeout = 1")
    waits = stream.status("Innodb_row_lock_waits")
    batches, rows = 0, 0
    for batch in batches_of():
        assert transactions(server) == [], "a snapshot that stays open would hold back the server's purge"
        batches, rows = batches + 1, rows + batch.num_rows
        work(stream, topic, group, me)
        app.send("t", "more")
    assert batches >= 10 and rows == _ROWS, "what came later is not of this read"
    assert stream.status("Innodb_row_lock_waits") == waits
