"""The readers of broadcasts, and what was written by plain SQL and refused."""

from emsworker.core.config import Settings
from emsworker.publish.intake import IngestResult, ingest
from emsworker.store.engine.database import Database
from emsworker.store.stream import broadcast
from tests.support.commands import Ems
from tests.support.servers import connect


def test_topics_of_broadcasts_and_their_readers(ems: Ems, stream: Database) -> None:
    assert ems.ok("topics", "create", "news", "--kind", "broadcast", "--json").json["kind"] == "broadcast"
    done = ems("groups", "create", "news", "g")
    assert done.code == 2 and done.errors[0].startswith("Error: topic = 'news': is a broadcast topic")
    for name in ("cache/a/0", "cache/b/0"):
        reader = broadcast.NamedReader(1, name, b"0" * 16)
        stream.call(lambda session, reader=reader: broadcast.take_positions(session, reader, {0: 1}))
    assert ems("readers", "forget", "news", "-y").code == 2
    assert ems.ok("readers", "forget", "news", "--idle", "1h", "-y", "--json").json["forgotten_rows"] == 0
    assert ems.ok("readers", "forget", "news", "cache/a/0", "-y", "--json").json["forgotten_rows"] == 1
    assert [row["reader"] for row in ems.ok("readers", "list", "news", "--json").json] == ["cache/b/0"]


def test_refused_rows_are_listed_retried_and_deleted(ems: Ems, stream: Database, url: str) -> None:
    def take() -> IngestResult:
        return stream.call(lambda session: ingest(session, Settings(), 10))

    with connect(url, autocommit=True) as sql, sql.cursor() as cursor:
        cursor.execute("INSERT INTO ems_publish (topic, body) VALUES ('none', '1'), ('none', '{')")
    assert take() == IngestResult(0, 2)
    first, second = (row["id"] for row in ems.ok("refused", "list", "--json").json)
    assert "there is no topic 'none'" in ems.ok("refused", "list").out
    assert "2 rows refused" in ems("check").out
    ems.ok("topics", "create", "none")
    assert ems.ok("refused", "retry", "--all").out == "2 rows will be checked again.\n"
    assert take() == IngestResult(1, 1)
    assert "is not JSON" in ems.ok("refused", "list").out
    for wrong, told in (
        (["retry"], "or say --all"),
        (["delete", str(first), "-y"], f"row {first} of ems_publish is not"),
    ):
        done = ems("refused", *wrong)
        assert done.code in (1, 2) and told in done.err
    for verb in ("retry", "delete"):
        done = ems("refused", verb, str(first), str(second), *(["-y"] if verb == "delete" else []))
        assert done.code == 1 and len(done.errors) == 1 and f"row {first} of ems_publish is not refused" in done.err
        assert done.out == ("1 row will be checked again.\n" if verb == "retry" else "Deleted 1 row.\n")
        assert take() == IngestResult(0, 1 if verb == "retry" else 0)
    assert ems.ok("refused", "list", "--json").json == []
