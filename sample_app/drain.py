"""Runs the workers until nothing is left, and kills one of them half way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sample_app import stream
from sample_app.processes import Process, start_beat, start_worker
from sample_app.tables import Connection

_POLL_S = 0.05
_QUIET_S = 4.0
_STALL_S = 90.0
_STOP_S = 30.0


class DrainFailed(Exception):
    """The workers did not do what they should; the text ends with the log of the one concerned."""


class Drain:
    """Two workers and a beat; later a third worker in the place of the first.

    Args:
        connections: to the database of each server, in the way of the messages.
        environment: of the processes.
        folder: where their logs go.
        say: prints one line.
        processes, threads: of each worker.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        environment: Mapping[str, str],
        folder: Path,
        say: Callable[[str], None],
        processes: int = 1,
        threads: int = 4,
    ) -> None:
        self._connections = connections
        self._environment = environment
        self._folder = folder
        self._say = say
        self._size = (processes, threads)
        self._processes: list[Process] = []
        self.seconds = 0.0

    def run(self, passed: int, progress: Callable[[int], None]) -> None:
        """Start, kill one half way, start another, and return when the lag of every group is 0.

        Args:
            passed: how many messages the cursors of all groups will have passed, to know where the middle is.
            progress: called with the number of new ones.

        Raises:
            DrainFailed: a process ended by itself, or nothing went on for too long.
        """
        began = moved = time.monotonic()
        victim = self._start_worker("worker-1")
        self._start_worker("worker-2")
        self._processes.append(start_beat(self._environment, self._folder))
        before, killed, told = 0, False, began
        while True:
            groups = stream.read_groups(self._connections)
            now = stream.handed_out(groups)
            if now != before:
                progress(now - before)
                before, moved = now, time.monotonic()
            elif killed and time.monotonic() - max(moved, told) > _QUIET_S:
                told = time.monotonic()
                self._say(
                    f"nothing new for {told - moved:.0f} s: what {victim.name} had claimed is given to others when "
                    "its lease has run out, 15 s after its death"
                )
            if not killed and now >= passed // 2:
                self._kill(victim, now / passed)
                killed = True
            if killed and stream.finished(groups):
                break
            self._check_alive()
            if time.monotonic() - moved > _STALL_S:
                raise DrainFailed(f"nothing went on for {_STALL_S:g} s: {groups}")
            time.sleep(_POLL_S)
        self.seconds = time.monotonic() - began

    def _start_worker(self, name: str) -> Process:
        worker = start_worker(name, self._environment, self._folder, *self._size)
        self._processes.append(worker)
        return worker

    def _kill(self, victim: Process, share: float) -> None:
        victim.kill_group()
        self._processes.remove(victim)
        claims = stream.count_claims_of(self._connections, victim.name)
        self._start_worker("worker-3")
        self._say(f"killed {victim.name} with -9 at {share:.0%}, in the middle of {claims} claims; started worker-3")

    def _check_alive(self) -> None:
        for process in self._processes:
            if not process.running:
                raise DrainFailed(f"{process.name} ended by itself:\n{process.last_words()}")

    def stop(self) -> list[str]:
        """Send SIGTERM to all; returns what is wrong afterwards: wrong exit codes and client rows left behind."""
        wrong = []
        self._wait_for_sweep()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            code = process.wait(_STOP_S)
            if code != 0:
                wrong.append(f"{process.name} ended with {code} after SIGTERM, and should with 0")
        self.close()
        left = stream.count_clients(self._connections)
        if left:
            wrong.append(f"{left} client rows are left after SIGTERM, and should be 0")
        return wrong

    def _wait_for_sweep(self) -> None:
        """A killed worker's clients are removed by the beat once their leases have run out."""
        deadline = time.monotonic() + _STOP_S
        while stream.count_clients(self._connections, "worker-1") and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Leave no process behind, whatever happened."""
        for process in self._processes:
            with suppress(PermissionError):
                process.kill_group()
        self._processes.clear()
