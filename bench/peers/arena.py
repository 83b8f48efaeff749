"""The servers of a comparison: started when a system first needs them, and emptied before each of its runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from bench.peers.servers import PostgreSQL, RabbitMQ
from bench.peers.systems import Broker, System
from bench.stage import QUICK, Servers
from emsworker.local import ServerMissing


class Arena:
    """The private servers of a run.

    Args:
        servers: the database, and Redis.
        folder: for the others.
    """

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.folder = folder
        self._servers = servers
        self._stack = ExitStack()
        self._postgresql: PostgreSQL | None = None
        self._rabbitmq: RabbitMQ | None = None

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def fresh(self, broker: Broker) -> Iterator[dict[str, str]]:
        """An empty server of a kind, as the environment that tells it where.

        Raises:
            ServerMissing: it is not installed.
        """
        if broker.startswith("database"):
            with self._servers.stage(QUICK) as stage:
                env = {"EMS_URL": stage.url}
                yield env | {"EMS_REDIS_URL": self._redis()} if broker == "database+redis" else env
        elif broker == "redis":
            yield {"BENCH_BROKER": self._redis(), "BENCH_QUEUE": "bench"}
        elif broker == "rabbitmq":
            yield {"BENCH_BROKER": self._started_rabbitmq().url, "BENCH_QUEUE": f"bench-{secrets.token_hex(4)}"}
        else:
            yield {"BENCH_BROKER": self._started_postgresql().fresh()}

    def version_of(self, system: System) -> str:
        """The server that it ran on."""
        if system.broker == "redis":
            return f"Redis {self._servers.redis.version}" if self._servers.redis is not None else ""
        if system.broker == "rabbitmq":
            return f"RabbitMQ {self._started_rabbitmq().version}"
        if system.broker == "postgresql":
            return f"PostgreSQL {self._started_postgresql().version}"
        return f"{self._servers.database.flavor} {self._servers.database.version}"

    def _redis(self) -> str:
        if self._servers.redis is None:
            raise ServerMissing("no Redis server found; Debian: apt-get install redis-server")
        url = self._servers.redis.url
        with redis.Redis.from_url(url) as client:
            client.flushall()
        return url

    def _started_postgresql(self) -> PostgreSQL:
        if self._postgresql is None:
            server = PostgreSQL(self.folder / "postgresql")
            self._stack.callback(server.stop)
            server.start()
            self._postgresql = server
        return self._postgresql

    def _started_rabbitmq(self) -> RabbitMQ:
        if self._rabbitmq is None:
            server = RabbitMQ(self.folder / "rabbitmq")
            self._stack.callback(server.stop)
            server.start()
            self._rabbitmq = server
        return self._rabbitmq
