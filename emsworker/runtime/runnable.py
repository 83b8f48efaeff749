"""What all loops share: a thread that ends when asked and tells why when it dies (the shape is Solid Queue's)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Runnable(threading.Thread):
    """A side thread with a wakeable sleep.

    Args:
        name: of the thread.
        on_death: called from the dying thread if the loop ends in an error; no thread of a process may die unnoticed.
    """

    def __init__(self, name: str, on_death: Callable[[str, BaseException], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._on_death = on_death
        self.stopping = threading.Event()

    def run(self) -> None:
        """Boot, loop until asked to stop, clean up."""
        try:
            self.boot()
            while not self.stopping.is_set():
                self.step()
            self.shut_down()
        except BaseException as error:
            log.exception("thread %s died", self.name)
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
