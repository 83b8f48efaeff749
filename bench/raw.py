"""The raw limit: the same work on the same server with plain PyMySQL and the simplest table that could do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from bench.load import BODY, PAUSE_S, percentile, rate
from bench.stage import NotRight, Stage

_CREATE = "CREATE TABLE raw_message (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, uid BINARY(16), body LONGBLOB)"
INSERT = "INSERT INTO raw_message (uid, body) VALUES (%s, %s)"
ROW = (b"0123456789abcdef", json.dumps(BODY).encode())
_PAGE = 500


def create(stage: Stage) -> None:
    """The simplest table."""
    with stage.connect() as connection, connection.cursor() as cursor:
        cursor.execute(_CREATE)


def insert_and_commit(connections: int, row: tuple[bytes, bytes] = ROW) -> Callable[[Stage], dict[str, float]]:
    """One row a commit, over so many connections at once.

    Args:
        row: the uid and the body.
    """

    def measure(stage: Stage) -> dict[str, float]:
        create(stage)

        def make(_: int) -> Callable[[], int]:
            connection = stage.connect(autocommit=False)
            cursor = connection.cursor()

            def step() -> int:
                cursor.execute(INSERT, row)
                connection.commit()
                return 1

            return step

        per_s, count = rate(stage.size.seconds, connections, make)
        stage.check("raw rows", count, "SELECT COUNT(*) FROM raw_message")
        return {"messages/s": per_s}

    return measure


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


def commit_latency(stage: Stage) -> dict[str, float]:
    """How long one insert and its commit take, one after another with the pauses of a modest load."""
    create(stage)
    took: list[float] = []
    with stage.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for _ in range(stage.size.stamps):
            began = time.perf_counter()
            cursor.execute(INSERT, ROW)
            connection.commit()
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(PAUSE_S)
    stage.check("raw rows", len(took), "SELECT COUNT(*) FROM raw_message")
    return {"p50 ms": percentile(took, 0.5), "p99 ms": percentile(took, 0.99)}
