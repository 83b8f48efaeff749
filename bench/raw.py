"""The raw limit: the same work on the same server with plain PyMySQL and the simplest table that could do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pymysql
from pymysql.constants import CLIENT

from bench.load import BODY, PAUSE_S, percentile, rate
from bench.stage import NotRight, Stage

if TYPE_CHECKING:
    from bench.stage import Connection

_CREATE = "CREATE TABLE raw_message (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, uid BINARY(16), body LONGBLOB)"
INSERT = "INSERT INTO raw_message (uid, body) VALUES (%s, %s)"
ROW = (b"0123456789abcdef", json.dumps(BODY).encode())
_PAGE = 500
_MARK = """UPDATE raw_mark SET acked_to = %s, at = NOW(6) WHERE id = %s AND token = %s AND acked_to = %s;
SET @one = (SELECT 1 UNION ALL SELECT 2 FROM DUAL WHERE ROW_COUNT() <> 1); COMMIT"""


def create(stage: Stage) -> None:
    """The simplest table."""
    with stage.connect() as connection, connection.cursor() as cursor:
        cursor.execute(_CREATE)


def insert(connections: int, row: tuple[bytes, bytes] = ROW) -> Callable[[Stage], dict[str, float]]:
    """One row a statement that commits by itself, in one round trip, over so many connections at once.

    Args:
        row: the uid and the body.
    """
    return lambda stage: _insert_rows(stage, connections, lambda connection: inserting(connection, row))


def insert_and_commit(connections: int) -> Callable[[Stage], dict[str, float]]:
    """One row a commit, in two round trips, as in a transaction of more than one statement."""
    return lambda stage: _insert_rows(stage, connections, _inserting_and_committing)


def _insert_rows(stage: Stage, connections: int, make: Callable[[Connection], Callable[[], int]]) -> dict[str, float]:
    create(stage)
    per_s, count = rate(stage.size.seconds, connections, lambda _: make(stage.connect()))
    stage.check("raw rows", count, "SELECT COUNT(*) FROM raw_message")
    return {"messages/s": per_s}


def inserting(connection: Connection, row: tuple[bytes, bytes] = ROW) -> Callable[[], int]:
    """Return what inserts a row over a connection, and says how many: one."""
    cursor = connection.cursor()
    return lambda: cursor.execute(INSERT, row)


def _inserting_and_committing(connection: Connection) -> Callable[[], int]:
    connection.autocommit(False)
    insert_row = inserting(connection)

    def step() -> int:
        count = insert_row()
        connection.commit()
        return count

    return step


def insert_with_mark(connections: int) -> Callable[[Stage], dict[str, float]]:
    """The least that has an effect exactly once: a row, how far its owner has come, and a fence; one commit each."""

    def measure(stage: Stage) -> dict[str, float]:
        create(stage)
        with stage.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE raw_mark (id INT PRIMARY KEY, token INT, acked_to BIGINT, at DATETIME(6))")
            cursor.executemany("INSERT INTO raw_mark VALUES (%s, %s, 0, NOW(6))", [(n, n) for n in range(connections)])

        def make(number: int) -> Callable[[], int]:
            connection = stage.connect(client_flag=CLIENT.MULTI_STATEMENTS)
            cursor = connection.cursor()
            done = 0

            def step() -> int:
                nonlocal done
                done += 1
                _run_all(cursor, f"START TRANSACTION; {INSERT}", ROW)
                _run_all(cursor, _MARK, (done, number, number, done - 1))
                return 1

            return step

        per_s, count = rate(stage.size.seconds, connections, make)
        stage.check("raw rows", count, "SELECT COUNT(*) FROM raw_message")
        stage.check("marked", count, "SELECT CAST(SUM(acked_to) AS SIGNED) FROM raw_mark")
        return {"messages/s": per_s}

    return measure


def _run_all(cursor: pymysql.cursors.Cursor, statements: str, args: tuple[object, ...]) -> None:
    cursor.execute(statements, args)
    while cursor.nextset():
        pass


def executemany(stage: Stage) -> dict[str, float]:
    """500 rows a statement and commit, over one connection."""
    create(stage)

    def make(_: int) -> Callable[[], int]:
        connection = stage.connect(autocommit=False)
        cursor = connection.cursor()

        def step() -> int:
            cursor.executemany(INSERT, [ROW] * _PAGE)
            connection.commit()
            return _PAGE

        return step

    per_s, count = rate(stage.size.seconds, 1, make)
    stage.check("raw rows", count, "SELECT COUNT(*) FROM raw_message")
    return {"messages/s": per_s}


def read(stage: Stage) -> dict[str, float]:
    """Read bodies by primary key, 500 a query, over one connection, from the start to the end."""
    return read_bodies(stage, stage.size.drained // _PAGE * _PAGE, _PAGE)


def read_bodies(stage: Stage, total: int, page: int, row: tuple[bytes, bytes] = ROW) -> dict[str, float]:
    """The same for any number of bodies of any size.

    Args:
        total: a multiple of ``page``.
        page: how many a query.
    """
    create(stage)
    with stage.connect() as connection, connection.cursor() as cursor:
        for _ in range(total // page):
            cursor.executemany(INSERT, [row] * page)
        began, seen, last = time.perf_counter(), 0, 0
        while True:
            cursor.execute("SELECT id, uid, body FROM raw_message WHERE id > %s ORDER BY id LIMIT %s", (last, page))
            rows = cursor.fetchall()
            if not rows:
                break
            seen, last = seen + len(rows), rows[-1][0]
        elapsed = time.perf_counter() - began
    if seen != total:
        raise NotRight(f"raw read: {seen} of {total} rows")
    return {"messages/s": seen / elapsed}


def insert_latency(stage: Stage) -> dict[str, float]:
    """How long one insert that commits by itself takes, one after another with the pauses of a modest load."""
    create(stage)
    took: list[float] = []
    with stage.connect() as connection:
        insert_row = inserting(connection)
        for _ in range(stage.size.stamps):
            began = time.perf_counter()
            insert_row()
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(PAUSE_S)
    stage.check("raw rows", len(took), "SELECT COUNT(*) FROM raw_message")
    return {"p50 ms": percentile(took, 0.5), "p99 ms": percentile(took, 0.99)}
