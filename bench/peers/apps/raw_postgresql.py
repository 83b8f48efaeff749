"""What PostgreSQL and its Python client can do at all: a row a commit; consuming deletes one row a transaction."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from bench.peers.apps import tally

_senders: list[Any] = []
_stopping: list[int] = []
_TAKE = "DELETE FROM raw WHERE id = (SELECT id FROM raw ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING body"


def _connection() -> Any:
    if not _senders:
        _senders.append(psycopg.connect(os.environ["BENCH_BROKER"], autocommit=True))
    return _senders[0]


def prepare() -> None:
    """Create the table."""
    _connection().execute("CREATE TABLE raw (id BIGSERIAL PRIMARY KEY, body TEXT NOT NULL)")


def send(number: int) -> None:
    _connection().execute("INSERT INTO raw (body) VALUES (%s)", (json.dumps({"number": number}),))


def send_many(numbers: Sequence[int]) -> None:
    with _connection().cursor().copy("COPY raw (body) FROM STDIN") as copy:
        for number in numbers:
            copy.write_row((json.dumps({"number": number}),))


def main() -> None:
    """A worker process."""
    signal.signal(signal.SIGTERM, lambda *_: _stopping.append(1))
    while not _stopping:
        with _connection().transaction():
            row = _connection().execute(_TAKE).fetchone()
            if row is not None:
                tally.ran(json.loads(row[0])["number"])
        if row is None:
            time.sleep(0.005)


if __name__ == "__main__":
    main()
