"""A stream with workers and producers around it, and everything that a scenario needs to break them."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pymysql

from emsworker.chaos import ChaosReport, Fault, Rules, check_stream
from emsworker.chaos.history import Log, note_fault
from emsworker.local import LocalDatabase as Server
from emsworker.local import Redis
from emsworker.store.engine.database import Database
from emsworker.store.engine.errors import is_server_trouble
from emsworker.store.topics import create_topic
from tests.support.looker import Looker
from tests.support.machine import machine_s
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.waiting import until
from tests.support.worker import ROOT, Program, kill
from verification.chaos.names import PARTITIONS, TOPIC
from verification.chaos.network import Network
from verification.chaos.sites import Open, Site

LEASE_S = 4.0
LOST_LEASE, ORPHANED = "lease", "orphaned"
SETTINGS: dict[str, Any] = {"lease_s": LEASE_S, "beat_lease_s": 1.5, "max_attempts": 50, "timeout_s": 15}
_RAN_OUT = re.compile(r"^(\S+ \S+),\d+ ERROR +(\d+) .*the leases of this process ran out", re.MULTILINE)
# Who is starved need not notice: a renewal that waits in the server begins in time, and is there when others have
# acted.
_TAKEN_FOR_DEAD = re.compile(
    r"^(\S+ \S+),\d+ WARNING .*recovered a claim of [^ -]+-(\d+)-\S+ .*its lease was over for \d", re.MULTILINE
)
_SETTLE_S, _START_S, _LOOK_S = 90, 60, 20
# A loaded machine may take so long to commit what has run; how much *work* may be repeated is judged by recovery.py.
_COMMIT_S = 2.0
_READ_AHEAD_S = 8.0
APP = "verification.chaos.app:app"


class DirectLooker(Looker):
    """Looks into the database itself, and tells the programs another way to it.

    A server that cannot serve for now is asked again for some seconds: one of a cluster refuses everything while it
    changes from one view to the next, also after all nodes were seen to be back.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site.told)
        self._site = site

    def rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """The rows of a query; a statement that changes something is committed."""
        deadline = machine_s() + _LOOK_S
        while True:
            try:
                return super().rows(statement, *args)
            except pymysql.err.OperationalError as error:
                if not is_server_trouble(error) or machine_s() > deadline:
                    raise
                time.sleep(0.1)

    def _rows(self, statement: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = connect(self._site.url, autocommit=True)
        return super()._rows(statement, args)


@dataclass
class Arena:
    """Where it happens.

    Args:
        site: where the stream lives; redis: or ``None``.
        allocator: ``mysql`` or ``redis``.
        chance: decides everything that is not said.
        settings: of the workers; topic: of the topic; root: the folder whose code the processes run.
        app: of the workers; spared: so many workers, the first ones, are never hit themselves.
    """

    site: Site
    redis: Redis | None
    folder: Path
    allocator: str
    chance: random.Random
    settings: dict[str, Any] = field(default_factory=dict)
    topic: dict[str, Any] = field(default_factory=dict)
    root: Path = ROOT
    environ: dict[str, str] = field(default_factory=dict)
    app: str = APP
    spared: int = 0
    workers: list[Program] = field(default_factory=list)
    producers: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _noted: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.log = Log(self.folder / "history", sync=False)
        self.looker = DirectLooker(self.site)
        with Database(self.url).session() as session:
            migrate(session)
            create_topic(session, TOPIC, partitions=PARTITIONS, **self.topic)
        self.looker.rows(
            "CREATE TABLE cash (id BIGINT PRIMARY KEY AUTO_INCREMENT, uid CHAR(36) NOT NULL) ENGINE=InnoDB"
        )
        # What the handlers of side topics write, each group its own.
        self.looker.rows(
            "CREATE TABLE orders (id BIGINT PRIMARY KEY AUTO_INCREMENT, grp VARCHAR(32) NOT NULL, uid CHAR(36) NOT NULL)"
            " ENGINE=InnoDB"
        )
        self.looker.rows("CREATE TABLE account (id INT PRIMARY KEY, amount INT NOT NULL) ENGINE=InnoDB")
        self.looker.rows("INSERT INTO account VALUES (1, 0), (2, 0)")

    @property
    def server(self) -> Server:
        """The server that the stream lives on."""
        return self.site.server

    @property
    def url(self) -> str:
        """The address of the database, as the harness reaches it."""
        return self.site.url

    @property
    def network(self) -> Network | None:
        """What is between the server and its clients, if it can be broken."""
        return self.site.network

    # -- who takes part ------------------------------------------------------------------------------------------------

    def start_worker(
        self,
        app: str = "",
        topics: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
    ) -> Program:
        """One more worker: a supervisor, a child, three threads; of the arena's app, or of another one for some topics."""
        settings = SETTINGS | self.settings | self._allocation()
        log = self.folder / f"worker-{len(self.workers)}.log"
        options = {
            "app": app or self.app,
            "topics": topics,
            "tags": tags,
            "environ": {**self.environ, **(environ or {})},
            "root": self.root,
        }
        program = Program("worker", self.looker, log, settings, threads=3, **options)
        self.workers.append(program)
        return program

    def _allocation(self) -> dict[str, Any]:
        return {"redis_url": self.redis.url, "allocator": self.allocator} if self.redis else {}

    def start_producer(self, pause_s: float = 0.1) -> "subprocess.Popen[bytes]":
        """One more producer."""
        return self.spawn_producer("verification.chaos.app", self.chance.randrange(10**6), pause_s)

    def spawn_producer(self, *command: Any) -> "subprocess.Popen[bytes]":
        """One more producer: a module and its arguments."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EMS_")}
        settings = {"url": self.looker.url, "connect_timeout_s": 3, **self._allocation()}
        environment |= {f"EMS_{name.upper()}": str(value) for name, value in settings.items()}
        environment |= {"EMS_TEST_RECORD": str(self.folder), **self.environ}
        with (self.folder / f"producer-{len(self.producers)}.log").open("ab") as log:
            whole = [sys.executable, "-m", *map(str, command)]
            self.producers.append(subprocess.Popen(whole, cwd=self.root, env=environment, stdout=log, stderr=log))
        return self.producers[-1]

    def start(self, workers: int = 2, producers: int = 2) -> None:
        """Everybody, until work goes on."""
        for worker in [self.start_worker() for _ in range(workers)]:
            worker.wait_ready()
        for _ in range(producers):
            self.start_producer()
        self.goes_on(15)

    def goes_on(self, more: int = 10) -> None:
        """Wait until some more effects are there."""
        target = self.effects_count() + more
        until(lambda: self.effects_count() >= target, _START_S, f"work goes on; logs:\n{self.tail()}")

    def effects_count(self) -> int:
        """How many effects there have been, and a few more: numbers of those that were rolled back are not used again."""
        return int(self.looker.rows("SELECT COALESCE(MAX(id), 0) FROM cash")[0][0])

    # -- faults --------------------------------------------------------------------------------------------------------

    def note(self, name: str, began: float, pid: int | None = None) -> Fault:
        """A fault that is over by now."""
        fault = Fault(name, began, time.monotonic(), pid)
        note_fault(self.log, fault)
        return fault

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """A fault that hits everybody."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.note(name, began)

    def kill(self, pids: list[int], name: str = "kill") -> None:
        """Kill -9 of processes, at once."""
        began = time.monotonic()
        for pid in pids:
            kill(pid, signal.SIGKILL)
        for pid in pids:
            self.note(name, began, pid)

    def admin(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as the administrator."""
        with connect(self.server.admin_url, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def hostile(self, **options: Any) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        """A session of somebody else."""
        return connect(self.url, autocommit=False, **options)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, settle_s: float = _SETTLE_S) -> float:
        """Stop the producers, wait until all is done, and stop the workers; returns how long the work took, in seconds."""
        for producer in self.producers:
            producer.terminate()
        for producer in self.producers:
            producer.wait(60)
        began = time.monotonic()
        until(lambda: not self.left(), settle_s, f"all is done; left: {self.left()}; logs:\n{self.tail()}", 0.1)
        took_s = time.monotonic() - began
        for worker in self.living():
            assert worker.stop() == 0, worker.text()[-3000:]
        return took_s

    def note_lost_leases(self) -> None:
        """A busy machine is a fault, too: who cannot renew in time is taken for dead, and his work is run elsewhere."""
        to_monotonic = time.monotonic() - time.time()
        for worker in self.workers:
            text = worker.text()
            lost = {*_RAN_OUT.findall(text), *_TAKEN_FOR_DEAD.findall(text)}
            for date, pid in sorted(lost - self._noted):
                self._noted.add((date, pid))
                at = datetime.fromisoformat(date).timestamp() + to_monotonic
                note_fault(self.log, Fault(LOST_LEASE, at - LEASE_S - 1, at + 1, int(pid)))
                print(f"  process {pid} lost its lease: it was hit, or the machine was busy", flush=True)

    def left(self) -> list[Any]:
        """Some of what is not done."""
        behind = self.looker.rows(
            "SELECT g.name, c.`partition`, c.next_offset FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id "
            "WHERE c.next_offset <= (SELECT MAX(m.`offset`) FROM ems_message m "
            "WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`)"
        )
        rows = self.looker.rows
        claims = rows("SELECT group_id, `partition`, lo, hi, state FROM ems_claim WHERE state <> 'done' LIMIT 5")
        retries = rows("SELECT group_id, `partition`, `offset`, due_at, claim_id FROM ems_retry LIMIT 5")
        return [*behind, *claims, *retries, *rows("SELECT topic_id FROM ems_outbox LIMIT 5")]

    def judge(self, settled: bool = True, client_grace_s: float = 15.0) -> ChaosReport:
        """What the checker says; ``settled``: all is done."""
        rules = Rules(settled=settled, bound_s=_COMMIT_S, client_grace_s=client_grace_s, read_ahead_s=_READ_AHEAD_S)

        def effects() -> dict[str, Counter[str]]:
            found = {"cash": Counter(uid for (uid,) in self.looker.rows("SELECT uid FROM cash"))}
            for group, uid in self.looker.rows("SELECT grp, uid FROM orders"):
                found.setdefault(group, Counter())[uid] += 1
            return found

        return check_stream(Database(self.url), self.folder / "history", rules, effects)

    def living(self) -> list[Program]:
        """The workers that run."""
        return [worker for worker in self.workers if worker.process.poll() is None]

    def victims(self) -> list[Program]:
        """The workers that may be hit, of those that run."""
        return [worker for worker in self.workers[self.spared :] if worker.process.poll() is None]

    def fix(self) -> None:
        """Everybody is there again, and ready: two workers and two producers."""
        self.producers = [one for one in self.producers if one.poll() is None]
        living = self.living()
        for _ in range(2 - len(living)):
            living.append(self.start_worker())
        for _ in range(2 - len(self.producers)):
            self.start_producer()
        for worker in living:
            worker.wait_ready()
        for extra in living[2:]:
            assert extra.stop() == 0, extra.text()[-3000:]
        self.goes_on()

    def tail(self) -> str:
        """The last lines of everybody."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n" + "\n".join(log.read_text().splitlines()[-12:]) for log in logs)

    def close(self) -> None:
        """End whatever still runs."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill_all()
        for producer in self.producers:
            if producer.poll() is None:
                producer.kill()
                producer.wait()
        self.looker.close()


@contextmanager
def opened(
    site: Open, server: Server, redis: Redis | None, folder: Path, *, kind: type[Arena] = Arena, **options: Any
) -> Iterator[Any]:
    """An arena, of this kind, in a database of its own.

    Args:
        site: one of :mod:`verification.chaos.sites`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if redis:
        redis.start(60)
    with site(server, folder) as where:
        arena = kind(where, redis, folder, **options)
        try:
            yield arena
        finally:
            arena.close()


Bring = Callable[[Arena], None]
