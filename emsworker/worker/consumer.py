"""Consumer thread: takes a claim, runs it, then takes the next and records the end of the last in one transaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from dataclasses import dataclass, field

from emsworker.broker.mysql import MysqlBroker
from emsworker.consume.attempts import FailureTally
from emsworker.consume.claim_run import ClaimRun
from emsworker.consume.claimer import BatchSizer, Claimer
from emsworker.consume.context import RunContext, RunHooks, lane_pool
from emsworker.consume.coroutines import EventLoop
from emsworker.consume.executor import Executor
from emsworker.consume.hints import Hint
from emsworker.consume.isolation import IsolationGate, Suspects
from emsworker.consume.lease import LeaseRenewer
from emsworker.consume.losses import Losses, LostRun, LostUnderHandler, judge
from emsworker.consume.permits import CLAIM_S, Limiter, Refunds
from emsworker.consume.poller import Poller
from emsworker.consume.result_writer import ResultWriter
from emsworker.consume.worker_claims import WorkerClaims
from emsworker.core.config import Settings
from emsworker.core.errors import FenceLost, StoreError
from emsworker.core.flush import Flush
from emsworker.core.ladder import Ladder
from emsworker.core.model import Claim, Group, Isolation, Order, Topic
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import Runnable, Trouble
from emsworker.tasks.middleware import Middleware
from emsworker.tasks.route import Route
from emsworker.worker.recycler import Allowance, Recycler

log = logging.getLogger(__name__)

_IDLE_S = 5.0
_LEASE_WAIT_S = 0.1
_AWAY_S = 0.5
_LAST_WORDS_S = 5.0
_SPENT_S = 0.05
_CLOSED_S = 0.2
_FAIR_CLAIM_S = 0.005


@dataclass(frozen=True)
class Assignment:
    """A group of one topic that a process consumes, and its handlers.

    Attributes:
        fair: the header whose values share the group fairly; empty for none.
        per_key: the group limits how many messages of each key run at once.
    """

    topic: Topic
    group: Group
    route: Route
    fair: str = ""
    per_key: bool = False

    def claim_s(self, settings: Settings) -> float:
        """Return the seconds of work that a claim holds: few in a fair group, where other keys wait for its end."""
        return min(settings.claim_s, _FAIR_CLAIM_S) if self.fair else settings.claim_s

    def ladder(self, jitter: float) -> Ladder:
        """Return the group's retry ladder."""
        return Ladder.parse(self.group.ladder, self.group.max_attempts, jitter)


@dataclass(frozen=True)
class ProcessContext:
    """The surroundings of a consumer: what the threads of a process share.

    Attributes:
        one_thread: no handler runs in another thread than the consumer's.
    """

    broker: MysqlBroker
    settings: Settings
    middleware: tuple[Middleware, ...]
    assignments: dict[int, Assignment]
    lease: LeaseRenewer
    poller: Poller
    claims: WorkerClaims
    result_writer: ResultWriter
    recycler: Recycler
    refunds: Refunds = field(default_factory=Refunds)
    gate: IsolationGate = field(default_factory=IsolationGate)
    suspects: Suspects = field(default_factory=Suspects)
    losses: Losses = field(default_factory=Losses)
    loop: EventLoop = field(default_factory=EventLoop)
    pool: Pool = field(default_factory=lane_pool)
    tally: FailureTally = field(default_factory=FailureTally)
    log_done: bool = False
    one_thread: bool = False


@dataclass(frozen=True)
class _Group:
    """A group as a thread consumes it."""

    assignment: Assignment
    executor: Executor
    sizer: BatchSizer

    def size(self, part: float = 1.0) -> int:
        """Return the messages to claim next, or in a part of a claim's time; at least those that run at once."""
        if self.assignment.per_key:
            return 1
        return max(1, int(part * self.sizer.size), self.assignment.route.concurrency)


