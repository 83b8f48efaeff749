"""What a server writes: rows, and its log; and waits for the lock of a row."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

from bench.flows.sides import DBOS, EMS, Asked
from bench.peers.servers import PostgreSQL
from bench.stage import Servers
from emsworker.core.url import DatabaseUrl

Counters = Mapping[str, int]

ROWS, LOG, LOG_WRITES, STATEMENTS, LOCK_WAITS = "rows", "log bytes", "log writes", "statements", "lock waits"
_STATUS = {
    "handler_write": ROWS,
    "handler_update": ROWS,
    "handler_delete": ROWS,
    "innodb_os_log_written": LOG,
    "innodb_log_writes": LOG_WRITES,
    "questions": STATEMENTS,
    "innodb_row_lock_waits": LOCK_WAITS,
}


def database_counters(servers: Servers) -> Counters:
    """Counters of the database server since its start."""
    url = DatabaseUrl.parse(servers.database.admin_url)
    with (
        pymysql.connect(host=url.host, port=url.port, user=url.user, password=url.password) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SHOW GLOBAL STATUS")
        found = dict.fromkeys(_STATUS.values(), 0)
        for name, value in cursor.fetchall():
            if name.lower() in _STATUS:
                found[_STATUS[name.lower()]] += int(value)
    return found


def _postgresql_counters(asked: Asked) -> Counters:
    """The bytes of the log of a PostgreSQL server since its start."""
    url = urlsplit(asked.environ["BENCH_BROKER"])
    place = {"PGHOST": url.hostname, "PGPORT": str(url.port), "PGUSER": url.username, "PGPASSWORD": url.password}
    argv: list[str | Path] = [
        PostgreSQL.find() / "psql",
        "-d",
        "postgres",
        "-XAtc",
        "SELECT pg_current_wal_insert_lsn() - '0/0'",
    ]
    env = {"PATH": os.defpath} | {name: value for name, value in place.items() if value}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return {LOG: int(done.stdout)}


def counter_of(asked: Asked, servers: Servers) -> Callable[[], Counters]:
    """Return what reads the counters of a side's server; of Celery's there are none."""
    if asked.side is EMS:
        return lambda: database_counters(servers)
    if asked.side is DBOS:
        return lambda: _postgresql_counters(asked)
    return dict


def difference(before: Counters, after: Counters) -> Counters:
    """Return what was counted between two looks."""
    return {name: value - before[name] for name, value in after.items()}
