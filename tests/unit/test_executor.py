"""The way of a message through the executor, over a channel that only remembers what it is told."""

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emsworker import BatchFailed, Ems
from emsworker.broker.channel import Send, TransactionLost
from emsworker.consume.claim_run import ClaimRun
from emsworker.consume.context import RunContext, RunHooks
from emsworker.consume.executor import Executor
from emsworker.consume.losses import LostUnderHandler
from emsworker.consume.result_writer import ResultWriter
from emsworker.core.codec import Decoder
from emsworker.core.errors import ConnectionLost, FenceLost
from emsworker.core.flush import Flush
from emsworker.core.ladder import Ladder
from emsworker.core.model import Claim, ClaimSource, Isolation, Message, Order, Outcome
from emsworker.core.servers import ServerRun
from emsworker.publish.transaction import Transaction
from emsworker.tasks.middleware import Middleware, RunBracket

SERVER = ServerRun(("one",), 100.0)


class Recorder:
    """A channel that keeps its flushes."""

    def __init__(self) -> None:
        self.flushes: list[Flush] = []
        self.lost = False
        self.fails_after = 1000  # so many flushes

    def flush(self, flush: Flush) -> None:
        if len(self.flushes) == self.fails_after:
            raise ConnectionLost("nobody knows if it was committed")
        self.flushes.append(flush)

    def server_run(self) -> ServerRun:
        return SERVER

    def transact(
        self, call: Callable[[Transaction], Any], commit: Callable[[Any, Send], None], is_cut_short: Callable[[], bool]
    ) -> Any:
        returned = call(Transaction(None))
        if self.lost:
            raise TransactionLost(cut=True) from ConnectionError("gone")
        commit(returned, self.flushes.append)
        return returned


def whole(channel: Recorder) -> Any:
    """It has what an executor needs of a channel."""
    return channel


class Witness(Middleware):
    def __init__(self) -> None:
        self.seen: list[tuple[int, str, str]] = []

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        self.seen.append((message.offset, str(outcome), repr(error)))


def run_of(
    subscribe: Callable[[Ems], None],
    isolation: Isolation = Isolation.NONE,
    *middleware: Middleware,
    lost: bool = False,
    order: Order = Order.NONE,
) -> tuple[Executor, ClaimRun, Recorder, Witness]:
    app = Ems("shop", url="mysql://u:p@localhost/shop")
    subscribe(app)
    (route,) = app.registry.routes.values()
    channel, witness = Recorder(), Witness()
    channel.lost = lost
    hooks = RunHooks.of([witness, *middleware])
    context = RunContext(route, Ladder.parse("5", 3, 0.0), whole(channel), ResultWriter(60.0), hooks)
    messages = [
        Message(
            "t",
            0,
            (offset, bytes([offset]) * 16, None, None, b"", str(offset).encode(), "2026-01-01"),
            Decoder(("json",)),
        )
        for offset in (5, 6, 7)
    ]
    claim = Claim(1, 0, 5, 7, 4, 1, ClaimSource.STREAM, isolation, "c", messages, order=order)
    executor = Executor(context)
    return executor, executor.begin(claim, 1, 60.0, 0), channel, witness


def fail_at_six(app: Ems) -> None:
    @app.subscribe("t", group="g")
    def handler(message: Message) -> None:
        if message.offset == 6:
            raise ValueError("six")


def test_a_failure_is_decided_and_its_neighbours_are_done() -> None:
    executor, claim_run, channel, witness = run_of(fail_at_six)
    assert executor.run(claim_run)
    flush = claim_run.finish(whole(channel))
    assert flush is not None and flush.acked_to == 7 and flush.finished
    (failure,) = flush.failures
    assert (failure.offset, failure.outcome, failure.retry_in_s) == (6, Outcome.FAILED, 5.0)
    assert witness.seen == [(5, "done", "None"), (6, "failed", "ValueError('six')"), (7, "done", "None")]


def test_a_fence_that_a_handler_has_lost_elsewhere_is_its_failure() -> None:
    """It may use a consumer of its own; the claim of the message is not lost by that."""

    def subscribe(app: Ems) -> None:
        @app.subscribe("t", group="g")
        def handler(message: Message) -> None:
            raise FenceLost("the claim of another message has another owner")

    executor, claim_run, _, witness = run_of(subscribe)
    assert executor.run(claim_run)
    assert [outcome for _, outcome, _ in witness.seen] == ["failed"] * 3


