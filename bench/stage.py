"""Where a measurement runs: private servers for the whole run, a new database for each measurement."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql

from bench.strangers import refuse_clients
from emsworker.core.extension import extensions
from emsworker.core.url import DatabaseUrl
from emsworker.local import LocalDatabase as Server
from emsworker.local import Redis, ServerMissing
from emsworker.local.engines import Flavor
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate

if TYPE_CHECKING:
    Connection = pymysql.connections.Connection[Any]


class NotRight(Exception):
    """A check failed: something was lost, doubled or never finished; the figures are void."""


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Args:
        repeats: how often each pair of measurements is repeated.
        seconds: how long a publishing measurement lasts.
        drained: messages in a drain of no-op tasks.
        transactions: messages in a drain of transactional tasks.
        stamps: messages in a latency measurement.
    """

    repeats: int
    seconds: float
    drained: int
    transactions: int
    stamps: int


QUICK = Size(repeats=1, seconds=0.8, drained=20_000, transactions=2_000, stamps=300)
DEFAULT = Size(repeats=3, seconds=1.2, drained=40_000, transactions=3_000, stamps=500)
FULL = Size(repeats=7, seconds=5, drained=200_000, transactions=20_000, stamps=5_000)


@dataclass(frozen=True)
class Stage:
    """What a measurement is given: a database of its own with the tables of EMS, and a folder."""

    url: str
    redis_url: str | None
    folder: Path
    size: Size

    def connect(self, *, autocommit: bool = True, client_flag: int = 0) -> Connection:
        """A plain PyMySQL connection, as anybody would open it."""
        url = DatabaseUrl.parse(self.url)
        return pymysql.connect(
            host=url.host,
            port=url.port,
            user=url.user,
            password=url.password,
            database=url.database,
            charset="utf8mb4",
            autocommit=autocommit,
            client_flag=client_flag,
        )

    def value(self, query: str) -> Any:
        """The first column of the only row of a query."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
            return None if row is None else row[0]

    def check(self, what: str, expected: object, query: str) -> None:
        """Compare a query's value with what it must be.

        Raises:
            NotRight: they differ.
        """
        found = self.value(query)
        if found != expected:
            raise NotRight(f"{what}: expected {expected}, found {found}")


class Servers:
    """A private database server, and a Redis where one is installed; both stop when the run ends."""

    def __init__(self, folder: Path, flavor: Flavor) -> None:
        self._folder = folder
        self.database = Server(folder / "database", flavor)
        self.redis: Redis | None = Redis(folder / "redis")
        self._stack = ExitStack()

    def __enter__(self) -> Servers:
        self._stack.callback(self.database.stop)
        self.database.start()
        redis = self.redis
        if redis is not None:
            try:
                redis.start()
                self._stack.callback(redis.stop)
            except ServerMissing:
                self.redis = None
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def stage(self, size: Size, *, redis: bool = False) -> Iterator[Stage]:
        """A new database with the tables of EMS, dropped afterwards.

        Raises:
            Strangers: somebody else uses the servers.
        """
        refuse_clients(self.database.admin_url, self.redis.url if self.redis is not None else None)
        name = f"ems_{secrets.token_hex(4)}"
        self._run(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        url = re.sub(r"/ems$", f"/{name}", self.database.url)
        folder = self._folder / name
        folder.mkdir()
        try:
            with Database(url).session() as session:
                migrate(session, extensions().values())
            yield Stage(url, self.redis.url if redis and self.redis is not None else None, folder, size)
        finally:
            self._run(f"DROP DATABASE `{name}`")

    def _run(self, statement: str) -> None:
        with Stage(self.database.url, None, self._folder, QUICK).connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
