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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from emsworker.beat.forwarder import forwarders
from emsworker.beat.server import WatchLocks
from emsworker.beat.services import LedStream, Service, leader_services, standby_services
from emsworker.core.config import Settings
from emsworker.core.durations import span_text
from emsworker.core.errors import REFUSED, Conflict, ConnectionLost, DiskFull, EmsError
from emsworker.core.process.clock import ticks
from emsworker.core.process.outage import Outage
from emsworker.core.process.runnable import OnDeath, Runnable, Trouble
from emsworker.core.servers import MAIN
from emsworker.core.url import redact
from emsworker.store import Database
from emsworker.store.cluster import clients

log = logging.getLogger(__name__)

LEADER_OF_BEAT = "beat"
_LOOK_S = 0.2
_RENEWALS = 3  # within a lease
_LAST_S = 5.0
_STUCK_S = 180.0  # of the beat's loop; longer than a call of the server may take
_SILENT_S = 10.0  # without an answer of the server, beyond the time between two questions
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class BeatHealth:
    """A beat at one moment.

    Attributes:
        alive: its thread runs.
        leading: it leads; otherwise it stands by.
        answered: the server has answered it once.
        silent_s: seconds since the server's last answer, if that is too long; else 0.
        turned_s: seconds since its loop turned, beyond its pause.
        locked_s: seconds for which a lock on the stream's tables has held up others; 0 if none does.
        runs, failures: of each service, since the start.
        refusal: the error by which the server refuses the user; empty if it does not.
        full: the error by which the server says that its disk is full; empty if it has room.
        failing: the error of each service whose last run failed, and of the turn itself (``lead``) if that does.
    """

    alive: bool
    leading: bool
    answered: bool
    silent_s: float
    turned_s: float
    locked_s: float
    runs: Mapping[str, int]
    failures: Mapping[str, int]
    refusal: str = ""
    full: str = ""
    failing: Mapping[str, str] = field(default_factory=dict)

    @property
    def unlive(self) -> str:
        """Why the beat cannot help itself; empty if it can, also while the server is away."""
        if not self.alive:
            return "the beat's thread has ended"
        return f"the beat has made no progress for {self.turned_s:.0f} s" if self.turned_s > _STUCK_S else ""

    @property
    def unready(self) -> str:
        """Why the beat does nothing now; empty if it leads, or stands by."""
        if self.unlive or self.unstarted:
            return self.unlive or self.unstarted
        if self.refusal:
            return f"the server refuses the user: {self.refusal}"
        if self.full:
            return f"the disk of the server is full: {self.full}"
        return f"the server has not answered for {self.silent_s:.0f} s" if self.silent_s else ""

    @property
    def unstarted(self) -> str:
        """Why the beat has not started yet; empty from the server's first answer."""
        return "" if self.answered else "the server has not answered yet"

    def to_json(self, problem: str) -> dict[str, Any]:
        """Return the answer of a probe that found ``problem``, or nothing."""
        return {"ok": not problem, "reason": problem, "leading": self.leading, "failing": dict(self.failing)}


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
        self._database = database
        self._settings = settings
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        self.leading = False
        self._next_claim_of_leadership = 0.0
        self._locks = WatchLocks()
        leading, standby = leader_services(LedStream(server, self._locks)), standby_services()
        self._next = {True: dict.fromkeys(leading, 0.0), False: dict.fromkeys(standby, 0.0)}
        self._trouble = Trouble(log)
        self._pause_s = settings.beat_s  # before the next try to lead, while that fails
        self._failing: dict[Service, _Failing] = {}
        self._answered = False
        self._answered_at = self._sleeps_until = ticks()
        self._runs: Counter[str] = Counter({_name(service): 0 for service in self._next[True]})
        self._failures: Counter[str] = Counter(self._runs)

    def health(self) -> BeatHealth:
        """Return the health of the beat; may be called from any thread."""
        now = ticks()
        silent_s = now - self._answered_at
        return BeatHealth(
            alive=self.is_alive(),
            leading=self.leading,
            answered=self._answered,
            silent_s=silent_s if silent_s > self._claim_every_s + _SILENT_S else 0.0,
            locked_s=self._locks.held_s if self.leading else 0.0,
            turned_s=max(0.0, now - max(self.turned_at, self._sleeps_until)),
            runs=dict(self._runs),
            failures=dict(self._failures),
            refusal=str(error) if isinstance(error := self._trouble.error, REFUSED) else "",
            full=self._database.full,
            failing=self._failing_now(),
        )

    def _failing_now(self) -> dict[str, str]:
        errors = {_name(service): one.trouble.error for service, one in list(self._failing.items())}
        errors |= {"lead": self._trouble.error}
        return {
            name: redact(str(error).partition("\n")[0] or type(error).__name__)
            for name, error in errors.items()
            if error is not None
        }

    @property
    def _claim_every_s(self) -> float:
        return max(self._settings.beat_s, self._settings.beat_lease_s / _RENEWALS)

    def _note_answer(self) -> None:
        self._answered, self._answered_at = True, ticks()

    def step(self) -> None:
        """Try to lead if it is time, run the services that are due, and sleep until the next one."""
        try:
            if ticks() >= self._next_claim_of_leadership:
                with suppress(DiskFull):  # who led leads on: nobody else can write it down either
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
        self._rest_until(min([self._next_claim_of_leadership, *self._next[self.leading].values()]))

    def _rest_until(self, then: float) -> None:
        self._sleeps_until = then
        self.sleep(then - ticks())

    def _skip_turn(self, error: Exception, pause_s: float, *, exc_info: bool = False) -> None:
        self._trouble.note("a service of the beat failed", error, exc_info=exc_info)
        self._next_claim_of_leadership = 0.0
        self._rest_until(ticks() + pause_s)

    def _lead(self) -> None:
        self._next_claim_of_leadership = ticks() + self._claim_every_s
        leads = clients.try_to_lead(self._session, LEADER_OF_BEAT, self._holder, self._settings.beat_lease_s)
        self._note_answer()
        if leads != self.leading:
            log.info("this beat %s", "leads" if leads else "leads no longer")
        self.leading = leads

    def _run_services(self) -> None:
        services = self._next[self.leading]
        for service, due in services.items():
            if ticks() >= due:
                services[service] = ticks() + self._do(service)

    def _do(self, service: Service) -> float:
        """Run a service and return the seconds until its next run.

        A failure at a damaged row stops no other service, and neither does a full disk: most of them need no room, and
        one of them tells of it.
        """
        try:
            self._runs[_name(service)] += 1
            pause_s = service(self._session, self._settings)
        except Exception as error:
            if isinstance(error, (ConnectionLost, Conflict)) and not isinstance(error, DiskFull):
                self._failures[_name(service)] += 1
                raise
            self._failures[_name(service)] += 1
            failing = self._failing.setdefault(service, _Failing(Trouble(log), self._settings.beat_s))
            known = isinstance(error, (EmsError, DiskFull))
            failing.trouble.note(f"the beat cannot {_name(service)}", error, exc_info=not known)
            failing.pause_s = min(2 * failing.pause_s, _LONGEST_PAUSE_S)
            return failing.pause_s
        self._note_answer()
        if (failed := self._failing.pop(service, None)) is not None:
            failed.trouble.over(f"the beat can {_name(service)}")
        return pause_s

    def shut_down(self) -> None:
        """Resign, so that another beat can lead at once."""
        try:
            if self.leading:
                clients.resign(self._session, LEADER_OF_BEAT, self._holder)
        finally:
            self._session.close()


