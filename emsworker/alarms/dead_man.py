"""Beat service that pings a dead-man's switch while all is well: its owner raises an alarm if the pings stop.

It is pinged while this beat leads, the database answers, and no delivery of an alarm has failed for long. So silence
means that workers, the database, or the way to the receivers of alarms is broken.
"""

from __future__ import annotations

import logging
import queue
import threading

from emsworker.alarms.deliveries import is_overdue
from emsworker.extending.database import Session
from emsworker.extending.errors import EmsError
from emsworker.extending.processes import Trouble, ticks
from emsworker.extending.settings import MAIN, SERVER_MARK, Settings

log = logging.getLogger(__name__)

_OVERDUE_S = 300.0
_MOST_WAIT_S = 3600.0


class PingDeadMan:
    """The service; each ping runs in a thread of its own, one at a time.

    Args:
        server: takes the place of ``{server}`` in the URL: each server has a beat, and a switch of its own.
    """

    def __init__(self, server: str = MAIN) -> None:
        self._server = server
        self._back: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._flying = False
        self._due_at = 0.0
        self._trouble = Trouble(log)

    def __call__(self, session: Session, settings: Settings) -> float:
        """Note how the last ping ended, and start the next if it is due."""
        if settings.dead_man_url is None:
            return _MOST_WAIT_S
        self._land()
        if not self._flying and ticks() >= self._due_at:
            self._due_at = ticks() + settings.dead_man_s
            if is_overdue(session, _OVERDUE_S):
                log.warning("the dead-man's switch is not pinged: an alarm has not been delivered for %g s", _OVERDUE_S)
            else:
                self._ping(settings.dead_man_url.replace(SERVER_MARK, self._server))
        return settings.beat_s

    def _ping(self, url: str) -> None:
        from emsworker.alarms.receivers import ping  # and HTTP, which few beats need

        def run() -> None:
            try:
                ping(url)
                self._back.put(None)
            except Exception as error:  # whatever it is, the thread must report its end
                self._back.put(error)

        self._flying = True
        threading.Thread(target=run, name="ems-dead-man", daemon=True).start()

    def _land(self) -> None:
        while not self._back.empty():
            error = self._back.get()
            self._flying = False
            if error is None:
                self._trouble.over("the dead-man's switch can be pinged")
            else:
                self._trouble.note("cannot ping the dead-man's switch", error, exc_info=not isinstance(error, EmsError))
