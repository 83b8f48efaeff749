"""The way of a message through its handler, from top to bottom.

Resolve; begin; before hooks, expiry, call (in a thread, in a transaction, as a coroutine, or in the lane of its key),
decide what its error means, make its result, after hooks; record. A message enters as itself and leaves as its
:class:`Ended`. :meth:`ClaimRun.work` takes the messages of a claim through it, one after another.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from emsworker.broker.channel import Send, TransactionLost
from emsworker.consume.attempts import Expired, GroupAttempts, begin_running, end_running, one_line
from emsworker.consume.claim_progress import Ended
from emsworker.consume.claim_run import BatchBroken, ClaimRun, ThreadRun, end_of
from emsworker.consume.context import RunContext
from emsworker.consume.coroutines import CoroutineRun, guarded, run_together, thread_limits
from emsworker.consume.keyed_run import KeyedRun, Lane, Lanes, Resolved
from emsworker.consume.losses import LostRun, LostUnderHandler
from emsworker.consume.watch import NO_LIMITS, Watch
from emsworker.core.errors import (
    BatchFailed,
    DecodeError,
    FenceLost,
    SoftTimeLimitExceeded,
)
from emsworker.core.model import EXPIRES_HEADER, FOLLOW_HEADER, GROUP_HEADER, Claim, Message, Order, Outcome
from emsworker.core.process.clock import ticks
from emsworker.publish.transaction import Transaction
from emsworker.tasks.middleware import OpenBrackets, RunBracket, RunOutcome
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.task import PASSED_OVER, Handler, PassedOver

log = logging.getLogger(__name__)


class Executor:
    """Runs claims of one group; used by one thread.

    Args:
        context: its surroundings.

    Attributes:
        channel, may_go_on, gate: see :class:`RunContext`.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self.channel = context.channel
        self._attempts = GroupAttempts(context.route, context.ladder, context.tally)
        self._hooks = context.hooks
        if context.log_done:
            self._hooks = replace(self._hooks, after=(*self._hooks.after, self._attempts.log_done))
        self.gate = context.gate
        self._results = context.result_writer
        self._group = context.route.group
        self.may_go_on = context.may_go_on
        self._lanes = Lanes(context, self._handler, self._run_in_lane)
        # Everything below a transactional handler's message must be done too, or a crash would repeat its effect.
        self._one_by_one = any(handler.options.transactional for handler in context.route.handlers)

    def begin(self, claim: Claim, topic_id: int, timeout_s: float, thread_id: int) -> ClaimRun:
        """Return the run of a claim, in lanes if its messages run in order by key; see :class:`ClaimRun`."""
        in_lanes = claim.order is Order.KEY and not claim.isolation.alone and not self._one_by_one
        return (KeyedRun if in_lanes else ClaimRun)(claim, topic_id, timeout_s, thread_id, self._attempts)

    def run(self, claim_run: ClaimRun) -> bool:
        """Work through a claim; return True if it reached its end.

        Raises:
            FenceLost: the claim has another owner.
            ConnectionLost: this thread's connection was lost.
        """
        alone = claim_run.claim.isolation.alone
        with contextlib.nullcontext() if alone else self.gate.shared():
            if isinstance(claim_run, KeyedRun):
                return self._lanes.run(claim_run)
            return self._run_in_turn(claim_run)

    def _run_in_turn(self, claim_run: ClaimRun) -> bool:
        before = begin_running(lambda: self._attempts.fields_of(claim_run.running_messages()))
        try:
            return claim_run.work(self)
        finally:
            end_running(before)

    # -- which messages are run together -------------------------------------------------------------------------------

    def calls(self, claim: Claim) -> Iterator[tuple[Resolved | PassedOver, list[Message]]]:
        """Yield the messages in order with their handlers; neighbours with one batch handler come together."""
        together: list[Message] = []
        shared: Resolved | PassedOver | None = None
        most = 1
        for message in claim.messages:
            handler = self._handler(message)
            if shared is not None and (handler is not shared or len(together) >= most):
                yield shared, together
                together = []
            if handler is not shared:
                shared, most = handler, 1
                if isinstance(handler, Handler) and claim.order is Order.NONE:
                    most = handler.together or 1
            together.append(message)
        if shared is not None:
            yield shared, together

    def _handler(self, message: Message) -> Resolved | PassedOver:
        try:
            return self._context.route.resolve(message)
        except Exception as error:
            return error

    # -- a message, or a batch -----------------------------------------------------------------------------------------

    def limits_of(self, handler: Resolved | PassedOver, group_timeout_s: float) -> HandlerOptions:
        """Return the limits of the thread that runs a handler."""
        return thread_limits(handler, group_timeout_s)

    def call(
        self, claim_run: ClaimRun, messages: list[Message], handler: Resolved | PassedOver, began: float
    ) -> Sequence[Ended]:
        """Run messages that have begun; return their ends, those left out that are recorded already.

        Raises:
            BatchBroken: the messages are to be run one by one.
        """
        if handler is PASSED_OVER:  # another group runs it: no hooks, no attempt, no log line
            return [Ended(message) for message in messages]
        if isinstance(handler, Handler) and handler.is_async:
            return self._run_coroutines(claim_run, messages, handler)
        return self._run_in_thread(claim_run, messages, handler, began)

    def _run_in_thread(
        self, claim_run: ClaimRun, messages: list[Message], handler: Resolved, began: float
    ) -> Sequence[Ended]:
        options, server = handler.options if isinstance(handler, Handler) else NO_LIMITS, None
        if options.transactional and claim_run.claim.isolation.alone:
            server = self.channel.server_run()
        try:
            if self._hooks.around:
                return self._run_bracketed(claim_run, messages, handler, began)
            ended = self._run_through(claim_run, messages, handler, began)
            return () if options.transactional else ended
        except FenceLost:
            raise
        except TransactionLost as error:
            lost = LostRun(claim_run.claim, messages, options, began, ticks() - began, server, error.cut)
            raise LostUnderHandler(lost, error.__cause__) from error.__cause__
        except BaseException as error:
            if len(messages) > 1:
                log.warning(
                    "a batch of %d calls of %s in group %s failed; its messages are run one by one: %s",
                    *(len(messages), self._attempts.task_of(messages[0]), self._group, one_line(error)),
                )
                raise BatchBroken from error
            return self._conclude([self._failed(messages[0], options, error, ticks() - began)])

    def _run_through(
        self, claim_run: ClaimRun, messages: list[Message], handler: Resolved, began: float
    ) -> Sequence[Ended]:
        """Take messages from the hooks before the handler to those after it; raise the error of the handler.

        Returns:
            their ends; those of a transactional handler are recorded.
        """
        for message in messages:
            message.run = ThreadRun(claim_run, claim_run.watch, message, began)
        if isinstance(handler, BaseException):
            raise handler
        self._get_ready(messages, claim_run.claim)
        if handler.options.transactional:
            return self._transact(claim_run, messages, handler)
        return self._conclude(self._call(claim_run, messages, handler, began))

    def _get_ready(self, messages: Sequence[Message], claim: Claim) -> None:
        for hook in self._hooks.before:
            for message in messages:
                hook(message, self._group)
        for message in messages:
            if EXPIRES_HEADER in message.headers:
                refuse_expired(message, claim)

    def _call(
        self,
        claim_run: ClaimRun,
        messages: list[Message],
        handler: Handler,
        began: float,
        transaction: Transaction | None = None,
    ) -> list[Ended]:
        """Call the handler with a message or a batch; messages that the batch reports as failed end in failure."""
        if not handler.options.batch:
            value = claim_run.watch.call_interruptibly(partial(handler.call, messages[0], transaction))
            return [self._succeeded(messages[0], handler.options, value, ticks() - began)]
        errors: dict[str, BaseException] = {}
        try:
            claim_run.watch.call_interruptibly(partial(handler.call_batch, messages, transaction))
        except BatchFailed as failed:
            errors = _errors_of(failed, messages)
        ran_s = ticks() - began
        return [
            self._failed(message, handler.options, errors[message.id], ran_s)
            if errors and message.id in errors
            else self._succeeded(message, handler.options, None, ran_s)
            for message in messages
        ]

    def _transact(self, claim_run: ClaimRun, messages: list[Message], handler: Handler) -> Sequence[Ended]:
        """Call the handler and record the end of its messages in one transaction."""

        def call(transaction: Transaction) -> Sequence[Ended]:
            ended = self._call(claim_run, messages, handler, ticks(), transaction)
            if claim_run.watch.soft_limit_sent:
                raise SoftTimeLimitExceeded  # the handler caught it, but the state of its connection is unknown
            return ended

        def commit(ended: Sequence[Ended], send: Send) -> None:
            claim_run.commit([self._results.for_flush(one) for one in ended], send)

        return self._conclude(self.channel.transact(call, commit, lambda: claim_run.watch.soft_limit_sent))

    # -- coroutines, and lanes of keys ---------------------------------------------------------------------------------

    def _run_coroutines(self, claim_run: ClaimRun, messages: list[Message], handler: Handler) -> Sequence[Ended]:
        """Run coroutines at once; each has its own limits, so the claim's only apply if the loop is blocked."""
        limit_s, _ = guarded(handler.options, claim_run.watch.group_timeout_s)
        ends: dict[int, Ended] = {}

        async def run(message: Message) -> None:
            message.run = its = CoroutineRun(claim_run, claim_run.watch, message, handler.options, limit_s)
            attempt = self._await_bracketed if self._hooks.around else self._await
            ends[message.offset] = await attempt(claim_run, message, handler, its)

        def ended(these: list[Message], following: Message | None) -> None:
            claim_run.done([ends.pop(message.offset) for message in these], following)

        self._context.loop.run(run_together(messages, run, ended))
        return ()

    async def _await(self, claim_run: ClaimRun, message: Message, handler: Handler, its: CoroutineRun) -> Ended:
        began = ticks()
        begin_running(partial(self._attempts.fields_of, (message,)))  # it ends with the coroutine's own context
        try:
            self._get_ready([message], claim_run.claim)
            value = await its.within_limits(handler.call(message))
            ended = self._succeeded(message, handler.options, value, ticks() - began)
        except BaseException as error:
            return self._conclude([self._failed(message, handler.options, error, ticks() - began)])[0]
        return self._conclude([ended])[0]

    def _run_in_lane(self, claim_run: KeyedRun, message: Message, handler: Resolved | PassedOver, lane: Lane) -> Ended:
        """Run one message of a lane; wait for the end of a coroutine."""
        if handler is PASSED_OVER:
            return Ended(message)
        if not self._hooks.around:
            return self._attempt_in_lane(claim_run, message, handler, lane)
        with self._brackets([message], claim_run, lane) as brackets:
            ended = self._open(brackets, message, handler) or self._attempt_in_lane(claim_run, message, handler, lane)
            self._end_bracket(brackets, claim_run, [ended])
        return ended

    def _attempt_in_lane(self, claim_run: KeyedRun, message: Message, handler: Resolved, lane: Lane) -> Ended:
        began = ticks()
        options = handler.options if isinstance(handler, Handler) else NO_LIMITS
        try:
            if isinstance(handler, BaseException):
                raise handler
            if handler.is_async:
                limit_s, _ = guarded(options, claim_run.watch.group_timeout_s)
                message.run = its = CoroutineRun(claim_run, lane, message, options, limit_s)
                self._get_ready([message], claim_run.claim)
                value = self._context.loop.run(its.within_limits(handler.call(message)))
            else:
                message.run = ThreadRun(claim_run, lane, message, lane.running_since)
                self._get_ready([message], claim_run.claim)
                value = lane.call_interruptibly(partial(handler.call, message))
            ended = self._succeeded(message, options, value, ticks() - began)
        except BaseException as error:
            return self._conclude([self._failed(message, options, error, ticks() - began)])[0]
        return self._conclude([ended])[0]

    # -- within the brackets of the middleware, if there are any -------------------------------------------------------

    @contextlib.contextmanager
    def _brackets(self, messages: list[Message], claim_run: ClaimRun, watch: Watch | None) -> Iterator[OpenBrackets]:
        """Close what is opened in the block; the watch over the thread, if it has one, knows the bracket meanwhile."""
        run = RunBracket(messages, self._group, claim_run.claim, ticks())
        with OpenBrackets(self._hooks.around, run) as brackets:
            if watch is not None:
                watch.bracket = run
            try:
                yield brackets
            finally:
                if watch is not None:
                    watch.bracket = None

    def _run_bracketed(
        self, claim_run: ClaimRun, messages: list[Message], handler: Resolved, began: float
    ) -> Sequence[Ended]:
        """Run messages, as :meth:`call` does; raise what is no end: a loss, or the failure of a batch."""
        options = handler.options if isinstance(handler, Handler) else NO_LIMITS
        committed = False
        with self._brackets(messages, claim_run, claim_run.watch) as brackets:
            run = brackets.bracket
            try:
                brackets.open()
                ended = self._run_through(claim_run, messages, handler, began)
                committed = options.transactional
            except (FenceLost, TransactionLost) as error:
                run.end_all(RunOutcome.LOST, ticks() - began, error.__cause__ or error)
                raise
            except BaseException as error:
                if len(messages) > 1:
                    run.end_all(RunOutcome.GIVEN_BACK, ticks() - began, error)
                    raise
                ended = self._conclude([self._failed(messages[0], options, error, ticks() - began)])
            self._end_bracket(brackets, claim_run, ended, committed=committed)
        return () if committed else ended

    async def _await_bracketed(
        self, claim_run: ClaimRun, message: Message, handler: Handler, its: CoroutineRun
    ) -> Ended:
        with self._brackets([message], claim_run, None) as brackets:
            ended = self._open(brackets, message, handler) or await self._await(claim_run, message, handler, its)
            self._end_bracket(brackets, claim_run, [ended])
        return ended

    def _open(self, brackets: OpenBrackets, message: Message, handler: Resolved) -> Ended | None:
        """Open the brackets of a run; return its end if that fails."""
        try:
            brackets.open()
        except BaseException as error:
            options = handler.options if isinstance(handler, Handler) else NO_LIMITS
            return self._conclude([self._failed(message, options, error, 0.0)])[0]
        return None

    def _end_bracket(
        self, brackets: OpenBrackets, claim_run: ClaimRun, ended: Sequence[Ended], *, committed: bool = False
    ) -> None:
        """Tell a bracket how its runs ended, unless the flusher has done so because they took too long."""
        run, brackets.error = brackets.bracket, ended[0].error if len(ended) == 1 else None
        if not run.ends:
            run.ends = [end_of(one) for one in ended]
            if claim_run.closed and not committed:  # nothing of it will be written down
                run.end_all(RunOutcome.LOST, ended[0].ran_s, brackets.error)

    # -- how a message ends --------------------------------------------------------------------------------------------

    def _succeeded(self, message: Message, options: HandlerOptions, value: object, ran_s: float) -> Ended:
        if not self._is_wanted(message, options):
            return Ended(message, ran_s)
        return Ended(message, ran_s, None, self._results.of_value(message, options, value))

    def _failed(self, message: Message, options: HandlerOptions, error: BaseException, ran_s: float) -> Ended:
        """Decide what an error means: a retry, a dead letter, or nothing."""
        failure = self._attempts.decide(message, options, error, ran_s)
        self._attempts.log_failure(message, options, failure, error)
        wanted = self._is_wanted(message, options)
        results = self._results.of_failure(message, options, failure, error) if wanted else ()
        return Ended(message, ran_s, failure, results, error)

    def _is_wanted(self, message: Message, options: HandlerOptions) -> bool:
        """Return whether the result of a message is kept or followed; it is followed by its own group alone."""
        if options.keeps_result:
            return True
        try:
            headers = message.headers
        except DecodeError:
            return False
        return FOLLOW_HEADER in headers and headers.get(GROUP_HEADER) == self._group

    def charge(self, run: LostRun, error: BaseException) -> Ended:
        """End a message whose run was lost, as its own task decides; the caller writes it down with the claim."""
        (ended,) = self._conclude([self._failed(run.messages[0], run.options, error, run.ran_s)])
        return ended

    def _conclude(self, ended: Sequence[Ended]) -> Sequence[Ended]:
        """Store results that are kept elsewhere, and call the hooks; return what is to be recorded."""
        ended, after = self._results.put(ended), self._hooks.after
        for one in ended:
            if after or one.failure is not None:
                self._call_hooks(one)
        return ended

    def _call_hooks(self, ended: Ended) -> None:
        """Call the hooks; the message has ended, perhaps in a commit, so their errors cannot become its failure."""
        message, ran_s, failure, error = ended.message, ended.ran_s, ended.failure, ended.error
        outcome = failure.outcome if failure is not None else Outcome.DONE
        calls = [partial(hook, message, self._group, outcome, error, ran_s) for hook in self._hooks.after]
        if failure is not None and failure.retry_in_s is not None:
            calls += [partial(hook, message, self._group, error, failure.retry_in_s) for hook in self._hooks.on_retry]
        if failure is not None and failure.dead is not None:
            calls += [partial(hook, message, self._group, error, failure.dead) for hook in self._hooks.on_dead]
        for call in calls:
            try:
                call()
            except BaseException:  # SystemExit, too: it would end the process of a message that has ended
                log.exception("a hook failed after %s of %r was run", self._attempts.task_of(message), message)


def _errors_of(failed: BatchFailed, messages: list[Message]) -> dict[str, BaseException]:
    """Return the errors of a batch by message."""
    unknown = set(failed.errors) - {message.id for message in messages}
    if unknown:
        raise ValueError(f"BatchFailed names messages that are not in the batch: {', '.join(sorted(unknown))}")
    return {
        uid: reason if isinstance(reason, BaseException) else RuntimeError(reason)
        for uid, reason in failed.errors.items()
    }


def refuse_expired(message: Message, claim: Claim) -> None:
    """Raise if the message has expired.

    Raises:
        DecodeError: the header is not a time with a zone.
    """
    until = message.headers.get(EXPIRES_HEADER)
    if until is not None and claim.server_now() > _time(until):
        raise Expired(f"it was to start before {until}")


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise DecodeError(f"header {EXPIRES_HEADER} = {text[:100]!r} is no time with a zone")
    return time
