"""Runs the messages of a claim: finds the handler, calls it, and decides what its error means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from emsworker.consume.coroutines import EventLoop, guarded, run_together
from emsworker.consume.handler_run import CoroutineRun, ThreadRun
from emsworker.consume.isolation import IsolationGate
from emsworker.consume.lanes import Lanes
from emsworker.consume.lanework import LaneWork
from emsworker.consume.losses import LostRun, LostUnderHandler
from emsworker.consume.outcome import describe, outcome_of, refuse_expired
from emsworker.consume.result_writer import ResultWriter
from emsworker.consume.time_limits import call_interruptibly
from emsworker.consume.watch import Lane
from emsworker.consume.work import Ended, Work
from emsworker.core.errors import BatchFailed, FenceLost, SoftTimeLimitExceeded, TransactionEnded
from emsworker.core.ladder import Ladder
from emsworker.core.model import Claim, Failure, Isolation, Message, Order, Outcome
from emsworker.core.process.clock import ticks
from emsworker.core.url import redact
from emsworker.publish.transaction import Transaction
from emsworker.store.engine.errors import Conflict, ConnectionLost, TransactionGone, is_cut, translate
from emsworker.store.engine.schema import server_run
from emsworker.store.engine.session import Session
from emsworker.store.groups import progress
from emsworker.store.groups.results import ResultRow
from emsworker.tasks.middleware import Middleware, hooks
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.task import Handler, Route

log = logging.getLogger(__name__)

_PLAIN = HandlerOptions()


class Executor:
    """Runs claims of one group; used by one thread.

    Args:
        route: the group's handlers.
        ladder: the group's ladder, for handlers without one of their own.
        middleware: the app's middleware.
        session: the thread's own session, in which transactional handlers run.
        may_go_on: checked before every message; false if the process stops or its lease is no longer trusted.
        gate: the process's gate for poison isolation.
        result_writer: creates the results of tasks that keep them.
        loop: the process's event loop, for coroutines.
        pool: the process's threads for the lanes of keys that run in order; lanes: the most lanes that a claim gets.
    """

    def __init__(
        self,
        route: Route,
        ladder: Ladder,
        middleware: tuple[Middleware, ...],
        session: Session,
        may_go_on: Callable[[], bool],
        gate: IsolationGate,
        result_writer: ResultWriter,
        loop: EventLoop,
        pool: ThreadPoolExecutor,
        lanes: int,
    ) -> None:
        self._route = route
        self._loop = loop
        self._result_writer = result_writer
        self._value: object = None  # what the last handler returned
        self._ladder = ladder
        self._session = session
        self._may_go_on = may_go_on
        self._gate = gate
        self._before = hooks(middleware, "before_run")
        self._after = hooks(middleware, "after_run")
        self._on_retry = hooks(middleware, "on_retry")
        self._on_dead = hooks(middleware, "on_dead")
        self._lanes = Lanes(lanes, pool, self._handler, self._attempt, may_go_on)
        # Everything below a transactional handler's message must be done too, or a crash would repeat its effect.
        self._one_by_one = any(handler.options.transactional for handler in route.handlers)

    def takes_lanes(self, claim: Claim) -> bool:
        """Return whether a claim is to be run as :class:`LaneWork`."""
        return claim.order is Order.KEY and claim.isolation is not Isolation.ALONE and not self._one_by_one

    def run(self, work: Work) -> bool:
        """Work through a claim; return True if it reached its end.

        Raises:
            FenceLost: the claim has another owner.
            ConnectionLost: this thread's connection was lost.
        """
        claim = work.claim
        if isinstance(work, LaneWork):
            return self._lanes.run(work)
        for handler, messages in self._calls(claim.messages, in_order=claim.order is not Order.NONE):
            if work.held or not self._may_go_on():
                return False
            if work.waits(messages[0]):
                work.block(messages[0])
            elif not self._run(work, messages, handler):
                return False
        return True

    def _calls(
        self, messages: list[Message], *, in_order: bool
    ) -> Iterator[tuple[Handler | BaseException, list[Message]]]:
        """Yield the messages in order with their handlers; neighbours with one batch handler come together."""
        batch: list[Message] = []
        shared: Handler | None = None
        for message in messages:
            handler = self._handler(message)
            size = handler.together if isinstance(handler, Handler) and not in_order else 0
            if batch and (handler is not shared or len(batch) >= size):
                assert shared is not None
                yield shared, batch
                batch = []
            if size:
                assert isinstance(handler, Handler)
                shared = handler
                batch.append(message)
            else:
                yield handler, [message]
        if batch and shared is not None:
            yield shared, batch

    def _handler(self, message: Message) -> Handler | BaseException:
        try:
            return self._route.resolve(message)
        except Exception as error:
            return error

    def _run(self, work: Work, messages: list[Message], handler: Handler | BaseException) -> bool:
        if work.claim.isolation is Isolation.ALONE:
            return self._run_alone(work, messages, handler)
        return self._run_together(work, messages, handler)

    def _run_alone(self, work: Work, messages: list[Message], handler: Handler | BaseException) -> bool:
        """Run messages one by one, each alone in the gate: a crash must name only one message."""
        if len(messages) > 1:
            return self._run_singly(work, messages, handler)
        with self._gate.enter():
            ran = self._may_go_on() and self._run_together(work, messages, handler)
            if work.dirty:
                work.write_down(self._session)  # or a crash in the next message would blame this one too
            return ran

    def _run_together(self, work: Work, messages: list[Message], handler: Handler | BaseException) -> bool:
        if isinstance(handler, Handler) and handler.is_async:
            return self._run_coroutines(work, messages, handler)
        options = handler.options if isinstance(handler, Handler) else _PLAIN
        began = ticks()
        if not work.start(messages, options, began):
            return False
        for message in messages:
            message.run = ThreadRun(work, work, message, began)
        server = None
        if work.claim.isolation is Isolation.ALONE:
            work.write_down(self._session)
            server = server_run(self._session) if options.transactional else None
        try:
            self._call(work, messages, handler, options)
        except FenceLost:
            raise
        except _LostHere as error:
            run = LostRun(work.claim, messages, options, began, ticks() - began, server, is_cut(error.__cause__))
            raise LostUnderHandler(run, error.__cause__) from error.__cause__
        except BaseException as error:
            if len(messages) > 1:
                log.warning(
                    "a batch of %d of %s failed (%r); its messages are run one by one",
                    len(messages),
                    self._route.group,
                    error,
                )
                work.rewind()
                return self._run_singly(work, messages, handler)
            self._fail(work, messages[0], error, options, ticks() - began)
        if options.keeps_result and work.heavy:
            work.write_down(self._session)
        return True

    def _run_singly(self, work: Work, messages: list[Message], handler: Handler | BaseException) -> bool:
        return all(self._may_go_on() and self._run(work, [message], handler) for message in messages)

    def _call(
        self, work: Work, messages: list[Message], handler: Handler | BaseException, options: HandlerOptions
    ) -> None:
        if isinstance(handler, BaseException):
            raise handler
        began = ticks()
        for hook in self._before:
            for message in messages:
                hook(message, self._route.group)
        for message in messages:
            refuse_expired(message, work.claim)
        if options.transactional:
            self._tell_all(messages, self._call_transactional(work, messages, handler), ticks() - began)
        else:
            failed = self._call_plainly(work, messages, handler)
            ran_s = ticks() - began
            failures = self._failures_of(messages, failed, options, ran_s)
            self._result_writer.put(rows := self._results(messages, options))
            self._tell_all(messages, failures, ran_s)  # before done(), after which the completer may write it down
            work.done(messages, failures, [ran_s] * len(messages), self._result_writer.for_flush(rows))

    def _tell_all(self, messages: list[Message], failures: list[Failure], ran_s: float) -> None:
        outcomes = {failure.offset: failure for failure in failures}
        for message in messages if self._after or failures else ():
            self._tell(message, outcomes.get(message.offset), None, ran_s)

    def _call_plainly(
        self, work: Work, messages: list[Message], handler: Handler, transaction: Transaction | None = None
    ) -> BatchFailed | None:
        if not handler.options.batch:
            self._value = call_interruptibly(work, lambda: handler.call(messages[0], transaction))
            return None
        try:
            call_interruptibly(work, lambda: handler.call_batch(messages, transaction))
        except BatchFailed as failed:
            return failed
        return None

    def _results(self, messages: list[Message], options: HandlerOptions) -> list[ResultRow]:
        """Return the results of a call that returned; a batch has none."""
        if not options.keeps_result:
            return []
        value, self._value = self._value, None
        return self._result_writer.rows(messages[0], options, value, None, None)

    def _tell(self, message: Message, failure: Failure | None, error: BaseException | None, ran_s: float) -> None:
        """Call the hooks; the message has ended, perhaps in a commit, so their errors cannot become its failure."""
        outcome = failure.outcome if failure is not None else Outcome.DONE
        if failure is not None and error is None:
            error = RuntimeError(failure.error)
        calls = [partial(hook, message, self._route.group, outcome, error, ran_s) for hook in self._after]
        if failure is not None and failure.retry_in_s is not None:
            calls += [partial(hook, message, self._route.group, error, failure.retry_in_s) for hook in self._on_retry]
        if failure is not None and failure.dead is not None:
            calls += [partial(hook, message, self._route.group, error, failure.dead) for hook in self._on_dead]
        for call in calls:
            try:
                call()
            except Exception:
                log.exception("a hook failed after %r was run", message)

    # -- coroutines ----------------------------------------------------------------------------------------------------

    def _run_coroutines(self, work: Work, messages: list[Message], handler: Handler) -> bool:
        """Run coroutines at once; each has its own limits, so the claim's only apply if the loop is blocked."""
        options = handler.options
        limit_s, guard = guarded(options, work.group_timeout_s)
        if not work.start(messages, guard, ticks()):
            return False
        if work.claim.isolation is Isolation.ALONE:
            work.write_down(self._session)
        ends: dict[int, Ended] = {}

        async def run(message: Message) -> None:
            its = CoroutineRun(work, work, message, options, limit_s)
            message.run = its
            ends[message.offset] = await self._await(work.claim, message, handler, its)

        def ended(these: list[Message], following: Message | None) -> None:
            told = [ends.pop(message.offset) for message in these]
            rows = [row for one in told for row in one.results]
            failures = [failure for one in told for failure in one.failures]
            work.done(these, failures, [one.ran_s for one in told], rows, following)

        self._loop.run(run_together(messages, run, ended))
        return True

    async def _await(self, claim: Claim, message: Message, handler: Handler, its: CoroutineRun) -> Ended:
        options, value, error, began = handler.options, None, None, ticks()
        try:
            self._get_ready(message, claim)
            value = await its.within_limits(handler.call(message))
        except BaseException as reason:
            error = reason
        return self._outcome(message, options, value, error, ticks() - began)

    def _get_ready(self, message: Message, claim: Claim) -> None:
        for hook in self._before:
            hook(message, self._route.group)
        refuse_expired(message, claim)

    def _outcome(
        self, message: Message, options: HandlerOptions, value: object, error: BaseException | None, ran_s: float
    ) -> Ended:
        failure = self._failure(message, error, options, ran_s) if error is not None else None
        rows = self._result_writer.rows(message, options, value, failure, error)
        self._result_writer.put(rows)
        self._tell(message, failure, error, ran_s)
        return Ended(
            message, [failure] if failure is not None else [], self._result_writer.for_flush(rows), ran_s=ran_s
        )

    def _attempt(self, work: Work, message: Message, handler: Handler | BaseException, lane: Lane) -> Ended:
        """Run one message of a lane; wait for the end of a coroutine."""
        value, error, began = None, None, ticks()
        options = handler.options if isinstance(handler, Handler) else _PLAIN
        try:
            if isinstance(handler, BaseException):
                raise handler
            if handler.is_async:
                its = CoroutineRun(work, lane, message, options, guarded(options, work.group_timeout_s)[0])
                message.run = its
                self._get_ready(message, work.claim)
                value = self._loop.run(its.within_limits(handler.call(message)))
            else:
                message.run = ThreadRun(work, lane, message, lane.running_since)
                self._get_ready(message, work.claim)
                value = call_interruptibly(lane, partial(handler.call, message))
        except BaseException as reason:
            error = reason
        return self._outcome(message, options, value, error, ticks() - began)

    # -- transactions --------------------------------------------------------------------------------------------------

    def _call_transactional(self, work: Work, messages: list[Message], handler: Handler) -> list[Failure]:
        """Run the handler and commit the acked offset in one transaction; retry all of it after a conflict."""

        def attempt() -> list[Failure]:
            began = ticks()
            failed = self._in_transaction(work, messages, handler)
            ran_s = ticks() - began
            failures = self._failures_of(messages, failed, handler.options, ran_s)
            rows = self._results(messages, handler.options)
            kept = self._result_writer.for_flush(rows)
            commit = partial(progress.commit_with, self._session)
            self._own(lambda: work.commit(messages, failures, ran_s, commit, kept))
            self._result_writer.put(rows)
            return failures

        return self._session.again_on_conflict(attempt)

    def _in_transaction(self, work: Work, messages: list[Message], handler: Handler) -> BatchFailed | None:
        """Call the handler; an error with which the server rolled it back is raised even if the handler caught it."""
        try:
            with self._session.lend() as connection:
                failed = self._call_plainly(work, messages, handler, Transaction(connection))
            if work.soft_limit_sent:
                raise SoftTimeLimitExceeded  # the handler caught it, but the state of its connection is unknown
        except BaseException as error:
            if work.soft_limit_sent:
                self._session.drop()  # it may have cut a packet in two; the server rolls back
                raise
            meaning = self._session.rolled_back or translate(error)
            if isinstance(meaning, ConnectionLost) and not self._session.alive:
                raise _LostHere from meaning  # ours, not that of a service which the handler calls
            if isinstance(meaning, Conflict):
                self._session.rollback()
                raise meaning from error
            raise
        if not self._session.alive:
            raise _LostHere from ConnectionLost("the connection was lost in the handler, which did not mind")
        if (conflict := self._session.rolled_back) is not None:
            self._session.rollback()
            raise conflict
        return failed

    def _own(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ConnectionLost as error:
            raise _LostHere from error
        except TransactionGone:
            raise TransactionEnded(
                "the handler ended its transaction (COMMIT, ROLLBACK or DDL): exactly-once is void for this message"
            ) from None

    # -- what an error means -------------------------------------------------------------------------------------------

    def charge(self, run: LostRun, error: BaseException) -> Ended:
        """End a message whose run was lost, as its own task decides; the caller writes it down with the claim."""
        ended = self._outcome(run.messages[0], run.options, None, error, run.ran_s)
        return replace(ended, failures=[replace(failure, suspect=True) for failure in ended.failures])

    def _failures_of(
        self, messages: list[Message], failed: BatchFailed | None, options: HandlerOptions, ran_s: float
    ) -> list[Failure]:
        if failed is None:
            return []
        by_id = {message.id: message for message in messages}
        unknown = set(failed.errors) - set(by_id)
        if unknown:
            raise ValueError(f"BatchFailed names messages that are not in the batch: {', '.join(sorted(unknown))}")
        failures = []
        for uid, reason in failed.errors.items():
            error = reason if isinstance(reason, BaseException) else RuntimeError(reason)
            failures.append(self._failure(by_id[uid], error, options, ran_s))
        return failures

    def _fail(self, work: Work, message: Message, error: BaseException, options: HandlerOptions, ran_s: float) -> None:
        failure = self._failure(message, error, options, ran_s)
        rows = self._result_writer.rows(message, options, None, failure, error)
        self._result_writer.put(rows)
        self._tell(message, failure, error, ran_s)
        work.done([message], [failure], [ran_s], self._result_writer.for_flush(rows))

    def _failure(self, message: Message, error: BaseException, options: HandlerOptions, ran_s: float) -> Failure:
        decision = options.decide(self._ladder, message.attempt, error)
        outcome = outcome_of(error, decision)
        failure = Failure.decided(message.offset, message.attempt, outcome, describe(error), decision, ran_s)
        level = logging.INFO if failure.outcome in (Outcome.IGNORED, Outcome.EXPIRED) else logging.WARNING
        log.log(level, "%r in group %s: %s -> %s", message, self._route.group, redact(repr(error)), decision)
        return failure


class _LostHere(BaseException):
    """The thread's own connection was lost during a transactional handler; by itself this charges no attempt."""
