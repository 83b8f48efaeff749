"""The brokers: how each is started, and what a confirmed call survives there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import redis

from bench.peers.servers import RabbitMQ
from bench.stage import QUICK, Servers
from emsworker.local import ServerMissing


@dataclass(frozen=True)
class Side:
    """A broker.

    Args:
        name: on the command line.
        title: for people.
        durability: of a message for which ``delay()`` has returned.
        latency_only: it differs from another side in nothing else.
    """

    name: str
    title: str
    durability: str
    latency_only: bool = False


EMS = Side("ems", "EMS", "synced at every commit")
WOKEN = Side("ems-redis", "EMS, woken by Redis", "the same", latency_only=True)
REDIS = Side("redis", "Redis", "none: no append-only file")
REDIS_AOF = Side("redis-aof", "Redis, appendfsync always", "synced at every command")
RABBITMQ = Side("rabbitmq", "RabbitMQ", "durable queue, publisher confirms")
SIDES = (EMS, WOKEN, REDIS, REDIS_AOF, RABBITMQ)


@dataclass(frozen=True)
class CallPlace:
    """An empty broker.

    Args:
        broker: its address.
        backend: of results; None where they would go elsewhere.
        pid: of the server's process.
        confirmed: options of the transport by which `delay()` returns when the message is safe.
        unconfirmed: options by which it returns earlier.
        database: for counting statements; None where there is none.
    """

    broker: str
    backend: str | None
    pid: int
    confirmed: Mapping[str, object] = field(default_factory=dict)
    unconfirmed: Mapping[str, object] | None = None
    database: str | None = None

    def cpu_s(self) -> float:
        """Processor time that the server has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Brokers:
    """The servers of a run, each started when it is first needed.

    Args:
        servers: the database, and Redis.
        folder: for RabbitMQ.
    """

    def __init__(self, servers: Servers, folder: Path) -> None:
        self._servers, self._folder = servers, folder
        self._stack = ExitStack()
        self._rabbitmq: RabbitMQ | None = None

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def fresh(self, side: Side) -> Iterator[CallPlace]:
        """An empty broker of a kind.

        Raises:
            ServerMissing: it is not installed.
        """
        if side in (EMS, WOKEN):
            with self._servers.stage(QUICK) as stage:
                url, pid = f"ems+{stage.url}", self._servers.database.pid
                options = {"redis_url": self._redis("no")} if side is WOKEN else {}
                assert pid is not None
                yield CallPlace(
                    url, url, pid, options, options | {"confirm_publish": False}, self._servers.database.admin_url
                )
        elif side is RABBITMQ:
            server = self._started_rabbitmq()
            yield CallPlace(server.url, None, server.pid, {"confirm_publish": True}, {"confirm_publish": False})
        else:
            url, server_pid = self._redis("always" if side is REDIS_AOF else "no"), self._servers.redis
            assert server_pid is not None and server_pid.pid is not None
            yield CallPlace(url, url.removesuffix("/0") + "/1", server_pid.pid)

    def _redis(self, sync: str) -> str:
        server = self._servers.redis
        if server is None:
            raise ServerMissing("no Redis server found; Debian: apt-get install redis-server")
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
            client.config_set("appendonly", "no" if sync == "no" else "yes")
            client.config_set("appendfsync", sync)
        return server.url

    def _started_rabbitmq(self) -> RabbitMQ:
        if self._rabbitmq is None:
            server = RabbitMQ(self._folder / "rabbitmq")
            self._stack.callback(server.stop)
            server.start()
            self._rabbitmq = server
        return self._rabbitmq

    def version_of(self, side: Side) -> str:
        """The server and its version."""
        if side is RABBITMQ:
            return f"RabbitMQ {self._started_rabbitmq().version}"
        if side in (EMS, WOKEN):
            return f"{self._servers.database.flavor} {self._servers.database.version}"
        return f"Redis {self._servers.redis.version}" if self._servers.redis else ""


@contextmanager
def counting(admin_url: str | None) -> Iterator[Callable[[], int]]:
    """A function that counts the statements that a server has been asked, this one included; 0 without a server."""
    from emsworker.core.url import DatabaseUrl

    if admin_url is None:
        yield lambda: 0
        return
    url = DatabaseUrl.parse(admin_url)
    with (
        pymysql.connect(host=url.host, port=url.port, user=url.user, password=url.password) as connection,
        connection.cursor() as cursor,
    ):

        def count() -> int:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            row = cursor.fetchone()
            return int(row[1]) if row else 0

        yield count
