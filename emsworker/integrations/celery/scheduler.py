"""Scheduler of ``celery beat`` that may run several times: ``celery -A app beat -S ems``.

One of them leads, by a lease; the others wait for its end. The last run of each entry is a row, and the transaction
that moves it on publishes the task, too: a slot is published once, also if the leader is killed in the middle, or goes
on after another has taken over. The entries themselves are those of the code.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from datetime import datetime
from typing import Any

from celery import beat
from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError

from emsworker.extending.database import Session
from emsworker.extending.errors import ConfigError, Problem, StoreUnavailable
from emsworker.extending.processes import ticks
from emsworker.extending.settings import redact_url
from emsworker.extending.stream import clients
from emsworker.integrations.celery.storage import chain, lost, storage_of
from emsworker.integrations.celery.store import schedules
from emsworker.integrations.celery.store.schedules import LastRun
from emsworker.integrations.celery.url import StreamUrl

log = logging.getLogger(__name__)

_LEASE_S = 10.0
_RENEWALS = 3  # within a lease
_PAUSE_S = 1.0  # after a failure that may pass
_PASSING = (StoreUnavailable, OperationalError)


class Scheduler(beat.Scheduler):
    """Celery's scheduler, with the last runs in the database of the stream: the broker's, or else the result backend's.

    Schedulers of applications with the same name (``Celery("name")``) take turns.

    Raises:
        ConfigError: neither the broker nor the result backend is a stream.
    """

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._name = str(app.main or "celery")
        self._address = _address(app)
        self._storage = storage_of(self._address)
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        self._leads = False
        self._next_claim = 0.0
        self._resume_at = 0.0
        super().__init__(app, *args, **kwargs)

    def setup_schedule(self) -> None:
        """Take the entries of the code, and those that Celery adds; in this order, because the first removes others."""
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.data)

    @property
    def info(self) -> str:
        """A line for the banner."""
        return f"    . db -> {redact_url(f'ems+{self._address}')}"

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Run at most one entry that is due, if this scheduler leads; return the seconds until the next call."""
        if ticks() >= self._next_claim:
            self._lead()
        if not self._leads:
            return max(self._next_claim - ticks(), 0.0)
        delay: float = super().tick(*args, **kwargs) if ticks() >= self._resume_at else _PAUSE_S
        return min(delay, max(self._next_claim - ticks(), 0.0))

    def _lead(self) -> None:
        """Take or keep the leadership; the one who takes it reads the last runs."""
        self._next_claim = ticks() + _LEASE_S / _RENEWALS
        try:
            leads = self._storage.call(self._try_to_lead)
            if leads and not self._leads:
                self._storage.call(self._load)
        except StoreUnavailable as error:
            log.error("beat: %s; no task is sent until it is back", error)
            leads = False
        if leads != self._leads:
            log.info("beat: this scheduler %s", "leads" if leads else "leads no longer")
        self._leads = leads

    def _try_to_lead(self, session: Session) -> bool:
        return clients.try_to_lead(session, self._service, self._holder, _LEASE_S)

    @property
    def _service(self) -> str:
        return f"celery beat {self._name}"[:64]

    def _load(self, session: Session) -> None:
        """Read the last runs; add the entries that are new in the code, and delete those that are gone."""
        schedule = self.schedule
        fresh = {name: LastRun(self._aware(entry.last_run_at), 0) for name, entry in schedule.items()}
        schedules.add_runs(session, self._name, fresh)
        runs = schedules.list_runs(session, self._name)
        schedules.delete_runs(session, self._name, [name for name in runs if name not in schedule])
        for name in schedule.keys() & runs.keys():  # a leader of older code may have deleted one just now
            entry, run = schedule[name], runs[name]
            entry.last_run_at, entry.total_run_count = run.at.astimezone(self.app.timezone), run.runs
        self._heap = None

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Publish the task of an entry and record the run in one transaction, unless another scheduler has done so."""
        log.info("beat: sending due task %s (%s)", entry.name, entry.task)
        try:
            ours = self._storage.publish(lambda session: self._run(session, entry, producer), self.app)
        except Exception as error:
            self._failed(entry, error)
            return
        if not ours:
            log.info("beat: another scheduler has sent %s", entry.name)
            self._leads, self._next_claim = False, 0.0  # what is known of the last runs is old

    def _run(self, session: Session, entry: Any, producer: Any) -> bool:
        if not self._advance(session, entry):
            return False
        self.apply_async(entry, producer=producer, advance=False)
        return True

    def _advance(self, session: Session, entry: Any) -> bool:
        last, upcoming = self._aware(entry.last_run_at), self._aware(self.schedule[entry.name].last_run_at)
        return schedules.advance(session, self._name, entry.name, last, upcoming)

    def _failed(self, entry: Any, error: Exception) -> None:
        if lost(error) or any(isinstance(one, _PASSING) for one in chain(error)):
            log.error("beat: %s could not be sent, and will be: %s", entry.name, error)
            self.schedule[entry.name] = entry
            self._heap = None
            self._resume_at = ticks() + _PAUSE_S
            return
        log.error("beat: %s cannot be sent; this run of it is left out", entry.name, exc_info=error)
        try:
            self._storage.call(lambda session: session.transaction(lambda session: self._advance(session, entry)))
        except StoreUnavailable as unavailable:
            log.error("beat: %s", unavailable)
            self._leads, self._next_claim = False, 0.0

    def _aware(self, time: datetime) -> datetime:
        aware: datetime = maybe_make_aware(time, self.app.timezone)
        return aware

    def close(self) -> None:
        """Let another scheduler lead at once."""
        try:
            if self._leads:
                self._storage.call(lambda session: clients.resign(session, self._service, self._holder))
        except StoreUnavailable:
            log.info("beat: could not resign; the lease runs out by itself")
        self._leads = False
        super().close()


def _address(app: Any) -> str:
    with app.connection_for_write() as connection:
        if connection.transport.driver_type == "ems":
            return StreamUrl.of_connection(connection).database
    backend = str(app.conf.result_backend or "")
    try:
        return StreamUrl.parse(backend).database
    except ValueError:
        fix = "the scheduler `ems` needs a stream: set broker_url or result_backend to ems+mysql://..."
        raise ConfigError([Problem("beat_scheduler", "ems", fix)]) from None