def test_a_suspect_is_written_down_before_and_after_its_run() -> None:
    executor, claim_run, channel, _ = run_of(fail_at_six, Isolation.ALONE)
    assert executor.run(claim_run)
    assert [(flush.acked_to, flush.running) for flush in channel.flushes] == [
        (4, 5),
        (5, None),
        (5, 6),
        (6, None),
        (6, 7),
        (7, None),
    ]


def test_the_gate_stays_closed_until_the_server_knows_that_a_suspect_no_longer_runs() -> None:
    executor, claim_run, channel, _ = run_of(fail_at_six, Isolation.ALONE)
    channel.fails_after = 1
    with pytest.raises(ConnectionLost):
        executor.run(claim_run)
    gate = executor._context.gate
    assert gate.closed and [flush.running for flush in channel.flushes] == [5]
    channel.fails_after = 1000
    unfinished = claim_run.unfinished()
    assert unfinished is not None and (unfinished.running, unfinished.acked_to) == (None, 5)
    gate.leave(claim_run)  # as the consumer does once that is written down
    assert not gate.closed


class Bracket(Middleware):
    @contextlib.contextmanager
    def around_run(self, run: RunBracket) -> Iterator[None]:
        yield


@pytest.mark.parametrize("middleware", [(), (Bracket(),)], ids=["plain", "bracket"])
@pytest.mark.parametrize("way", ["thread", "batch", "lane", "coroutine", "coroutine in a lane"])
def test_a_failure_frees_what_its_handler_had_in_memory(way: str, middleware: tuple[Middleware, ...]) -> None:
    """At once, not by the collector of cycles: the next message may need as much again."""
    kept: list[weakref.ref[Witness]] = []
    alive: list[bool] = []

    def fail() -> None:
        alive.extend(one() is not None for one in kept)
        large = Witness()
        kept.append(weakref.ref(large))
        raise ValueError("no")

    def subscribe(app: Ems) -> None:
        if way == "batch":

            @app.subscribe("t", group="g", batch=1)
            def batch(messages: list[Message]) -> None:
                try:
                    fail()
                except ValueError as error:
                    raise BatchFailed({messages[0].id: error}) from None

        elif "coroutine" in way:

            @app.subscribe("t", group="g")
            async def coroutine(message: Message) -> None:
                fail()

        else:

            @app.subscribe("t", group="g")
            def handler(message: Message) -> None:
                fail()

    order = Order.KEY if "lane" in way else Order.NONE
    executor, claim_run, _, _ = run_of(subscribe, Isolation.NONE, *middleware, order=order)
    gc.disable()
    try:
        assert executor.run(claim_run)
        alive.extend(one() is not None for one in kept)
    finally:
        gc.enable()
    assert len(kept) == 3 and not any(alive)


def test_a_batch_names_its_failures_or_is_run_one_by_one() -> None:
    calls: list[list[int]] = []

    def subscribe(app: Ems) -> None:
        @app.subscribe("t", group="g", batch=3)
        def handler(messages: list[Message]) -> None:
            calls.append([message.offset for message in messages])
            if len(messages) > 1:
                raise RuntimeError("too many")
            if messages[0].offset == 7:
                raise BatchFailed({messages[0].id: KeyError("seven")})

    executor, claim_run, channel, witness = run_of(subscribe)
    assert executor.run(claim_run)
    assert calls == [[5, 6, 7], [5], [6], [7]]
    flush = claim_run.finish(whole(channel))
    assert flush is not None and [failure.offset for failure in flush.failures] == [7]
    assert witness.seen[-1] == (7, "failed", "KeyError('seven')")


def transactional(app: Ems) -> None:
    @app.subscribe("t", group="g", transactional=True)
    def handler(transaction: Transaction, message: Message) -> None:
        if message.offset == 7:
            raise ValueError("seven")


def test_the_end_of_a_transactional_message_is_its_commit() -> None:
    executor, claim_run, channel, _ = run_of(transactional)
    assert executor.run(claim_run)
    assert [flush.acked_to for flush in channel.flushes] == [5, 6]
    flush = claim_run.finish(whole(channel))
    assert flush is not None and flush.acked_to == 7 and [failure.offset for failure in flush.failures] == [7]


def test_a_lost_transaction_charges_nothing_and_names_its_run() -> None:
    executor, claim_run, _, witness = run_of(transactional, Isolation.ALONE, lost=True)
    with pytest.raises(LostUnderHandler) as caught:
        executor.run(claim_run)
    run = caught.value.run
    assert run.cut and run.alone and run.server == SERVER and [message.offset for message in run.messages] == [5]
    flush = claim_run.unfinished()
    assert flush is not None and flush.acked_to == 4 and not flush.failures and not witness.seen
