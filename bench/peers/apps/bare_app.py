"""The bare loop: what MySQL and Python can do at all with a log row per message, and nothing else.

Claim 500 under a row lock, write their log rows, read, decode the JSON, call, acknowledge all with one update. No
leases, no retries, no holes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from bench.peers.apps import original_tables, tally

_BATCH = 500
_senders: list[Any] = []
_stopping: list[int] = []


def _sender() -> Any:
    if not _senders:
        _senders.append(original_tables.connect(autocommit=False))
    return _senders[0]


def prepare() -> None:
    """Create the tables."""
    original_tables.create()


def send(number: int) -> None:
    send_many([number])


def send_many(numbers: Sequence[int]) -> None:
    with _sender().cursor() as cursor:
        cursor.executemany(
            "INSERT INTO old_message VALUES (%s, %s)",
            [(number + 1, json.dumps({"number": number})) for number in numbers],
        )
    _sender().commit()


def _batch(connection: Any, cursor: Any, client: str) -> int:
    cursor.execute("SELECT next_offset FROM old_cursor WHERE id = 1 FOR UPDATE")
    first = cursor.fetchone()[0]
    cursor.execute("SELECT `offset` FROM old_message WHERE `offset` >= %s ORDER BY `offset` LIMIT %s", (first, _BATCH))
    offsets = [row[0] for row in cursor.fetchall()]
    if not offsets:
        connection.rollback()
        return 0
    cursor.executemany(
        "INSERT INTO old_log VALUES (1, %s, %s, 'start', NOW(6), NULL)", [(offset, client) for offset in offsets]
    )
    cursor.execute("UPDATE old_cursor SET next_offset = %s WHERE id = 1", (offsets[-1] + 1,))
    connection.commit()
    cursor.execute("SELECT body FROM old_message WHERE `offset` BETWEEN %s AND %s", (offsets[0], offsets[-1]))
    for (body,) in cursor.fetchall():
        tally.ran(json.loads(body)["number"])
    cursor.execute(
        "UPDATE old_log SET state = 'done', ended_at = NOW(6) WHERE group_id = 1 AND `offset` BETWEEN %s AND %s",
        (offsets[0], offsets[-1]),
    )
    connection.commit()
    return len(offsets)


def main() -> None:
    """A worker process."""
    signal.signal(signal.SIGTERM, lambda *_: _stopping.append(1))
    with original_tables.connect(autocommit=False) as connection, connection.cursor() as cursor:
        while not _stopping:
            if not _batch(connection, cursor, str(os.getpid())):
                time.sleep(0.005)


if __name__ == "__main__":
    main()
