"""What all loops share: a thread that ends when asked and tells why when it dies (the shape is Solid Queue's)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from emsworker.core import forks
from emsworker.core.clock import ticks
from emsworker.core.errors import EmsError

log = logging.getLogger(__name__)

_QUIET_S, _LONGEST_QUIET_S = 60.0, 3600.0


class Trouble:
    """A lasting problem in the log: a line when it begins or changes, one now and then, and one when it is over.

    Args:
        log: of the module that has the problem.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._kind: type[BaseException] | None = None
        self._quiet_s = self._quiet_until = self._since = 0.0
        self._untold = 0

    def note(self, what: str, error: BaseException, *, exc_info: bool = False) -> None:
        """It is here, or still here.

        Args:
            what: cannot be done; it begins the line.
            exc_info: whether to log where the error came from, too.
        """
        now = ticks()
        if self._kind is None:
            self._since, self._quiet_s = now, _QUIET_S
        if type(error) is self._kind and now < self._quiet_until:
            self._untold += 1
            return
        if type(error) is self._kind:
            self._quiet_s = min(2 * self._quiet_s, _LONGEST_QUIET_S)
        self._kind, self._quiet_until = type(error), now + self._quiet_s
        self._log.warning("%s: %s", what, error, exc_info=exc_info)

    def over(self, what: str) -> None:
        """It is over; what happened once and passed is not worth another line.

        Args:
            what: can be done again.
        """
        if self._kind is not None and self._untold:
            self._log.warning("%s again, after %.1f s", what, ticks() - self._since)
        self._kind, self._untold = None, 0


OnDeath = Callable[[str, BaseException], None]


def watch_threads(on_death: OnDeath) -> None:
    """Report the death of any thread of ours in this process: also of those that are no :class:`Runnable`."""
    previous = threading.excepthook

    def report(args: threading.ExceptHookArgs, /) -> None:
        previous(args)
        name = args.thread.name if args.thread is not None else ""
        if name.startswith("ems-"):  # a handler's own threads are its own affair
            log.error("thread %s died of an error that nobody caught", name)
            on_death(name, args.exc_value or RuntimeError(f"thread {name} died"))

    threading.excepthook = report


class Runnable(threading.Thread):
    """A side thread with a wakeable sleep.

    Args:
        name: of the thread.
        on_death: called from the dying thread if the loop ends in an error; no thread of a process may die unnoticed.
    """

    def __init__(self, name: str, on_death: OnDeath) -> None:
        super().__init__(name=name, daemon=True)
        self._on_death = on_death
        self.stopping = forks.Event()

    def run(self) -> None:
        """Boot, loop until asked to stop, clean up."""
        try:
            self.boot()
            while not self.stopping.is_set():
                self.step()
            self.shut_down()
        except BaseException as error:
            # An error of ours says it all in one line. For others it matters where they came from.
            log.error("thread %s died: %r", self.name, error, exc_info=not isinstance(error, EmsError))
            self._on_death(self.name, error)

    def boot(self) -> None:
        """Before the first step."""

    def step(self) -> None:
        """One turn of the loop; it waits by :meth:`sleep`."""
        raise NotImplementedError

    def shut_down(self) -> None:
        """After the last step."""

    def sleep(self, seconds: float) -> None:
        """Wait, but not past a stop."""
        if seconds > 0:
            self.stopping.wait(seconds)

    def stop(self) -> None:
        """Ask the loop to end."""
        self.stopping.set()
