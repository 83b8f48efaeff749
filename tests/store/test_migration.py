"""Steps of migrations on tables that hold rows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emsworker.core.errors import Conflict, SchemaMissing
from emsworker.core.extension import extensions
from emsworker.local import LocalDatabase
from emsworker.store.engine import alteration, schema, tables
from emsworker.store.engine.backfill import batches, read_place, write_place
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import check_version, current_version, migrate, plan_migration, put_back
from emsworker.store.engine.steps import Algorithm, oldest_program, steps_of
from tests.support.roles import users
from tests.support.servers import connect
from tests.support.streams import Stream
from tests.support.worker import ROOT

NEXT = ROOT / "verification" / "upgrade" / "next" / "0002_note.sql"
_RELEASED = tables.migrations


@contextmanager
def _newer(monkeypatch: pytest.MonkeyPatch, *files: Path) -> Iterator[None]:
    """As if the core had these migrations, too."""
    added = {int(file.name[:4]): file for file in files}
    with monkeypatch.context() as patch:
        for module in (schema, tables):
            patch.setattr(
                module,
                "migrations",
                lambda package=tables.CORE: _RELEASED(package) | (added if package == tables.CORE else {}),
            )
        yield


def _step(stream: Stream, number: int) -> list[tuple[int, bool]]:
    """The rows that a step has gone through, and whether it is done."""
    found = stream.rows(f"SELECT seen_rows, done_at IS NOT NULL FROM ems_migration_step WHERE step = {number}")
    return [(int(seen), bool(done)) for seen, done in found]


def test_an_older_program_works_with_newer_tables_and_leaves_them_alone(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.app().send_many("t", list(range(700)))
    with _newer(monkeypatch, NEXT):
        with pytest.raises(SchemaMissing, match="version 1, this code needs 2; run `ems migrate`"):
            check_version(stream.session)
        told: list[str] = []
        assert migrate(stream.session, (), told.append) == [2]
        check_version(stream.session)
        assert [re.sub(r" in [\d.]+ s", "", text.partition(", step ")[2]) for text in told] == [
            "2 of 5, add column note to ems_message: done",
            "3 of 5, update ems_message from the rows of ems_message: done",
            "4 of 5, insert into from the rows of ems_message: done",
            "5 of 5, add key attempts to ems_retry: done",
        ]
        assert migrate(stream.session) == [] and plan_migration(stream.session) == []
    assert (
        stream.value("SELECT COUNT(*) FROM ems_note n JOIN ems_message m USING (topic_id, uid) WHERE note IS NOT NULL")
        == 700
    )
    check_version(stream.session)
    assert migrate(stream.session) == [] and put_back(stream.session) == [] and current_version(stream.session) == 2
    assert stream.app().send("t", 1).offset == 701
    stream.rows("DROP TABLE ems_alarm")
    with pytest.raises(SchemaMissing, match="ems_alarm is missing; run `ems migrate` of the release that made them"):
        put_back(stream.session)
    with _newer(monkeypatch, NEXT):
        assert put_back(stream.session) == ["ems_alarm"]
        stream.rows("DROP TABLE ems_note, ems_retry")
        assert put_back(stream.session) == ["ems_retry", "ems_note"]
        assert stream.rows("SHOW KEYS FROM ems_retry WHERE Key_name = 'attempts'")
        assert stream.value("SELECT COUNT(*) FROM ems_note") == 0


def test_a_migration_that_says_nothing_of_older_programs_locks_them_out(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0002_much.sql").write_text("CREATE TABLE IF NOT EXISTS ems_much (\n  id INT PRIMARY KEY\n);\n")
    with _newer(monkeypatch, tmp_path / "0002_much.sql"):
        migrate(stream.session)
    for refuse in (check_version, migrate):
        with pytest.raises(SchemaMissing, match=r"version 2.*install a newer emsworker"):
            refuse(stream.session)


def test_a_step_that_was_done_before_its_row_was_written_is_not_done_again(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.rows("ALTER TABLE ems_message ADD COLUMN note VARBINARY(16) NULL")
    stream.rows("ALTER TABLE ems_retry ADD KEY attempts (attempt)")
    with _newer(monkeypatch, NEXT):
        states = {one.step: one.state for one in plan_migration(stream.session)}
        assert states == {1: "to do", 2: "done", 3: "to do", 4: "to do", 5: "done"}
        assert migrate(stream.session) == [2]


def test_a_backfill_goes_on_after_its_last_range(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is locked holds it amid the table; the row of the step says how far it is, and none is filled twice."""
    topics = [stream.topic(f"t{number}", partitions=3) for number in range(3)]
    for number, _ in enumerate(topics):
        stream.app().send_many(f"t{number}", list(range(1500)))
    held = "FROM ems_message WHERE topic_id = %s AND `partition` = 1 AND `offset` = 250"
    with connect(stream.url) as other, other.cursor() as cursor, _newer(monkeypatch, NEXT):

        def hold(text: str) -> None:
            if ", step 2 of" in text:
                cursor.execute(f"SELECT 1 {held} FOR UPDATE", (topics[1].id,))

        stream.session.rows("SET SESSION innodb_lock_wait_timeout = 1")
        monkeypatch.setattr("emsworker.store.engine.session._CONFLICT_S", 0)
        monkeypatch.setattr("emsworker.store.engine.session._CONFLICT_TRIES", 1)
        with pytest.raises(Conflict, match="Lock wait timeout"):
            migrate(stream.session, (), hold)
        ((seen, is_done),) = _step(stream, 3)
        assert 500 <= seen < 4500 and not is_done
        plan = {one.step: one for one in plan_migration(stream.session)}
        assert (plan[2].state, plan[3].state, plan[3].seen_rows, plan[4].state) == ("done", "begun", seen, "to do")
        filled = stream.value("SELECT COUNT(*) FROM ems_message WHERE note IS NOT NULL")
        assert filled <= seen <= filled + stream.value("SELECT COUNT(*) FROM ems_message WHERE uid IS NULL")
        other.rollback()
        stream.session.rows("UPDATE ems_message SET note = NULL LIMIT 10")  # it does not look behind it again
        assert migrate(stream.session) == [2]
    assert _step(stream, 3)[0][1]
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE note IS NULL AND uid IS NOT NULL") == 10
    assert stream.value("SELECT COUNT(*) FROM ems_note") == 4500


