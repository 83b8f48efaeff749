"""Faults that anybody may bring about on a stream of his own: no privilege is needed, and nothing is left broken.

They hit worker processes of this machine (``kill``: kill -9; ``pause``: SIGSTOP, and SIGCONT when the lease is over)
and connections of the stream's user (``connection``: KILL, in whatever it does).
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
from emsworker.core.ids import local_ip
from emsworker.store import clients, snapshot
from emsworker.store.database import Database

FAULTS = ("kill", "pause", "connection")
_LOOK_S = 0.05


def child_pids(database: Database, url: str, name: str | None = None) -> list[int]:
    """The worker processes of this machine that hold a good lease.

    Args:
        url: of the stream: by it this machine knows its own address.
        name: of the workers; all if it is ``None``.
    """
    here, found = local_ip(url), set()
    for row in database.call(clients.list_clients):
        ip, pid, *_ = row.client_id.split("-")
        if row.alive and ip == here and name in (None, row.name) and _is_python(int(pid)):
            found.add(int(pid))
    return sorted(found)


def _is_python(pid: int) -> bool:
    """A number alone proves nothing: two machines behind one address may share it."""
    try:
        return b"emsworker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Breaker:
    """Brings about faults and writes each down, so that the checker knows what they explain.

    Args:
        database: of the stream; url: its address.
        log: the history.
        chance: decides what is hit.
        name: of the workers that may be hit; all if it is ``None``.
        pause_s: how long a process is paused; longer than its lease, or nothing comes of it.
    """

    def __init__(
        self, database: Database, url: str, log: Log, chance: random.Random, name: str | None, pause_s: float
    ) -> None:
        self._database, self._url, self._log, self._chance, self._name = database, url, log, chance, name
        self._pause_s = pause_s

    def bring_about(self, fault: str) -> Fault | None:
        """One fault; ``None`` if there is nothing to hit just now.

        Args:
            fault: one of ``FAULTS``.
        """
        hit = {"kill": self.kill, "pause": self.pause, "connection": self.cut_connections}[fault]
        return hit()

    def kill(self) -> Fault | None:
        """Kill -9 of a worker process."""
        return self._signal("kill", [signal.SIGKILL], lambda: None)

    def pause(self) -> Fault | None:
        """Stop a worker process for longer than its lease, and let it go on."""
        return self._signal("pause", [signal.SIGSTOP, signal.SIGCONT], lambda: time.sleep(self._pause_s))

    def _signal(self, name: str, numbers: list[signal.Signals], between: Callable[[], None]) -> Fault | None:
        pids = child_pids(self._database, self._url, self._name)
        if not pids:
            return None
        pid, began = self._chance.choice(pids), time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
            os.kill(pid, numbers[0])
            try:
                between()
            finally:
                os.kill(pid, numbers[-1])
        return self._noted(Fault(name, began, time.monotonic(), pid))

    def cut_connections(self) -> Fault | None:
        """KILL of some connections of this user."""
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
        """Bring about one fault after the other, at random.

        Args:
            faults: which ones; for_s: for how long; every_s: how long it takes from one to the next on average.
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
