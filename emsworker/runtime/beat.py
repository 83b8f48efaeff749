"""The beat: the duties that keep the house, done by one leader at a time.

Every ``ems worker`` has one (unless ``--no-beat``), in its supervisor, so that workers watch each other and nobody must
watch the watcher; ``ems beat`` runs one alone. The leader holds a short lease; when it dies, the next one leads within
``beat_lease_s``. A leader that was paused does no harm: every duty is a transaction that locks what it changes.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable

from emsworker.core.config import Settings
from emsworker.core.errors import EmsError
from emsworker.runtime.runnable import Runnable
from emsworker.store import clients, recovery
from emsworker.store.database import Database
from emsworker.store.errors import Conflict, ConnectionLost
from emsworker.store.session import Session

log = logging.getLogger(__name__)

DUTY = "beat"
_LOOK_S = 0.2
_LAST_S = 5.0


def _recover(session: Session, settings: Settings) -> None:
    for one in recovery.recover(session, settings.jitter):
        charged = f"message {one.charged} charged" if one.charged is not None else "nobody charged"
        log.warning(
            "recovered a claim of %s (group %d, partition %d): %s, %s",
            one.client_id,
            one.group_id,
            one.partition,
            one.outcome,
            charged,
        )


def _sweep(session: Session, settings: Settings) -> None:
    swept = clients.delete_expired(session)
    if swept:
        log.info("removed %d clients whose leases had run out", swept)


DUTIES: tuple[Callable[[Session, Settings], None], ...] = (_recover, _sweep)


class Beat(Runnable):
    """Leads, or waits to lead.

    Args:
        database: the stream.
        settings: beat_s, beat_lease_s, jitter.
        on_death: see :class:`Runnable`.
    """

    def __init__(self, database: Database, settings: Settings, on_death: Callable[[str, BaseException], None]) -> None:
        super().__init__("ems-beat", on_death)
        self._session = database.session()
        self._settings = settings
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        self.leading = False

    def step(self) -> None:
        """One beat: lead if possible, and do the duties."""
        try:
            led, self.leading = (
                self.leading,
                clients.try_to_lead(self._session, DUTY, self._holder, self._settings.beat_lease_s),
            )
            if self.leading != led:
                log.info("this beat %s", "leads" if self.leading else "leads no longer")
            if self.leading:
                for duty in DUTIES:
                    duty(self._session, self._settings)
        except (ConnectionLost, Conflict, EmsError) as error:
            log.warning("the beat missed a turn: %s", error)
        except Exception:  # a row that it cannot bear must not take the worker down, and every other worker after it
            log.exception("the beat missed a turn")
        self.sleep(self._settings.beat_s)

    def shut_down(self) -> None:
        """Let another lead at once."""
        try:
            if self.leading:
                clients.resign(self._session, DUTY, self._holder)
        except (ConnectionLost, Conflict):
            log.info("could not resign; the lease runs out by itself")
        self._session.close()


def run_beat(database: Database, settings: Settings, on_start: Callable[[], None] = lambda: None) -> int:
    """Keep the beat in this process until SIGTERM or SIGINT; returns the exit code. For the main thread.

    Args:
        on_start: called when signals are taken care of.
    """
    numbers = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # the beat's thread inherits it; we fetch them ourselves
    beat = Beat(database, settings, lambda name, error: None)
    beat.start()
    on_start()
    while beat.is_alive() and signal.sigtimedwait(numbers, _LOOK_S) is None:
        pass
    died = not beat.is_alive()
    beat.stop()
    beat.join(_LAST_S)
    return 1 if died else 0
