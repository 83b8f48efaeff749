"""The database server dies, refuses, or meets hostile sessions."""

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from tests.support.servers import connect
from verification.chaos.arena import Arena

_SURELY_S = 5.0  # in that time some connection is met in COMMIT


def kill_the_server(arena: Arena, times: int = 2) -> None:
    for _ in range(times):
        with arena.fault("server"):
            arena.server.kill()
            time.sleep(0.5)
            arena.server.start(120)
        arena.goes_on()


def restart_the_server(arena: Arena) -> None:
    with arena.fault("server"):
        arena.server.stop(60)
        arena.server.start(120)
    arena.goes_on()


def read_only(arena: Arena) -> None:
    with arena.fault("server"), variable(arena, "read_only", 1):
        time.sleep(2)
    arena.goes_on()


@contextmanager
def variable(arena: Arena, name: str, value: int) -> Iterator[Any]:
    """A global variable of the server is another one for a while; gives the administrator's cursor."""
    with connect(arena.server.admin_url, autocommit=True) as admin, admin.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{name}")
        before = cursor.fetchall()[0][0]
        cursor.execute(f"SET GLOBAL {name} = {value}")
        try:
            yield cursor
        finally:
            cursor.execute(f"SET GLOBAL {name} = {before}")


def too_many_connections(arena: Arena) -> None:
    """Ours are ended, and others take the places."""
    hogs: list[Any] = []
    refused = 0
    with arena.fault("server"):
        with variable(arena, "max_connections", 10) as cursor:
            deadline = time.monotonic() + 3.5
            while time.monotonic() < deadline:
                try:
                    hogs.append(connect(arena.url))
                except pymysql.err.OperationalError as error:
                    assert error.args[0] == 1040, error
                    refused += 1
                    _kill_connections(arena, cursor, 0.3)
        for hog in hogs:
            with contextlib.suppress(pymysql.err.Error):  # it was among those that were killed
                hog.close()
    assert refused, "there were too many"
    arena.goes_on()


def hostile_locks(arena: Arena) -> None:
    """Somebody holds the rows that we need, and takes them in the wrong order, so that the server sees deadlocks."""
    with arena.hostile() as other, other.cursor() as cursor:
        for table in ("ems_cursor", "ems_partition", "ems_client"):
            with arena.fault("server"):
                cursor.execute(f"SELECT * FROM {table} FOR UPDATE")
                time.sleep(1.0)
                other.rollback()
        with arena.fault("server"):
            _make_deadlocks(arena, other)
    arena.goes_on()


def _make_deadlocks(arena: Arena, other: Any) -> None:
    """Take the claims first, and then the effects of those who wait for their claims; and rows in the wrong order."""
    before, began = _deadlocks(arena), time.monotonic()
    while time.monotonic() < began + 3 or (_deadlocks(arena) == before and time.monotonic() < began + 30):
        with contextlib.suppress(pymysql.err.OperationalError), other.cursor() as cursor:  # the victim may be this one
            cursor.execute("SELECT * FROM ems_claim WHERE state <> 'done' FOR UPDATE")
            time.sleep(0.15)
            cursor.execute("SELECT * FROM cash FOR UPDATE")
            cursor.execute("UPDATE ems_cursor SET skipped = skipped + 1 ORDER BY group_id DESC, `partition` DESC")
            cursor.execute("UPDATE ems_partition SET log_start = log_start ORDER BY `partition` DESC")
        other.rollback()
    assert _deadlocks(arena) > before, "the server saw deadlocks"


def _deadlocks(arena: Arena) -> int:
    """How many the server has seen."""
    if arena.server.flavor == "mariadb":
        return int(arena.admin("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")[0][1])
    return int(arena.admin("SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'")[0][0])


def kill_connections(arena: Arena, for_s: float = 5.0, spare: int = 0) -> None:
    with arena.fault("server"), connect(arena.server.admin_url, autocommit=True) as admin, admin.cursor() as cursor:
        killed, in_commit = _kill_connections(arena, cursor, for_s, spare)
    assert killed > 2 * for_s, "connections were killed"
    assert in_commit or for_s < _SURELY_S, "some of them were in COMMIT"
    print(f"  {killed} connections killed, {in_commit} of them in COMMIT", flush=True)
    arena.goes_on()


def cut_connections(arena: Arena, for_s: float) -> None:
    """KILL some connections, if there are any."""
    with arena.fault("server"), connect(arena.server.admin_url, autocommit=True) as admin, admin.cursor() as cursor:
        _kill_connections(arena, cursor, for_s)


def _kill_connections(arena: Arena, cursor: Any, for_s: float, spare: int = 0) -> tuple[int, int]:
    """KILL our connections, above all those that commit just now; the looker's is left alone."""
    mine = arena.looker.rows("SELECT CONNECTION_ID()")[0][0]
    deadline, next_any = time.monotonic() + for_s, 0.0
    killed = in_commit = 0
    while time.monotonic() < deadline:
        cursor.execute(
            "SELECT id, info, state FROM information_schema.processlist WHERE db = DATABASE() AND id <> %s".replace(
                "DATABASE()", "%s"
            ),
            (arena.url.rsplit("/", 1)[1], mine),
        )
        rows = [row for row in cursor.fetchall() if row[0] != spare]
        committing = [row[0] for row in rows if _commits(row[1], row[2])]
        chosen = committing[:2]
        if not chosen and rows and time.monotonic() > next_any:
            chosen, next_any = [arena.chance.choice(rows)[0]], time.monotonic() + 0.1
        for number in chosen:
            with contextlib.suppress(pymysql.err.OperationalError):  # it ended just now
                cursor.execute(f"KILL {number}")
                killed += 1
                in_commit += number in committing
        time.sleep(0.002)
    return killed, in_commit


def _commits(info: str | None, state: str | None) -> bool:
    text = f"{info or ''} {state or ''}".lower()
    return text.lstrip().startswith("commit") or "commit" in (state or "").lower() or "handler commit" in text