class Consumer(Runnable):
    """A client: a thread with its own connection and its own lease.

    Args:
        number: index of the thread in its process.
        process: of its process.
        on_death: see :class:`Runnable`.
    """

    def __init__(self, number: int, process: ProcessContext, on_death: Callable[[str, BaseException], None]) -> None:
        super().__init__(f"ems-consumer-{number}", on_death)
        self._process = process
        self._channel = process.broker.channel()
        self._session = self._channel.session  # for its lease and its permits
        self._client_id: str | None = None
        self._generation = -1
        self._before: Flush | None = None
        self._interrupted: ClaimRun | None = None  # by a lost connection; if it was alone, the gate is still closed
        self._lost_run: tuple[LostRun, int] | None = None  # and how many losses in a row it was
        settings = process.settings
        self._claimer = Claimer(self._channel, process.poller, settings.batch_bytes, process.broker.decoder)
        self._in_doubt = False  # the last packet may have taken a claim that is not known here
        self._groups = {
            group_id: _Group(one, Executor(self._run_context(one)), BatchSizer(one.claim_s(settings), settings.batch))
            for group_id, one in process.assignments.items()
        }
        self._limiter = Limiter(self._session, process.refunds, process.poller)
        self.registered = forks.Event()
        self._trouble = Trouble(log)

    def _run_context(self, assignment: Assignment) -> RunContext:
        process = self._process
        return RunContext(
            assignment.route,
            assignment.ladder(process.settings.jitter),
            self._channel,
            process.result_writer,
            RunHooks.of(process.middleware),
            self._may_go_on,
            process.gate,
            process.loop,
            process.pool,
            0 if process.one_thread else max(process.settings.threads, assignment.route.concurrency),
            process.tally,
            process.log_done,
        )

    def step(self) -> None:
        """Take one claim and work through it; a lost connection does not end the thread."""
        try:
            if self._in_doubt:
                self._start_anew()
            if self._generation != self._process.lease.generation or self._client_id is None:
                self._register()
            if not self._process.lease.good:
                self.sleep(_LEASE_WAIT_S)
                return
            self._take_and_run()
            self._trouble.over(f"{self.name} takes messages")
        except StoreError as error:
            if not isinstance(error, LostUnderHandler):  # logged once it is known what that means
                self._trouble.note(f"{self.name} cannot take messages", error)
            if self._in_doubt or self._client_id is None:
                self.sleep(_AWAY_S)
            self._in_doubt = self._client_id is not None

    def _register(self) -> None:
        self._before = None
        self._client_id, self._generation = self._process.lease.register(self._session)
        self.registered.set()

    def _may_go_on(self) -> bool:
        lease = self._process.lease
        good = not self.stopping.is_set() and lease.good and lease.generation == self._generation
        return good and self._limiter.fresh

    # -- one claim -----------------------------------------------------------------------------------------------------

    def _take_and_run(self) -> None:
        poller = self._process.poller
        hint = poller.next_hint()
        if hint is None:
            self._rest()
            poller.wait_for_hint(_IDLE_S)
            return
        if self._process.gate.closed:
            if hint.exclusive:
                poller.again(hint)
            self._rest()
            self._process.gate.wait_open(_CLOSED_S)
            return
        with self._process.recycler.allow(self._groups[hint.group_id].size()) as allowance:
            if allowance.size and hint.limited:
                self._follow_within_limits(hint, allowance)
            elif allowance.size:
                self._limiter.leave()
                self._follow(hint, allowance.size, allowance)
            else:  # the process ends once the claims of its other threads have ended
                self._write_before()
                self.sleep(_SPENT_S)

    def _rest(self) -> None:
        self._write_before()
        self._limiter.leave()

    def _follow_within_limits(self, hint: Hint, allowance: Allowance) -> None:
        group, client_id = self._groups[hint.group_id], self._client_id or ""
        wanted = min(group.size(min(CLAIM_S / group.sizer.target_s, 1.0)), allowance.size)
        at_once = group.assignment.route.at_once or group.assignment.group.order is Order.KEY
        permit = self._limiter.ask(hint.group_id, client_id, wanted, at_once=at_once, held=hint.held)
        if not permit.granted:
            self._write_before()
            return
        try:
            with group.executor.holding(permit.paused):
                self._follow(hint, permit.granted, allowance)
        finally:
            self._limiter.end(hint.group_id, permit, allowance.started)

    def _follow(self, hint: Hint, size: int, allowance: Allowance) -> None:
        one, client_id = self._process.assignments[hint.group_id], self._client_id or ""
        suspects, only_new = self._process.suspects, hint.kind == "stream" and not hint.exclusive and not one.fair
        most_isolation = Isolation.LAST if only_new else suspects.most_isolation(hint.group_id)
        claimant = self._claimer.claimant(
            *(hint, one.topic, one.group, client_id, size, most_isolation), fair=one.fair, per_key=one.per_key
        )
        try:
            claim = self._claimer.take(hint, claimant, () if self._before is None else (self._before,))
        except FenceLost:
            self._note_lost()
            return
        self._before = None
        if claim is not None:
            with suspects.turn(claim):
                self._run(claim, allowance)
            if hint.exclusive or one.per_key:  # another thread may have found no key with room meanwhile
                self._process.poller.again(hint)
        elif not only_new and not self._claimer.was_busy and most_isolation is Isolation.LAST:
            suspects.none_left(hint.group_id)

    def _run(self, claim: Claim, allowance: Allowance) -> None:
        process, group = self._process, self._groups[claim.group_id]
        topic_id, timeout_s = group.assignment.topic.id, group.assignment.group.timeout_s
        claim_run = group.executor.begin(claim, topic_id, timeout_s, threading.get_ident())
        process.claims.add(self.ident or 0, claim_run)
        began = ticks()
        try:
            self._limiter.taken()
            finished = group.executor.run(claim_run)
            group.sizer.record(claim_run.progress.passed, ticks() - began)
            if finished:
                self._before = claim_run.finish(self._channel)
                self._in_doubt |= self._before is None
            else:
                self._in_doubt |= claim_run.closed
                claim_run.give_back(self._channel)
        except FenceLost:
            log.warning("the claim of %s has another owner; its messages are run elsewhere", claim.place)
            self._in_doubt = True
        except StoreError as error:
            self._interrupted = claim_run
            if isinstance(error, LostUnderHandler):
                self._lost_run = error.run, process.losses.note(error.run)
            raise
        else:
            process.losses.forget(claim)
        finally:
            allowance.ran = claim_run.progress.ended
            allowance.started = claim_run.started
            process.claims.remove(self.ident or 0)
            process.poller.note_work()

    def _write_before(self) -> None:
        if self._before is None:
            return
        try:
            self._channel.flush(self._before)
        except FenceLost:
            self._note_lost()
        self._before = None

    def _note_lost(self) -> None:
        """Give up the client id and so the claim: it has another owner, or a state that is not known here."""
        place = self._before.claim.place if self._before is not None else "a partition"
        log.warning("the end of a claim came too late: %s was run elsewhere", place)
        self._before = None
        self._in_doubt = self._client_id is not None

    # -- trouble and the end -------------------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        """Write down what is known to be done after a lost connection, and give up the client id.

        It cannot be known whether the lost packet took a claim; if it did, the beat finds the claim orphaned and gives
        it back, without charging an attempt. Finished work is written first, under the old client id: if the lost
        packet had written it already, the fence refuses, which does no harm. Nothing is claimed under the old client id
        until it is given up: a claim that its owner does not know of would look alive until its deadline.
        """
        if self._interrupted is not None:
            self._settle_lost_run(self._interrupted)
            self._before = self._interrupted.unfinished() or self._before
        self._write_before()
        if self._client_id is not None:
            self._process.lease.deregister(self._session, self._client_id)
        self._client_id = None
        self._in_doubt = False
        if self._interrupted is not None:
            self._process.gate.leave(self._interrupted)
            self._interrupted = None

    def _settle_lost_run(self, claim_run: ClaimRun) -> None:
        """Charge the message that ran when the connection was lost, or log why no attempt is charged.

        The charge is part of the last flush. Its fence holds only while the claim is unchanged: if the handler's own
        commit has taken effect, or takes effect just now, the charge is void.
        """
        if self._lost_run is None:
            return
        (run, times), progress = self._lost_run, claim_run.progress
        server, acked_to = self._channel.server_run(), self._channel.acked_to(progress.claim)
        committed = None if acked_to is None else acked_to > progress.acked_to
        verdict = judge(run, times, server, ticks() - run.began, committed)
        self._lost_run = None
        if isinstance(verdict, str):
            log.warning(
                "%s lost its connection after %.1f s in %r of group %s; no attempt is charged: %s",
                *(self.name, run.ran_s, run.messages[0], run.claim.group, verdict),
            )
            return
        claim_run.done([self._groups[run.claim.group_id].executor.charge(run, verdict)])

    def shut_down(self) -> None:
        """Write down what is done, and deregister."""
        until = ticks() + _LAST_WORDS_S
        while ticks() < until:
            try:
                self._start_anew()
                break
            except StoreError:
                forks.Event().wait(_LEASE_WAIT_S)
        self._channel.close()
