"""Base class of all loops: a thread that ends when asked, outlasts an outage, and reports why if it dies.

Modelled on Solid Queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import ClassVar

from emsworker.core.errors import StoreError, is_known
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.outage import best_effort

log = logging.getLogger(__name__)

_QUIET_S, _LONGEST_QUIET_S = 60.0, 3600.0


class Trouble:
    """Logs a lasting problem: when it begins or changes, at growing intervals while it lasts, and when it is over.

    Args:
        log: the logger of the module that has the problem.

    Attributes:
        error: the problem that exists now, or ``None``.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._kind: type[BaseException] | None = None
        self.error: BaseException | None = None
        self._quiet_s = self._quiet_until = self._since = 0.0
        self._repeats = 0

    def note(self, what: str, error: BaseException, *, exc_info: bool = False) -> None:
        """Note that the problem exists, or still exists.

        Args:
            what: the start of the log line: what cannot be done.
            exc_info: log the traceback, too.
        """
        now = ticks()
        self.error = error
        if self._kind is None:
            self._since, self._quiet_s = now, _QUIET_S
        if type(error) is self._kind and now < self._quiet_until:
            self._repeats += 1
            return
        if type(error) is self._kind:
            self._quiet_s = min(2 * self._quiet_s, _LONGEST_QUIET_S)
        self._kind, self._quiet_until = type(error), now + self._quiet_s
        self._log.warning("%s: %s", what, error, exc_info=exc_info)

    def over(self, what: str) -> None:
        """Note that the problem is over; one that occurred only once is not logged again.

        Args:
            what: the start of the log line: what can be done again.
        """
        if self._kind is not None and self._repeats:
            self._log.warning("%s again, after %.1f s", what, ticks() - self._since)
        self._kind, self._repeats, self.error = None, 0, None


OnDeath = Callable[[str, BaseException], None]


def watch_threads(on_death: OnDeath) -> None:
    """Report the death of any EMS thread in this process, including those that are not a :class:`Runnable`."""
    previous = threading.excepthook

    def report(args: threading.ExceptHookArgs, /) -> None:
        previous(args)
        name = args.thread.name if args.thread is not None else ""
        if name.startswith("ems-"):  # threads that a handler starts are not reported
            log.error("thread %s ended with an uncaught exception", name)
            on_death(name, args.exc_value or RuntimeError(f"thread {name} died"))

    threading.excepthook = report


at_start: list[Callable[[], object]] = []
"""Called at the start of each :class:`Runnable`, in its thread; they must not raise."""


class Runnable(threading.Thread):
    """A background thread whose sleep ends when it is asked to stop.

    Args:
        name: of the thread.
        on_death: called from the dying thread if the loop ends in an error; no thread of a process may die unnoticed.

    Attributes:
        action: what a step does, for the log: "cannot ..."; and "can ... again" when an outage is over.
        outlasts: the errors of a step after which the next one is tried; all others end the loop.
        away_s: the seconds before that.
        trouble: whether the last step failed.
        turned_at: when its loop turned last, in :func:`ticks`.
    """

    action: str = "do its work"
    outlasts: ClassVar[tuple[type[Exception], ...]] = (StoreError,)
    away_s: float = 0.5

    def __init__(self, name: str, on_death: OnDeath) -> None:
        super().__init__(name=name, daemon=True)
        self._on_death = on_death
        self.trouble = Trouble(logging.getLogger(type(self).__module__))
        self.stopping = forks.Event()
        self.turned_at = ticks()

    def run(self) -> None:
        """Boot, loop until asked to stop, clean up."""
        try:
            for call in at_start:
                call()
            self.boot()
            while not self.stopping.is_set():
                self.turned_at = ticks()
                try:
                    self.step()
                except self.outlasts as error:
                    self.on_trouble(error)
                else:
                    self.trouble.over(f"can {self.action}")
            with best_effort(log, f"thread {self.name} has ended without cleaning up", logging.INFO):
                self.shut_down()
        except BaseException as error:
            log.error("thread %s died: %r", self.name, error, exc_info=not is_known(error))
            self._on_death(self.name, error)

    def boot(self) -> None:
        """Prepare, before the first step."""

    def step(self) -> None:
        """Run the loop's body once; it waits with :meth:`sleep`."""
        raise NotImplementedError

    def on_trouble(self, error: Exception) -> None:
        """Log that a step has failed, and wait before the next one."""
        self.trouble.note(f"cannot {self.action}", error, exc_info=not is_known(error))
        self.sleep(self.away_s)

    def shut_down(self) -> None:
        """Clean up, after the last step; what it writes to the server may fail."""

    def sleep(self, seconds: float) -> None:
        """Wait this many seconds, or until asked to stop."""
        if seconds > 0:
            self.stopping.wait(seconds)

    def stop(self) -> None:
        """Ask the loop to end."""
        self.stopping.set()
