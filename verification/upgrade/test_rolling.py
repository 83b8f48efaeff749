"""An upgrade of a recorded database, as users do it: old and new programs side by side, and a migration that is killed."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from emsworker import Ems
from emsworker.core.extension import extensions
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.support.servers import connect, fresh_database
from tests.support.waiting import until
from tests.support.worker import ROOT
from verification.upgrade.app import app
from verification.upgrade.dump import load_dump
from verification.upgrade.programs import Upgrade, end_senders
from verification.upgrade.recording import recorded

_BULK = 3000
_AGAIN = "python -m verification.upgrade.recording"


@contextlib.contextmanager
def _upgrade(server: LocalDatabase, folder: Path) -> Iterator[Upgrade]:
    with fresh_database(server) as url:
        load_dump(recorded(server.flavor), url)
        upgrade = Upgrade(url, folder)
        upgrade.prepare()
        try:
            yield upgrade
        finally:
            upgrade.close()


@contextlib.contextmanager
def _held(url: str, statement: str, *args: object) -> Iterator[None]:
    """Hold what a statement locks, until the block ends."""
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(statement, args)
        yield
        connection.rollback()


_SHAPE = (
    "SELECT TABLE_NAME, COLUMN_NAME, ORDINAL_POSITION, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, COLLATION_NAME, EXTRA, "
    "GENERATION_EXPRESSION FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'ems\\_%'",
    "SELECT TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX, COLUMN_NAME, NON_UNIQUE FROM information_schema.STATISTICS "
    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'ems\\_%'",
    "SELECT CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = DATABASE()",
)


def _shape(url: str) -> set[tuple[Any, ...]]:
    with connect(url) as connection, connection.cursor() as cursor:
        found: set[tuple[Any, ...]] = set()
        for statement in _SHAPE:
            cursor.execute(statement)
            found.update(tuple(map(_plain, row)) for row in cursor.fetchall())
        return found


def _plain(value: Any) -> Any:
    """MySQL adds the character set to texts in expressions, and quotes again, each time that they are written out."""
    return re.sub(r"_(utf8mb\d|latin1|binary)|\W+", "", value) if isinstance(value, str) else value


def test_the_tables_of_a_version_are_those_that_were_recorded(server: LocalDatabase) -> None:
    """A migration that was released is not changed any more: users have its tables."""
    with fresh_database(server) as old, fresh_database(server) as new:
        load_dump(recorded(server.flavor), old)
        Database(new).call(lambda session: migrate(session, extensions().values()))
        assert _shape(new) ^ _shape(old) == set(), f"add a migration; if version 1 is not released yet: {_AGAIN}"


_IN_USE = "in use by a transaction"
_AMID = "FROM ems_message WHERE topic_id = (SELECT id FROM ems_topic WHERE name = 'bulk') AND `offset` = 900"
# Of each step what holds it amid its work: a reader of the table that it alters, or a row that it comes to.
_HOLDS = {
    2: "SELECT 1 FROM ems_message LIMIT 1",
    3: f"SELECT 1 {_AMID} FOR UPDATE",
    4: f"INSERT INTO ems_note (topic_id, uid, size) SELECT topic_id, uid, 0 {_AMID}",
    5: "SELECT 1 FROM ems_retry LIMIT 1",
}
# The server may still run the INSERT of a migration that was killed, so the row may be there.
_BEGUN = (
    "INSERT INTO ems_migration_step (extension, version, step, begun_at) VALUES ('', 2, %s, NOW(6)) "
    "ON DUPLICATE KEY UPDATE begun_at = begun_at"
)


def _kill_in_each_step(upgrade: Upgrade) -> Iterator[int]:
    """Kill -9 of the migration before its first step that has a row, and amid each; yield the number of each."""
    with _at_the_door(upgrade, 2) as migration:
        _kill(migration)
    for number, hold in _HOLDS.items():
        with contextlib.ExitStack() as held:
            with _at_the_door(upgrade, number) as migration:
                held.enter_context(_held(upgrade.url, hold))
            until(partial(_is_amid, upgrade, migration, number), 60, f"the migration is amid step {number}")
            _kill(migration)
            seen = upgrade.step(number)
            assert seen is not None and not seen[1]
        yield number


@contextlib.contextmanager
def _at_the_door(upgrade: Upgrade, number: int) -> Iterator[subprocess.Popen[str]]:
    """Start a migration that does all before a step, and does not begin that one until the block ends."""
    with _held(upgrade.url, _BEGUN, number):
        migration = upgrade.start("emsworker", "migrate", root=upgrade.newer)
        until(partial(_is_before, upgrade, migration, number), 60, f"the migration is before step {number}")
        yield migration


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def _is_amid(upgrade: Upgrade, migration: subprocess.Popen[str], number: int) -> bool:
    assert migration.poll() is None, upgrade.log(migration)
    seen = upgrade.step(number)
    return seen is not None and (seen[0] >= 500 or _IN_USE in upgrade.log(migration))


def _is_before(upgrade: Upgrade, migration: subprocess.Popen[str], number: int) -> bool:
    assert migration.poll() is None, upgrade.log(migration)
    if number == 2:  # the step before makes a table
        return bool(upgrade.looker.rows("SHOW TABLES LIKE 'ems_note'"))
    before = upgrade.step(number - 1)
    return before is not None and before[1]


def test_nothing_is_lost_or_doubled_when_versions_run_side_by_side(server: LocalDatabase, tmp_path: Path) -> None:
    with _upgrade(server, tmp_path) as upgrade:
        old_beat, old_worker = upgrade.program("beat", fixed=True), upgrade.program("worker", fixed=True)
        senders = [upgrade.start("verification.upgrade.sender", "100000")]
        celery = upgrade.celery(tmp_path / "celery.log")
        upgrade.others.append(celery)
        Ems("bulk", url=upgrade.url).send_many("bulk", list(range(_BULK)))
        old_worker.wait_ready()
        for number in _kill_in_each_step(upgrade):
            if number == 2:  # amid the upgrade: what is new is refused, what is old may be started again
                refused = upgrade.run("topics", "list", root=upgrade.newer)
                assert refused.returncode == 1 and "this code needs 2; run `ems migrate`" in refused.stderr
                assert old_worker.stop() == 0
                old_worker = upgrade.program("worker", fixed=True)
                plan = json.loads(upgrade.run("migrate", "--plan", "--json", root=upgrade.newer).stdout)
                assert [(one["step"], one["state"]) for one in plan] == [
                    (1, "done"), (2, "begun"), (3, "to do"), (4, "to do"), (5, "to do")
                ]  # fmt: skip
        done = upgrade.run("migrate", root=upgrade.newer)
        assert done.returncode == 0 and "of version 2 now (applied: 2)" in done.stdout, done
        new_beat, new_worker = (upgrade.program(one, upgrade.newer, fixed=True) for one in ("beat", "worker"))
        senders.append(upgrade.start("verification.upgrade.sender", "200000", root=upgrade.newer))
        again = upgrade.program("worker", fixed=True)  # after the upgrade, as a machine that was not deployed to yet
        again.wait_ready()
        new_worker.wait_ready()
        for root in (ROOT, upgrade.newer):
            assert "nothing to do" in upgrade.run("migrate", root=root).stdout
        assert upgrade.run("dead", "requeue", "--all", "--topic", "broken", "--yes").returncode == 0
        before = upgrade.count("pay")
        until(lambda: upgrade.count("pay") > before + 50, 60, "work goes on")
        end_senders(upgrade, senders)
        for beat in (old_beat, new_beat):
            assert beat.process.poll() is None, beat.text()
        ticks = upgrade.count("tick")
        old_beat.stop()
        until(lambda: upgrade.count("tick") > ticks, 30, "the new beat fires schedules")
        until(lambda: not _differences(upgrade), 90, f"all is done: {_differences(upgrade)}")
        _check_results(upgrade)
        _check_notes(upgrade)
        for worker in (old_worker, new_worker, again):
            assert worker.stop() == 0 and "Traceback" not in worker.text(), worker.text()[-3000:]


def _differences(upgrade: Upgrade) -> list[tuple[tuple[str, int], int]]:
    """Effects that are missing (-1) or there twice (1)."""
    effects = Counter(map(tuple, upgrade.looker.rows("SELECT what, n FROM effect WHERE what <> 'tick'")))
    effects.subtract(map(tuple, upgrade.looker.rows("SELECT what, n FROM expected")))
    return [(one, count) for one, count in effects.items() if count][:10]  # type: ignore[misc]


def _check_results(upgrade: Upgrade) -> None:
    app.reconfigure(url=upgrade.url)
    try:
        for id_, value in upgrade.looker.rows("SELECT id, value FROM result"):
            assert app.result(id_).get(timeout=10) == value
    finally:
        app.close()


def _check_notes(upgrade: Upgrade) -> None:
    """Each message of before has what the backfills give it, and none twice."""
    rows = upgrade.looker.rows
    bulk = "FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id WHERE t.name = 'bulk'"
    assert rows(f"SELECT COUNT(*) {bulk} AND m.note = LEFT(m.uid, 4)")[0][0] == _BULK
    noted = rows(
        "SELECT COUNT(*), SUM(n.size = LENGTH(m.body)) FROM ems_note n JOIN ems_message m USING (topic_id, uid)"
    )[0]
    assert noted[0] == noted[1] and noted[0] >= _BULK, noted