def test_ranges_follow_the_primary_key_of_every_kind(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is in one range: keys of numbers, bytes and texts, with many rows of one beginning."""
    monkeypatch.setattr("emsworker.store.engine.backfill._FIRST", 3)
    monkeypatch.setattr("emsworker.store.engine.backfill._FEWEST", 3)
    monkeypatch.setattr("emsworker.store.engine.backfill._MOST", 3)
    stream.rows("CREATE TABLE src (a INT, b VARBINARY(9), c VARCHAR(9) CHARACTER SET utf8mb4, PRIMARY KEY (a, b, c))")
    stream.rows("CREATE TABLE seen (a INT, b VARBINARY(9), c VARCHAR(9) CHARACTER SET utf8mb4, PRIMARY KEY (a, b, c))")
    rows = ", ".join(f"({a}, X'{b:02x}27', 'ü{c}''')" for a in range(3) for b in (0, 39, 255) for c in range(a * 2 + 1))
    stream.rows(f"INSERT INTO src VALUES {rows}")
    (step,) = steps_of(_file(tmp_path, "INSERT INTO seen SELECT a, b, c FROM src WHERE %(range_of_src)s;"))
    count, place = 0, None
    for batch in batches(stream.session, step, None):
        stream.session.execute(batch.sql)
        count += batch.rows
        if batch.place is not None:
            place = read_place(write_place(batch.place))
            assert place == batch.place
    assert count == 27 == stream.value("SELECT COUNT(*) FROM seen") and place is not None


def _file(folder: Path, text: str) -> Path:
    path = folder / "0002_x.sql"
    path.write_text(f"{text}\n")
    return path


def test_a_table_that_is_in_use_makes_nobody_wait(
    stream: Stream, server: LocalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements that come after the ALTER wait behind it only until it gives up; it goes on when the reader has ended."""
    stream.app().send("t", 1)
    told: list[str] = []
    monkeypatch.setattr(
        alteration, "_BUSY", {1317}
    )  # the wait was interrupted, before the server ended it after a second
    with (
        users(server, stream.url) as make,
        Database(make("admin")).session() as session,
        connect(stream.url) as reader,
        reader.cursor() as cursor,
        _newer(monkeypatch, NEXT),
    ):
        cursor.execute("SELECT 1 FROM ems_message")
        monkeypatch.setattr(alteration, "_TRIES_S", 0.0)
        with pytest.raises(SchemaMissing, match="table ems_message was in use at every try"):
            migrate(session)
        assert _step(stream, 2) == [(0, False)]
        monkeypatch.setattr(alteration, "_TRIES_S", 60.0)

        def tell(text: str) -> None:
            told.append(text)
            if len(told) == 3:
                reader.rollback()

        assert migrate(session, (), tell) == [2]
    assert sum("in use by a transaction" in text for text in told) == 3


@pytest.mark.parametrize(
    ("statement", "algorithm"),
    [
        ("ALTER TABLE t ADD COLUMN a INT NULL, %(instantly)s;", Algorithm.INSTANT),
        ("ALTER TABLE `t` DROP UNIQUE KEY a, %(in_place)s;", Algorithm.IN_PLACE),
        ("ALTER TABLE t ADD COLUMN a INT NULL;", None),
        ("ALTER TABLE t ADD COLUMN a INT NULL, ALGORITHM=COPY;", None),
        ("ALTER TABLE t ADD COLUMN a INT NULL, ADD COLUMN b INT NULL, %(instantly)s;", None),
        ("DELETE FROM t WHERE a = 1;", Algorithm.ONCE),
    ],
)
def test_statements_that_could_lock_a_table_are_refused(
    tmp_path: Path, statement: str, algorithm: Algorithm | None
) -> None:
    file = _file(tmp_path, statement)
    if algorithm is None:
        with pytest.raises(ValueError, match=r"0002_x.sql: statement 1 alters t in a way that may lock it"):
            steps_of(file)
    else:
        assert [step.algorithm for step in steps_of(file)] == [algorithm]


def test_every_released_migration_consists_of_such_steps() -> None:
    for package in (tables.CORE, *(one.package for one in extensions().values())):
        for version, file in tables.migrations(package).items():
            assert steps_of(file) and 1 <= oldest_program(file) <= version
    assert oldest_program(NEXT) == 1
