"""How long senders wait while a large table is upgraded. EMS_TEST_ROWS says how many messages there are."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from emsworker import Ems
from emsworker.core.extension import extensions
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.support.servers import connect, fresh_database
from tests.support.waiting import until
from verification.upgrade.programs import TABLES, Upgrade, end_senders

_ROWS = int(os.environ.get("EMS_TEST_ROWS", "200000"))
_CHUNK = 20_000
_LONGEST_S = 0.2
_TRIES = 5
_IN_USE = "in use by a transaction"


@pytest.mark.slow
@pytest.mark.alone
def test_no_sender_waits_for_longer_than_a_fifth_of_a_second(server: LocalDatabase, tmp_path: Path) -> None:
    """A reader that keeps the table in use makes the migration wait, and nobody else."""
    with fresh_database(server) as url:
        Database(url).call(lambda session: migrate(session, extensions().values()))
        with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in TABLES:
                cursor.execute(statement)
        app = Ems("filling", url=url)
        for first in range(0, _ROWS, _CHUNK):
            app.send_many("bulk", list(range(first, min(first + _CHUNK, _ROWS))))
        with contextlib.closing(Upgrade(url, tmp_path)) as upgrade:
            upgrade.prepare()
            senders = [upgrade.start("verification.upgrade.sender", str(first)) for first in (0, 1_000_000)]
            for sender in senders:
                until(lambda sender=sender: upgrade.log(sender).count("\n") >= 4, 60, "the senders send")  # type: ignore[misc]
            migration = _migrate_behind_a_reader(upgrade)
            until(lambda: migration.poll() is not None, 60 + _ROWS / 2000, "the migration has ended", 0.1)
            assert migration.returncode == 0, upgrade.log(migration)
            slowest_s = end_senders(upgrade, senders)
            print(f"{server.flavor}, {_ROWS:,} rows: {upgrade.log(migration)}")
        assert slowest_s < _LONGEST_S


def _migrate_behind_a_reader(upgrade: Upgrade) -> subprocess.Popen[str]:
    """Start the migration, and end the reader when it has tried some times."""
    with connect(upgrade.url) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT 1 FROM ems_message LIMIT 1")
        migration = upgrade.start("emsworker", "migrate", root=upgrade.newer)
        until(lambda: upgrade.log(migration).count(_IN_USE) >= _TRIES, 60, "tries of the migration")
        reader.rollback()
    return migration
