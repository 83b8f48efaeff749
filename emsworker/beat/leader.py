"""The beat: background maintenance, run by one leader at a time.

Every ``ems worker`` runs a beat in its supervisor (unless ``--no-beat``), so that workers watch each other and no
separate monitor is needed; ``ems beat`` runs one alone. The leader holds a short lease; if it dies, another beat leads
within ``beat_lease_s``. A leader that was paused does no harm: every service is a transaction that locks what it
changes. Therefore the one service that cannot wait for the next leader, moving due messages, is run by the other beats
when it is late.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emsworker.beat.forwarder import forwarders
from emsworker.beat.services import Service, leader_services, standby_services
from emsworker.core.config import Settings
from emsworker.core.durations import span_text
from emsworker.core.errors import EmsError
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import OnDeath, Runnable, Trouble
from emsworker.core.servers import MAIN
from emsworker.store.cluster import clients
from emsworker.store.engine.database import Database
from emsworker.store.engine.errors import Conflict, ConnectionLost

log = logging.getLogger(__name__)

LEADER_OF_BEAT = "beat"
_LOOK_S = 0.2
_RENEWALS = 3  # within a lease
_LAST_S = 5.0
_LONGEST_PAUSE_S = 30.0


@dataclass
class _Failing:
    """A service whose last run failed, and the pause before its next run."""

    trouble: Trouble
    pause_s: float


def _name(service: Service) -> str:
    name: str = getattr(service, "__name__", type(service).__name__)
    return re.sub("(?<=[a-z])(?=[A-Z])|_", " ", name).lower()


class Beat(Runnable):
    """The beat thread: runs the leader's services while it leads, and the standby services otherwise.

    Args:
        database: the stream.
        settings: beat_s, beat_lease_s, jitter.
        on_death: see :class:`Runnable`.
        server: of several servers, the one that the database is on.
    """

    def __init__(self, database: Database, settings: Settings, on_death: OnDeath, server: str = MAIN) -> None:
        super().__init__("ems-beat" if server == MAIN else f"ems-beat-{server}", on_death)
        self._session = database.session()
        self._settings = settings
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        self.leading = False
        self._next_claim_of_leadership = 0.0
        self._next = {True: dict.fromkeys(leader_services(), 0.0), False: dict.fromkeys(standby_services(), 0.0)}
        self._trouble = Trouble(log)
        self._pause_s = settings.beat_s  # before the next try to lead, while that fails
        self._failing: dict[Service, _Failing] = {}

    def step(self) -> None:
        """Try to lead if it is time, run the services that are due, and sleep until the next one."""
        try:
            if ticks() >= self._next_claim_of_leadership:
                self._lead()
            self._run_services()
        except (ConnectionLost, Conflict) as error:
            self._skip_turn(error, self._settings.beat_s)
        except Exception as error:  # it must not end this worker, and every other worker after it
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._skip_turn(error, self._pause_s, exc_info=not isinstance(error, EmsError))
        else:
            self._pause_s = self._settings.beat_s
            self._trouble.over("the beat does its turns")
        self.sleep(min([self._next_claim_of_leadership, *self._next[self.leading].values()]) - ticks())

    def _skip_turn(self, error: Exception, pause_s: float, *, exc_info: bool = False) -> None:
        self._trouble.note("a service of the beat failed", error, exc_info=exc_info)
        self._next_claim_of_leadership = 0.0
        self.sleep(pause_s)

    def _lead(self) -> None:
        self._next_claim_of_leadership = ticks() + max(self._settings.beat_s, self._settings.beat_lease_s / _RENEWALS)
        leads = clients.try_to_lead(self._session, LEADER_OF_BEAT, self._holder, self._settings.beat_lease_s)
        if leads != self.leading:
            log.info("this beat %s", "leads" if leads else "leads no longer")
        self.leading = leads

    def _run_services(self) -> None:
        services = self._next[self.leading]
        for service, due in services.items():
            if ticks() >= due:
                services[service] = ticks() + self._do(service)

    def _do(self, service: Service) -> float:
        """Run a service and return the seconds until its next run; a failure, at a damaged row, stops no other."""
        try:
            pause_s = service(self._session, self._settings)
        except (ConnectionLost, Conflict):
            raise
        except Exception as error:
            failing = self._failing.setdefault(service, _Failing(Trouble(log), self._settings.beat_s))
            failing.trouble.note(f"the beat cannot {_name(service)}", error, exc_info=not isinstance(error, EmsError))
            failing.pause_s = min(2 * failing.pause_s, _LONGEST_PAUSE_S)
            return failing.pause_s
        if (failed := self._failing.pop(service, None)) is not None:
            failed.trouble.over(f"the beat can {_name(service)}")
        return pause_s

    def shut_down(self) -> None:
        """Resign, so that another beat can lead at once."""
        try:
            if self.leading:
                clients.resign(self._session, LEADER_OF_BEAT, self._holder)
        except (ConnectionLost, Conflict, EmsError):
            log.info("could not resign; the lease runs out by itself")
        self._session.close()


def beats(databases: Mapping[str, Database], settings: Settings, on_death: OnDeath) -> list[Runnable]:
    """Return the threads of the beat: one for each server, and those that forward messages from it to others."""
    threads: list[Runnable] = []
    for server, database in databases.items():
        threads += [Beat(database, settings, on_death, server), *forwarders(settings, server, on_death)]
    return threads


def run_beat(databases: Mapping[str, Database], settings: Settings, on_start: Callable[[], None] = lambda: None) -> int:
    """Run the beat of each server until SIGTERM or SIGINT, and return the exit code.

    Args:
        on_start: called once signals are handled.
    """
    numbers = {signal.SIGTERM, signal.SIGINT}
    # The beat's thread inherits the mask; we fetch the signals ourselves, and they stay blocked until the process ends.
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    began = ticks()
    threads = beats(databases, settings, lambda name, error: None)
    for thread in threads:
        thread.start()
    on_start()
    while all(thread.is_alive() for thread in threads) and signal.sigtimedwait(numbers, _LOOK_S) is None:
        pass
    died = not all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.stop()
    last = ticks() + _LAST_S
    for thread in threads:
        thread.join(max(0.0, last - ticks()))
    log.info("stopped after %s", span_text(ticks() - began))
    return 1 if died else 0
