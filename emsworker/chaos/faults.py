"""Fault injection into a stream; it needs no privileges and leaves nothing broken.

Faults hit worker processes of this machine (``kill``: kill -9; ``pause``: SIGSTOP, and SIGCONT after the lease has
expired) and connections of the stream's user (``connection``: KILL, at any point).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from emsworker.chaos.history import Fault, Log, note_fault
from emsworker.extending.database import Database
from emsworker.extending.stream import clients, snapshot
from emsworker.extending.values import local_ip

FAULTS = ("kill", "pause", "connection")
_LOOK_S = 0.05


def child_pids(database: Database, url: str, name: str | None = None) -> list[int]:
    """Return the worker processes of this machine that hold a valid lease.

    Args:
        url: the URL of the stream, from which the address of this machine is derived.
        name: the name of the workers; all if it is ``None``.
    """
    here, found = local_ip(url), set()
    for row in database.call(clients.list_clients):
        ip, pid, *_ = row.client_id.split("-")
        if row.alive and ip == here and name in (None, row.name) and _is_python(int(pid)):
            found.add(int(pid))
    return sorted(found)


def _is_python(pid: int) -> bool:
    """Return whether a process is a worker; the pid alone proves nothing, because two machines may share an address."""
    try:
        return b"emsworker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Breaker:
    """Fault injector that records each fault, so that the checker can attribute repetitions to it.

    Args:
        database: the database of the stream; url: its URL.
        log: the history.
        chance: the source of randomness.
        name: the name of the workers that may be hit; all if it is ``None``.
        pause_s: the duration of a pause; it has no effect unless it is longer than the lease.
    """

    def __init__(
        self, database: Database, url: str, log: Log, chance: random.Random, name: str | None, pause_s: float
    ) -> None:
        self._database, self._url, self._log, self._chance, self._name = database, url, log, chance, name
        self._pause_s = pause_s

    def bring_about(self, fault: str) -> Fault | None:
        """Inject one fault; return ``None`` if there is currently nothing to hit.

        Args:
            fault: one of ``FAULTS``.
        """
        hit = {"kill": self.kill, "pause": self.pause, "connection": self.cut_connections}[fault]
        return hit()

    def kill(self) -> Fault | None:
        """Kill a worker process with SIGKILL."""
        return self._signal("kill", [signal.SIGKILL], lambda: None)

    def pause(self) -> Fault | None:
        """Stop a worker process for longer than its lease, and let it continue."""
        return self._signal("pause", [signal.SIGSTOP, signal.SIGCONT], lambda: time.sleep(self._pause_s))

    def _signal(self, name: str, numbers: list[signal.Signals], between: Callable[[], None]) -> Fault | None:
        pids = child_pids(self._database, self._url, self._name)
        if not pids:
            return None
        pid, began = self._chance.choice(pids), time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(pid, numbers[0])
            try:
                between()
            finally:
                os.kill(pid, numbers[-1])
        return self._noted(Fault(name, began, time.monotonic(), pid))

    def cut_connections(self) -> Fault | None:
        """Kill some connections of this user."""
        began = time.monotonic()
        numbers = self._database.call(snapshot.list_connections)
        if not numbers:
            return None
        for number in self._chance.sample(numbers, 1 + len(numbers) // 4):
            self._database.call(partial(snapshot.kill_connection, number=number))
        return self._noted(Fault("connection", began, time.monotonic()))

    def _noted(self, fault: Fault) -> Fault:
        note_fault(self._log, fault)
        return fault

    def go_on(self, faults: list[str], for_s: float, every_s: float) -> Iterator[Fault]:
        """Inject one fault after another, at random.

        Args:
            faults: the faults; for_s: the total duration; every_s: the average interval between two faults.
        """
        deadline = time.monotonic() + for_s
        while True:
            due = time.monotonic() + self._chance.uniform(0.5, 1.5) * every_s
            while time.monotonic() < due:
                if time.monotonic() > deadline:
                    return
                time.sleep(_LOOK_S)
            if (fault := self.bring_about(self._chance.choice(faults))) is not None:
                yield fault
