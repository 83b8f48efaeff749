"""The systems: how each is started, and asked."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import redis

from bench.flows.lines import FIRST, Line
from bench.peers.arena import Arena
from bench.peers.systems import Broker
from bench.peers.venvs import python_of
from bench.stage import Servers
from emsworker.local import ServerMissing

_ROOT = Path(__file__).parents[2]
_READY_S, _STOP_S = 60.0, 30.0

EMS_WORKER = ("emsworker", "worker", "-A", "bench.flows.apps.ems_side:app", "--log-level", "warning")
_CELERY_WORKER = ("celery", "-A", "bench.flows.apps.celery_side:app", "worker", "-c", "2", "--loglevel", "ERROR")


@dataclass(frozen=True)
class Side:
    """A system.

    Args:
        broker: the server that it needs.
        worker: the program beside, if it has one.
        lines: names of the lines that it has words for; all, if there are none.
        results: number of the database of Redis that keeps its results, if it keeps them there.
    """

    name: str
    broker: Broker
    requirements: tuple[str, ...]
    program: str
    worker: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    results: int | None = None

    def takes(self, line: Line) -> bool:
        """Return whether it has words for a line."""
        return not self.lines or line.name in self.lines


_CANVAS = ("calls", "join", FIRST.name)
EMS = Side("EMS", "database", (), "bench.flows.apps.ems_side", EMS_WORKER)
DBOS = Side("DBOS", "postgresql", ("dbos==3.4.0",), "bench.flows.apps.dbos_side")
CELERY_REDIS = Side("Celery, Redis", "redis", (), "bench.flows.apps.celery_side", _CELERY_WORKER, _CANVAS, 0)
CELERY_RABBITMQ = Side("Celery, RabbitMQ", "rabbitmq", (), "bench.flows.apps.celery_side", _CELERY_WORKER, _CANVAS, 1)
SIDES = (EMS, DBOS, CELERY_REDIS, CELERY_RABBITMQ)


class NotInTime(Exception):
    """A line was not done in its time."""


class Asked:
    """A program that answers, and its worker, on an empty server; a context manager.

    Attributes:
        environ: where its server is.
        worker_pid: of the worker, if there is one.

    Raises:
        ServerMissing: the server is not installed.
    """

    def __init__(self, side: Side, servers: Servers, arena: Arena) -> None:
        self.side = side
        self._servers, self._arena = servers, arena
        self._stack = ExitStack()
        self._program: subprocess.Popen[str] | None = None
        self.environ: Mapping[str, str] = {}
        self.worker_pid = 0

    def __enter__(self) -> Asked:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def _start(self, stack: ExitStack) -> None:
        side = self.side
        python = python_of(side.name.lower(), side.requirements)
        self.environ = stack.enter_context(self._server())
        env = {**plain_environ(), **self.environ}
        if side.worker:
            self.worker_pid = stack.enter_context(running([str(python), "-m", *side.worker], env)).pid
        argv = [str(python), "-c", f"from {side.program} import main; main()"]
        self._program = stack.enter_context(running(argv, env, asked=True))
        assert self._read(_READY_S) == "ready"

    @contextmanager
    def _server(self) -> Iterator[Mapping[str, str]]:
        """An empty server, as the environment that tells where it is."""
        side, results = self.side, {} if self.side.results is None else {"BENCH_BACKEND": self._results()}
        if side.broker == "redis":
            yield results | {"BENCH_BROKER": results["BENCH_BACKEND"], "BENCH_QUEUE": f"bench-{secrets.token_hex(4)}"}
            return
        with self._arena.fresh(side.broker) as found:
            yield found | results

    def _results(self) -> str:
        """The address of an empty database of Redis, which syncs each command."""
        if self._servers.redis is None:
            raise ServerMissing("no Redis server found; Debian: apt-get install redis-server")
        url = f"{self._servers.redis.url.removesuffix('/0')}/{self.side.results}"
        with redis.Redis.from_url(url) as client:
            client.config_set("appendonly", "yes")
            client.config_set("appendfsync", "always")
            client.flushdb()
        return url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def kill(self) -> None:
        """End it in the middle of its work."""
        error = NotInTime()
        self._stack.__exit__(NotInTime, error, None)

    def ask(self, line: Line, amount: tuple[int, int], within_s: float) -> float | list[float]:
        """Measure a line once; return seconds or, of ``FIRST``, milliseconds.

        Raises:
            NotInTime: it is not done; the program must be ended.
        """
        assert self._program is not None
        assert self._program.stdin is not None
        self._program.stdin.write(json.dumps([line.name, *amount]) + "\n")
        self._program.stdin.flush()
        found = self._read(within_s)
        assert isinstance(found, float | list)
        return found

    def _read(self, within_s: float) -> object:
        assert self._program is not None
        assert self._program.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._program.stdout, selectors.EVENT_READ)
            if not selector.select(within_s):
                raise NotInTime(f"{self.side.name}: no answer within {within_s:g} s")
        text = self._program.stdout.readline()
        if not text:
            raise SystemExit(f"Error: the program of {self.side.name} has ended; its errors are above")
        found: object = json.loads(text)
        return found


def plain_environ() -> dict[str, str]:
    """The environment of every program, without what is set for this one alone."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {"PYTHONPATH": str(_ROOT)}


@contextmanager
def running(argv: Sequence[str], env: Mapping[str, str], *, asked: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A program in a session of its own, all of which ends with the block: soon, if that was left by an error."""
    pipe = subprocess.PIPE if asked else subprocess.DEVNULL
    process = subprocess.Popen(
        argv, env=dict(env), cwd=_ROOT, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    try:
        yield process
        if process.stdin is not None:
            process.stdin.close()
        else:
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
