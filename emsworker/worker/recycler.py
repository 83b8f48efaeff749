"""Recycling: a child that has run many messages, or uses much memory, is replaced by a new one.

Libraries leak, and a heap that was once large stays large. The child checks itself between claims. When it is due, it
claims nothing more, finishes the running messages, gives the rest back without charging an attempt, deregisters, and
tells the supervisor, which starts its successor at once.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from emsworker.core.counted import counted
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.process import forks

log = logging.getLogger(__name__)

_SHORT_S = 10.0
_STATM = Path("/proc/self/statm")


def resident_mib() -> float:
    """Return the memory that this process has in RAM (its resident set), in MiB.

    Raises:
        OSError: the system has no /proc.
    """
    pages = int(_STATM.read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _has_free_descriptor() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


@dataclass
class Allowance:
    """The number of messages that a claim may hold, and how many of them were run, and started, in the end."""

    size: int
    ran: int = 0
    started: int = 0


class Recycler:
    """Decides when the process is to be recycled; used by all its consumer threads.

    Args:
        max_tasks: the process runs at most this many messages; 0 for no limit.
        max_memory_mib: the resident set, in MiB, above which it ends, or 0 for no limit; checked after every claim.
        on_due: called once, with the reason, from the thread that finds out.

    Raises:
        ConfigError: the memory cannot be measured here.
    """

    def __init__(self, max_tasks: int, max_memory_mib: int, on_due: Callable[[str], None]) -> None:
        self._max_tasks = max_tasks
        self._max_memory_mib = max_memory_mib
        self._on_due = on_due
        self._lock = forks.Lock()
        self._reserved = 0  # messages given out to claims, including those that have been run
        self.ran = 0
        self._due = False
        self._short_since = math.inf
        if max_memory_mib:
            self._check_memory_at_start()

    def _check_memory_at_start(self) -> None:
        try:
            size_mib = resident_mib()
        except OSError as error:
            fix = f"the memory of a process cannot be measured on this system ({error}); leave the setting out"
            raise ConfigError([Problem("max_memory_per_child", str(self._max_memory_mib), fix)]) from None
        if size_mib > self._max_memory_mib:
            log.error(
                "max_memory_per_child is %d MiB, but the app alone takes %.0f MiB: each process will end after its "
                "first claim; raise it",
                self._max_memory_mib,
                size_mib,
            )

    @contextmanager
    def allow(self, wanted: int) -> Iterator[Allowance]:
        """Reserve at most ``wanted`` messages for a claim; ``size`` is 0 if the process may run no more."""
        allowance = Allowance(self._reserve(wanted))
        try:
            yield allowance
        finally:
            self._settle(allowance)

    def _reserve(self, wanted: int) -> int:
        if self._due:  # the main thread has been told, and may take a while to stop the others
            return 0
        if not self._max_tasks:
            return wanted
        with self._lock:
            size = min(wanted, self._max_tasks - self._reserved)
            self._reserved += size
            return size

    def _settle(self, allowance: Allowance) -> None:
        with self._lock:
            self._reserved -= allowance.size - allowance.ran
            self.ran += allowance.ran
            reason = None if self._due or not allowance.ran else self._reason()
            self._due |= reason is not None
        if reason is not None:
            self._on_due(reason)

    def look(self, now: float) -> None:
        """Have the process replaced if no file descriptor has been free for some seconds.

        It could connect to nothing any more, and would be silent for ever: its handlers have leaked them.

        Args:
            now: from the monotonic clock, in seconds.
        """
        if _has_free_descriptor():
            self._short_since = math.inf
            return
        self._short_since = min(self._short_since, now)
        if now - self._short_since >= _SHORT_S and not self._due:
            self._due = True
            self._on_due(f"no file descriptor was free for {_SHORT_S:g} s (a handler leaks them, or see `ulimit -n`)")

    def _reason(self) -> str | None:
        if self._max_tasks and self.ran >= self._max_tasks:
            return f"it has run {counted(self.ran, 'message')} (max_tasks_per_child)"
        if self._max_memory_mib and (size_mib := resident_mib()) > self._max_memory_mib:
            return f"it holds {size_mib:.0f} MiB, over {self._max_memory_mib} MiB (max_memory_per_child)"
        return None
