"""The algorithm that EMS starts from: an offset from Redis, one insert per message, a lock, a log row and an ack each.

A consumer takes the group's lock in Redis, reads up to 100 messages from the cursor on, waits up to 100 ms at a hole,
writes a log row for each message, moves the cursor and lets the lock go; then it runs them, and each is acknowledged by
an update and a commit of its own. As many threads and processes as EMS has.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import Any

import redis

from bench.peers.apps import original_tables, tally

_BATCH, _THREADS = 100, 4
_LOCK_MS, _HOLE_S, _IDLE_S = 5000, 0.1, 0.005
_UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"
_redis = redis.Redis.from_url(os.environ["EMS_REDIS_URL"])
_senders: list[Any] = []


def prepare() -> None:
    """Create the tables."""
    original_tables.create()


def send(number: int) -> None:
    if not _senders:
        _senders.append(original_tables.connect(autocommit=True))
    offset = _redis.incr("old:offset")
    with _senders[0].cursor() as cursor:
        cursor.execute("INSERT INTO old_message VALUES (%s, %s)", (offset, json.dumps({"number": number})))


def _without_holes(cursor: Any, first: int) -> list[tuple[int, bytes]]:
    """What follows the cursor up to a hole; after 100 ms a hole is given up, and its message lost."""
    deadline = time.monotonic() + _HOLE_S
    while True:
        cursor.execute(
            "SELECT `offset`, body FROM old_message WHERE `offset` >= %s ORDER BY `offset` LIMIT %s", (first, _BATCH)
        )
        rows = list(cursor.fetchall())
        if not rows or rows[-1][0] == first + len(rows) - 1 or time.monotonic() > deadline:
            return rows
        cursor.connection.rollback()  # look again at what has been committed since


def _take(connection: Any, client: str) -> list[tuple[int, bytes]]:
    if not _redis.set("old:lock", client, nx=True, px=_LOCK_MS):
        return []
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT next_offset FROM old_cursor WHERE id = 1")
            rows = _without_holes(cursor, cursor.fetchone()[0])
            if rows:
                cursor.executemany(
                    "INSERT INTO old_log VALUES (1, %s, %s, 'start', NOW(6), NULL)",
                    [(offset, client) for offset, _ in rows],
                )
                cursor.execute("UPDATE old_cursor SET next_offset = %s WHERE id = 1", (rows[-1][0] + 1,))
        connection.commit()
    finally:
        _redis.eval(_UNLOCK, 1, "old:lock", client)
    return rows


def _work(stop: threading.Event) -> None:
    client = f"{os.getpid()}-{threading.get_ident()}"
    with original_tables.connect(autocommit=False) as connection, connection.cursor() as cursor:
        while not stop.is_set():
            rows = _take(connection, client)
            for offset, body in rows:
                tally.ran(json.loads(body)["number"])
                cursor.execute(
                    "UPDATE old_log SET state = 'done', ended_at = NOW(6) WHERE group_id = 1 AND `offset` = %s "
                    "AND client = %s",
                    (offset, client),
                )
                connection.commit()
            if not rows:
                stop.wait(_IDLE_S)


def main() -> None:
    """A worker process."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = [threading.Thread(target=_work, args=(stop,)) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
