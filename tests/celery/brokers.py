"""Brokers that Celery runs on: an address for messages, one for results, and one where nobody listens."""

from __future__ import annotations

import re
from dataclasses import dataclass

import redis

from emsworker.local import Redis
from emsworker.store.engine.database import Database
from tests.support.tables import migrate


@dataclass(frozen=True)
class Broker:
    """Where a Celery project sends its tasks.

    Args:
        name: ``ems`` or ``redis``.
        url: of the messages.
        backend: of the results.
        dead: an address of the same kind where nothing listens.
    """

    name: str
    url: str
    backend: str
    dead: str


def ems(database: str) -> Broker:
    """EMS in a new database.

    Args:
        database: the URL of an empty one.
    """
    with Database(database).session() as session:
        migrate(session)
    url = f"ems+{database}"
    return Broker("ems", url, url, re.sub(r":\d+/", ":1/", url))


def on_redis(server: Redis) -> Broker:
    """A running Redis."""
    return Broker(
        "redis", f"redis://127.0.0.1:{server.port}/0", f"redis://127.0.0.1:{server.port}/1", "redis://127.0.0.1:1/0"
    )


def open_redis(server: Redis, *, empty: bool = True) -> None:
    """Start a Redis and take its password away, which other people's tests do not know.

    Args:
        server: the server.
        empty: remove what is in it.
    """
    server.start()
    with redis.Redis(port=server.port, password=_password(server)) as client:
        client.config_set("requirepass", "")
        if empty:
            client.flushall()


def _password(server: Redis) -> str | None:
    """Return what it asks for: one that was opened before, and has not been started again, refuses a password."""
    with redis.Redis(port=server.port) as client:
        try:
            client.ping()
        except redis.AuthenticationError:
            return server.url.split("@")[0].rpartition(":")[2]
    return None
