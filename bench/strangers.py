"""Clients and processes that a measurement does not know of: beside them no figure is taken.

A worker that was left over once consumed beside the sender that was measured, and halved its figure unnoticed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import redis

from bench.studies.processes import family
from emsworker.core.url import DatabaseUrl

_LEAVING_S, _LOOK_S = 5.0, 0.05  # a server notices a little later that a client has gone
_WORKERS = ("bench.app", "bench.peers.apps", "bench.studies", "bench.celery", "bench.flows")
_SERVERS_OWN = ("system user", "event_scheduler")


class Strangers(Exception):
    """Somebody else is there; the figures would be void."""


def refuse_clients(database_url: str, redis_url: str | None = None) -> None:
    """Refuse to measure on servers to which anybody else is connected.

    Args:
        database_url: of a user who sees all connections.

    Raises:
        Strangers: one is there, and does not go.
    """
    _refuse(lambda: _of_database(database_url), "the database server")
    if redis_url is not None:
        _refuse(lambda: _of_redis(redis_url), "Redis")


def _refuse(look: Callable[[], list[str]], server: str) -> None:
    until = time.monotonic() + _LEAVING_S
    while found := look():
        if time.monotonic() > until:
            raise Strangers(f"{server} has clients that this measurement does not know, end them: {', '.join(found)}")
        time.sleep(_LOOK_S)


def _of_database(address: str) -> list[str]:
    url = DatabaseUrl.parse(address)
    with (
        pymysql.connect(host=url.host, port=url.port, user=url.user, password=url.password) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT id, user, host, db, command FROM information_schema.PROCESSLIST")
        own = _own_ports()
        return [
            f"connection {number} of {user} from {host} in {database} ({command})"
            for number, user, host, database, command in cursor.fetchall()
            if user not in _SERVERS_OWN and command != "Daemon" and _port(host) not in own
        ]


def _of_redis(url: str) -> list[str]:
    with redis.Redis.from_url(url) as client:
        found, own = client.client_list(), _own_ports()
        return [f"{one['addr']} ({one['cmd']})" for one in found if _port(one["addr"]) not in own]


def _port(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _own_ports() -> set[int]:
    """The local ports of this process's connections; processes that it has started are not known."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            own.add(str(descriptor.readlink()))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in own}


def refuse_workers() -> None:
    """Refuse to measure beside processes of another benchmark: they take the same processors.

    Raises:
        Strangers: there are some.
    """
    if found := list(_other_workers()):
        raise Strangers(f"processes of another benchmark run on this machine, end them: {', '.join(found)}")


def _other_workers() -> Iterator[str]:
    known = {*family(os.getpid()), *_ancestors()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().split("\0")
        except OSError:  # it has ended, or belongs to another user
            continue
        if int(folder.name) not in known and any(word.startswith(_WORKERS) for word in command):
            yield f"{folder.name} ({' '.join(command).strip()[:80]})"


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
