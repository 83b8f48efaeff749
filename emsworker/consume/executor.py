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
from typing import Any

from emsworker.broker.channel import Send, TransactionLost
from emsworker.consume.attempts import Expired, GroupAttempts, begin_running, end_running, one_line
from emsworker.consume.claim_progress import Ended
from emsworker.consume.claim_run import BatchBroken, ClaimRun, end_of
from emsworker.consume.context import RunContext
from emsworker.consume.coroutines import CoroutineRun, guarded, run_together, thread_limits
from emsworker.consume.keyed_run import KeyedRun, Lane, Lanes, Resolved
from emsworker.consume.losses import LostRun, LostUnderHandler
from emsworker.consume.watch import NO_LIMITS, Watch
from emsworker.core.errors import (
    BatchFailed,
    DecodeError,
    FenceLost,
    RunCancelled,
    SoftTimeLimitExceeded,
)
from emsworker.core.model import (
    EXPIRES_HEADER,
    FOLLOW_HEADER,
    GROUP_HEADER,
    TASK_HEADER,
    Claim,
    Failure,
    Message,
    Order,
    Outcome,
)
from emsworker.core.process.clock import ticks
from emsworker.publish.transaction import Transaction
from emsworker.tasks.handler import Handler
from emsworker.tasks.middleware import OpenBrackets, RunBracket, RunOutcome
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.route import HELD, PASSED_OVER, PassedOver

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
        self._resolve = context.route.resolve
        self._lanes = Lanes(context, self._handler, self._run_in_lane)
        # Everything below a transactional handler's message must be done too, or a crash would repeat its effect.
        is_transactional = any(handler.options.transactional for handler in context.route.handlers)
        self._one_by_one = is_transactional or not context.lanes

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
            return self._resolve(message)
        except Exception as error:
            return error

    @contextlib.contextmanager
    def holding(self, tasks: frozenset[str]) -> Iterator[None]:
        """Put messages of some tasks back in the block, with no attempt charged: they are paused."""
        if tasks:
            self._resolve = partial(self._resolve_unless_held, tasks)
        try:
            yield
        finally:
            self._resolve = self._context.route.resolve

    def _resolve_unless_held(self, tasks: frozenset[str], message: Message) -> Handler | PassedOver:
        headers = message.headers
        if headers.get(TASK_HEADER) in tasks and headers.get(GROUP_HEADER, self._group) == self._group:
            return HELD
        return self._context.route.resolve(message)

    # -- a message, or a batch, in a thread ----------------------------------------------------------------------------

    def limits_of(self, handler: Resolved | PassedOver, group_timeout_s: float) -> HandlerOptions:
        """Return the limits of the thread that runs a handler."""
        return thread_limits(handler, group_timeout_s)

    def call(
        self, claim_run: ClaimRun, messages: list[Message], handler: Resolved | PassedOver, began: float
    ) -> Sequence[Ended]:
        """Run messages that have begun; return their ends, or none if they are recorded one by one.

        Raises:
            BatchBroken: the messages are to be run one by one.
        """
        if isinstance(handler, Handler):
            if handler.is_async:
                return self._run_coroutines(claim_run, messages, handler)
        elif isinstance(handler, PassedOver):  # no hooks, no attempt, no log line
            return [_passed(message, handler) for message in messages]
        return self._run_in_thread(claim_run, claim_run.watch, messages, handler, began)

    def _run_in_lane(self, claim_run: KeyedRun, message: Message, handler: Resolved | PassedOver, lane: Lane) -> Ended:
        if isinstance(handler, PassedOver):
            return _passed(message, handler)
        return self._run_in_thread(claim_run, lane, [message], handler, lane.running_since)[0]

    # From here on nothing gets a name that holds an error: its frames refer to these ones, and would live on in the
    # cycle, with all that the handler had in memory.

    def _run_in_thread(
        self, claim_run: ClaimRun, watch: Watch, messages: list[Message], handler: Resolved, began: float
    ) -> Sequence[Ended]:
        if not self._hooks.around:
            return self._attempt(claim_run, watch, messages, handler, began)
        with self._brackets(claim_run, messages, watch) as brackets:
            return self._close(
                *(brackets, claim_run),
                self._open(brackets, handler) or self._attempt(claim_run, watch, messages, handler, began),
            )

    def _attempt(
        self, claim_run: ClaimRun, watch: Watch, messages: list[Message], handler: Resolved, began: float
    ) -> Sequence[Ended]:
        """Take messages from the hooks before the handler to those after it."""
        options, server = _options_of(handler), None
        if options.transactional and claim_run.claim.isolation.alone:
            server = self.channel.server_run()
        try:
            if isinstance(handler, BaseException):
                raise handler
            if handler.is_async:  # in a lane, whose thread waits for it
                messages[0].run = self._coroutine_run(claim_run, watch, messages[0], handler)
            self._get_ready(messages, claim_run)
            if options.transactional:
                return self._transact(claim_run, messages, handler)
            return self._conclude(self._call(watch, messages, handler, began))
        except TransactionLost as error:
            ran_s, cause = ticks() - began, error.__cause__
            lost = LostRun(claim_run.claim, messages, options, began, ran_s, server, error.cut, str(cause))
            raise LostUnderHandler(lost, cause) from cause
        except BaseException as error:
            if options.transactional and isinstance(error, FenceLost):
                raise
            return self._fail(messages, handler, error, ticks() - began)

    def _get_ready(self, messages: Sequence[Message], claim_run: ClaimRun) -> None:
        for hook in self._hooks.before:
            for message in messages:
                hook(message, self._group)
        for message in messages:
            if EXPIRES_HEADER in message.headers:
                refuse_expired(message, claim_run.claim)
            if claim_run.cancelled and message.run.cancelled:
                raise RunCancelled("the message was cancelled before it ran")

    def _call(
        self,
        watch: Watch,
        messages: list[Message],
        handler: Handler,
        began: float,
        transaction: Transaction | None = None,
    ) -> list[Ended]:
        """Call the handler with a message or a batch; messages that the batch reports as failed end in failure."""
        first, options = messages[0], handler.options
        call = partial(handler.call, first, transaction)
        if options.batch:
            call = partial(handler.call_batch, messages, transaction)
        elif handler.is_async and isinstance(first.run, CoroutineRun):
            call = partial(self._context.loop.run, first.run.within_limits(handler.call(first)))
        try:
            value = watch.call_interruptibly(call)
        except BatchFailed as failed:
            if not options.batch:
                raise
            return self._end_batch(messages, handler, _errors_of(failed, messages), ticks() - began)
        if options.batch:
            return self._end_batch(messages, handler, {}, ticks() - began)
        return [self._succeeded(first, handler, value, ticks() - began)]

    def _end_batch(
        self, messages: list[Message], handler: Handler, errors: dict[str, BaseException], ran_s: float
    ) -> list[Ended]:
        return [
            self._failed(message, handler.options, errors[message.id], ran_s)
            if message.id in errors
            else self._succeeded(message, handler, None, ran_s)
            for message in messages
        ]

    def _transact(self, claim_run: ClaimRun, messages: list[Message], handler: Handler) -> Sequence[Ended]:
        """Call the handler and record the end of its messages in one transaction."""
        watch = claim_run.watch

        def call(transaction: Transaction) -> Sequence[Ended]:
            ended = self._call(watch, messages, handler, ticks(), transaction)
            if watch.soft_limit_sent:
                raise SoftTimeLimitExceeded  # the handler caught it, but the state of its connection is unknown
            if _is_cancelled(messages[0], handler.options):
                raise RunCancelled
            return ended

        def commit(ended: Sequence[Ended], write: Send) -> None:
            claim_run.commit([self._results.for_flush(one) for one in ended], write)

        ended = self.channel.transact(call, commit, lambda: watch.was_interrupted)
        return self._conclude(ended)

    # -- coroutines ----------------------------------------------------------------------------------------------------

    def _coroutine_run(self, claim_run: ClaimRun, watch: Watch, message: Message, handler: Handler) -> CoroutineRun:
        limit_s, _ = guarded(handler.options, claim_run.watch.group_timeout_s)
        return CoroutineRun(claim_run, watch, message, handler.options, limit_s)

    def _run_coroutines(self, claim_run: ClaimRun, messages: list[Message], handler: Handler) -> Sequence[Ended]:
        """Run coroutines at once; each has its own limits, so the claim's only apply if the loop is blocked."""
        run = partial(self._run_on_loop, claim_run, handler)
        self._context.loop.run(run_together(messages, run, claim_run.done))
        return ()

    async def _run_on_loop(self, claim_run: ClaimRun, handler: Handler, message: Message) -> Sequence[Ended]:
        message.run = its = self._coroutine_run(claim_run, claim_run.watch, message, handler)
        if not self._hooks.around:
            return await self._await(claim_run, message, handler, its)
        with self._brackets(claim_run, [message], None) as brackets:
            return self._close(
                *(brackets, claim_run),
                self._open(brackets, handler) or await self._await(claim_run, message, handler, its),
            )

    async def _await(
        self, claim_run: ClaimRun, message: Message, handler: Handler, its: CoroutineRun
    ) -> Sequence[Ended]:
        began = ticks()
        begin_running(partial(self._attempts.fields_of, (message,)))  # it ends with the coroutine's own context
        try:
            self._get_ready([message], claim_run)
            value = await its.within_limits(
                _load_and_call(message, handler) if message.is_large else handler.call(message)
            )
            return self._conclude([self._succeeded(message, handler, value, ticks() - began)])
        except BaseException as error:
            return self._fail([message], handler, error, ticks() - began)

    # -- within the brackets of the middleware, if there are any -------------------------------------------------------

    @contextlib.contextmanager
    def _brackets(self, claim_run: ClaimRun, messages: list[Message], watch: Watch | None) -> Iterator[OpenBrackets]:
        """Close what is opened in the block; the watch over the thread, if it has one, knows the bracket meanwhile."""
        run = RunBracket(messages, self._group, claim_run.claim, ticks())
        with OpenBrackets(self._hooks.around, run) as brackets:
            if watch is not None:
                watch.bracket = run
            try:
                yield brackets
            except BatchBroken as broken:
                brackets.error = broken.__cause__
                run.end_all(RunOutcome.GIVEN_BACK, ticks() - run.began, brackets.error)
                raise
            except BaseException as error:
                run.end_all(RunOutcome.LOST, ticks() - run.began, error.__cause__ or error)
                raise
            finally:
                if watch is not None:
                    watch.bracket = None

    def _open(self, brackets: OpenBrackets, handler: Resolved) -> Sequence[Ended]:
        """Open the brackets of a run; return the end of its message if that fails."""
        try:
            brackets.open()
        except BaseException as error:
            return self._fail(brackets.bracket.messages, handler, error, 0.0)
        return ()

    def _close(self, brackets: OpenBrackets, claim_run: ClaimRun, ended: Sequence[Ended]) -> Sequence[Ended]:
        """Tell a bracket how its runs ended, unless the flusher has done so because they took too long."""
        run, brackets.error = brackets.bracket, ended[0].error if len(ended) == 1 else None
        if not run.ends:
            is_lost = claim_run.closed and not claim_run.watch.is_recorded  # nothing of it will be written down
            run.ends = [end_of(one, is_lost=is_lost) for one in ended]
        return ended

    # -- how a message ends --------------------------------------------------------------------------------------------

    def _succeeded(self, message: Message, handler: Handler, value: object, ran_s: float) -> Ended:
        if _is_cancelled(message, handler.options):
            return self._failed(message, handler.options, RunCancelled(), ran_s)
        if not self._is_wanted(message, handler.options):
            return Ended(message, ran_s)
        return Ended(message, ran_s, None, self._results.of_value(message, handler, value))

    def _failed(self, message: Message, options: HandlerOptions, error: BaseException, ran_s: float) -> Ended:
        """Decide what an error means: a retry, a dead letter, or nothing."""
        if _is_cancelled(message, options) and not isinstance(error, RunCancelled):
            return self._failed(message, options, RunCancelled().with_traceback(error.__traceback__), ran_s)
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

    def _fail(
        self, messages: Sequence[Message], handler: Resolved, error: BaseException, ran_s: float
    ) -> Sequence[Ended]:
        """End a message whose run has raised.

        Raises:
            BatchBroken: they are several, and it is not known which of them is to blame.
        """
        if len(messages) == 1:
            return self._conclude([self._failed(messages[0], _options_of(handler), error, ran_s)])
        log.warning(
            "a batch of %d calls of %s in group %s failed; its messages are run one by one: %s",
            *(len(messages), self._attempts.task_of(messages[0]), self._group, one_line(error)),
        )
        raise BatchBroken from error

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


def _passed(message: Message, marker: PassedOver) -> Ended:
    """Return the end of a message that does not run here: it is done, or it waits until its task is resumed."""
    if marker is PASSED_OVER:
        return Ended(message)
    failure = Failure.held_back(message.offset, message.attempt, message.headers[TASK_HEADER])
    return Ended(message, failure=failure, delivered=False)


async def _load_and_call(message: Message, handler: Handler) -> Any:
    """Call a coroutine after its body was read from the server in a thread, which does not block the loop meanwhile."""
    import asyncio

    await asyncio.to_thread(getattr, message, "body")
    return await handler.call(message)


def _is_cancelled(message: Message, options: HandlerOptions) -> bool:
    """Return whether a run ends as cancelled, whatever its handler does. A batch has done its work for all or none."""
    return message.run.cancelled and not options.batch


def _options_of(handler: Resolved) -> HandlerOptions:
    return handler.options if isinstance(handler, Handler) else NO_LIMITS


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
