"""A consumer thread: take a claim, work through it, take the next and record the end of the last in one transaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from emsworker.core.batching import BatchSizer
from emsworker.core.clock import ticks
from emsworker.core.codec import Decoder
from emsworker.core.config import Settings
from emsworker.core.errors import FenceLost
from emsworker.core.ladder import Ladder
from emsworker.core.model import Claim, Group, Topic
from emsworker.middleware import Middleware
from emsworker.runtime.completer import Completer
from emsworker.runtime.executor import Executor
from emsworker.runtime.lease import LeaseKeeper
from emsworker.runtime.runnable import Runnable
from emsworker.runtime.scout import Lead, Scout
from emsworker.runtime.work import Work
from emsworker.store import claims, clients
from emsworker.store.claims import Flush, Miss, Taker
from emsworker.store.database import Database
from emsworker.store.errors import Conflict, ConnectionLost
from emsworker.task import Route

log = logging.getLogger(__name__)

_IDLE_S = 5.0
_LEASE_WAIT_S = 0.1
_CAREFUL_WAIT_S = 0.5
_AWAY_S = 0.5
_LAST_WORDS_S = 5.0


@dataclass(frozen=True)
class Duty:
    """What a process consumes: one group of one topic, and its handlers."""

    topic: Topic
    group: Group
    route: Route

    def ladder(self, jitter: float) -> Ladder:
        """The group's ladder."""
        return Ladder.parse(self.group.ladder, self.group.max_attempts, jitter)


@dataclass(frozen=True)
class Shared:
    """What the threads of a process have in common."""

    database: Database
    settings: Settings
    decoder: Decoder
    middleware: tuple[Middleware, ...]
    duties: dict[int, Duty]
    lease: LeaseKeeper
    scout: Scout
    completer: Completer
    # Two messages under suspicion must not run at once: a crash has to name one of them.
    careful: threading.Lock = field(default_factory=threading.Lock)


class Consumer(Runnable):
    """One client: a thread with its own connection and its own lease.

    Args:
        number: of the thread within its process.
        shared: what it has in common with its neighbours.
        on_death: see :class:`Runnable`.
    """

    def __init__(self, number: int, shared: Shared, on_death: Callable[[str, BaseException], None]) -> None:
        super().__init__(f"ems-consumer-{number}", on_death)
        self._shared = shared
        self._session = shared.database.session()
        self._client_id: str | None = None
        self._generation = -1
        self._before: Flush | None = None
        self._was_busy = False  # the last cursor was locked: wait for the next one
        settings = shared.settings
        self._sizers = {group_id: BatchSizer(settings.claim_s, settings.batch) for group_id in shared.duties}
        self._executors = {
            group_id: Executor(
                duty.route, duty.ladder(settings.jitter), shared.middleware, self._session, self._may_go_on
            )
            for group_id, duty in shared.duties.items()
        }
        self.registered = threading.Event()

    def step(self) -> None:
        """Take one claim and work through it; a lost connection is no reason to die."""
        try:
            if self._generation != self._shared.lease.generation or self._client_id is None:
                self._register()
            if not self._shared.lease.good:
                self.sleep(_LEASE_WAIT_S)
                return
            self._take_and_run()
        except FenceLost:
            log.warning("%s lost a claim; what it had not recorded is run elsewhere", self.name)
            self._before = None
        except (ConnectionLost, Conflict) as error:
            log.warning("%s lost its connection: %s", self.name, error)
            self._start_anew()

    def _register(self) -> None:
        self._before = None
        self._generation = self._shared.lease.generation
        self._client_id = self._shared.lease.join_in(self._session)
        self.registered.set()

    def _may_go_on(self) -> bool:
        return not self.stopping.is_set() and self._shared.lease.good

    # -- one claim -----------------------------------------------------------------------------------------------------

    def _take_and_run(self) -> None:
        scout = self._shared.scout
        lead = scout.next_lead()
        if lead is None:
            self._write_before()
            scout.wait_for_lead(_IDLE_S)
            return
        claim = self._take(lead)
        self._before = None
        self._was_busy = claim is Miss.BUSY and lead.kind == "stream"
        if isinstance(claim, Claim):
            self._run_carefully(claim) if claim.careful else self._run(claim)
        elif not self._was_busy:
            scout.forget(lead)

    def _take(self, lead: Lead) -> Claim | Miss:
        duty = self._shared.duties[lead.group_id]
        size = self._sizers[lead.group_id].size
        assert self._client_id is not None
        taker = Taker(
            duty.topic, duty.group, self._client_id, size, self._shared.settings.batch_bytes, self._shared.decoder
        )
        if lead.kind == "waiting":
            claim = claims.take_waiting(self._session, taker, self._before)
        elif lead.kind == "retries":
            claim = claims.take_retries(self._session, taker, self._before)
        else:
            wait = self._was_busy or self._shared.scout.alone
            claim = claims.take_range(self._session, taker, lead.partition, self._before, wait=wait)
        if isinstance(claim, Claim) and claim.hi - claim.lo + 1 >= size:
            self._shared.scout.more()
        return claim

    def _run_carefully(self, claim: Claim) -> None:
        careful = self._shared.careful
        if not careful.acquire(timeout=_CAREFUL_WAIT_S):
            self._work_of(claim).give_back(self._session)
            return
        try:
            self._run(claim)
            self._write_before()  # or a neighbour's crash would blame the message that is marked as running
        finally:
            careful.release()

    def _work_of(self, claim: Claim) -> Work:
        duty = self._shared.duties[claim.group_id]
        return Work(claim, duty.topic.id, duty.group.timeout_s, threading.get_ident())

    def _run(self, claim: Claim) -> None:
        work = self._work_of(claim)
        self._shared.completer.watch(self.ident or 0, work)
        began = ticks()
        try:
            finished = self._executors[claim.group_id].run(work)
            self._sizers[claim.group_id].record(work.completed, ticks() - began)
            if finished:
                self._before = work.finish()
            else:
                work.give_back(self._session)
        except ConnectionLost:
            self._before = work.unfinished()
            raise
        finally:
            self._shared.completer.watch(self.ident or 0, None)

    def _write_before(self) -> None:
        if self._before is None:
            return
        try:
            claims.flush(self._session, self._before)
        except FenceLost:
            log.warning("%s lost a claim; what it had not recorded is run elsewhere", self.name)
        self._before = None

    # -- trouble and the end -------------------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        """After a lost connection: write down what is known to be done, and give up the identity.

        Whether the lost packet took a claim cannot be known; if it did, the beat finds it orphaned and gives it back,
        without charging anybody. What was done is written first, under the old identity: if the lost packet had
        written it already, the fence refuses, and all is well too.
        """
        try:
            self._write_before()
            old, self._client_id = self._client_id, None
            if old is not None:
                self._shared.lease.leave(old)
                clients.deregister(self._session, [old])
        except (ConnectionLost, Conflict):
            self._session.drop()
            self.sleep(_AWAY_S)

    def shut_down(self) -> None:
        """Write down what is done, and deregister."""
        until = ticks() + _LAST_WORDS_S
        while ticks() < until:
            try:
                self._write_before()
                if self._client_id is not None:
                    self._shared.lease.leave(self._client_id)
                    clients.deregister(self._session, [self._client_id])
                break
            except (ConnectionLost, Conflict):
                self.stopping.wait(0)
                threading.Event().wait(_LEASE_WAIT_S)
        self._session.close()