def _totals(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts; what is 0 stays, or a rate would miss the first that is counted."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


class Beats:
    """The beats of all servers that a process runs, and the threads that forward messages between these.

    Args:
        databases: the stream on each server.
        settings: see :class:`Beat`.
        on_death: see :class:`Runnable`.
    """

    def __init__(self, databases: Mapping[str, Database], settings: Settings, on_death: OnDeath) -> None:
        self._beats = {name: Beat(database, settings, on_death, name) for name, database in databases.items()}
        between = [one for name in databases for one in forwarders(settings, name, on_death)]
        self._threads: list[Runnable] = [*self._beats.values(), *between]

    def start(self) -> None:
        """Start all threads, once."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def is_alive(self) -> bool:
        """Return whether all threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def health(self) -> BeatHealth:
        """Return the health of all beats as that of one: a server that is away is no fault while another answers."""
        each = [beat.health() for beat in self._beats.values()]
        return BeatHealth(
            alive=all(one.alive for one in each),
            leading=any(one.leading for one in each),
            answered=any(one.answered for one in each),
            silent_s=min(one.silent_s for one in each),
            turned_s=max(one.turned_s for one in each),
            locked_s=max(one.locked_s for one in each),
            runs=_totals(one.runs for one in each),
            failures=_totals(one.failures for one in each),
            refusal=each[0].refusal if all(one.refusal for one in each) else "",
            full=next((one.full for one in each if one.full), ""),
            failing={name: text for one in each for name, text in one.failing.items()},
        )

    def note_outage(self, server: str, outage: Outage) -> None:
        """Note what is the matter with a server, as its beat sees it."""
        health = self._beats[server].health()
        outage.note(health.silent_s or None, health.refusal, health.full)

    def stop(self) -> None:
        """Stop the threads that run, and wait for them for some seconds."""
        begun = [thread for thread in self._threads if thread.ident is not None]
        for thread in begun:
            thread.stop()
        last = ticks() + _LAST_S
        for thread in begun:
            thread.join(max(0.0, last - ticks()))


def run_beat(beats: Beats, outages: Mapping[str, Outage], on_start: Callable[[], None] = lambda: None) -> int:
    """Run beats until SIGTERM or SIGINT, and return the exit code; to be called in the main thread.

    Args:
        outages: log that a server does not answer, by its name.
        on_start: called once signals are handled.
    """
    numbers = {signal.SIGTERM, signal.SIGINT}
    # The beat's thread inherits the mask; we fetch the signals ourselves, and they stay blocked until the process ends.
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    began = ticks()
    beats.start()
    on_start()
    while beats.is_alive() and signal.sigtimedwait(numbers, _LOOK_S) is None:
        for server, outage in outages.items():
            beats.note_outage(server, outage)
    died = not beats.is_alive()
    beats.stop()
    log.info("stopped after %s", span_text(ticks() - began))
    return 1 if died else 0
