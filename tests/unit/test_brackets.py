"""Brackets of middleware: whatever happens to a send or a run, each is closed once, and knows how it ended before."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emsworker import BatchFailed, Ems, EncodeError, FenceLost, Ignore, Message, Middleware, Outgoing, Reject
from emsworker.broker.channel import TransactionLost
from emsworker.consume.context import RunContext, RunHooks
from emsworker.consume.executor import Executor
from emsworker.consume.losses import LostUnderHandler
from emsworker.consume.result_writer import ResultWriter
from emsworker.core.codec import Decoder
from emsworker.core.errors import ConfigError
from emsworker.core.ladder import Ladder
from emsworker.core.model import Claim, ClaimSource, Isolation, Order
from emsworker.publish.transaction import Transaction
from emsworker.tasks.middleware import PublishBracket, RunBracket
from emsworker.worker.stop_hooks import StopHooks
from tests.support.waiting import until


class Brackets(Middleware):
    """Keeps what is opened and closed, and where."""

    def __init__(self) -> None:
        self.open: list[list[int]] = []
        self.closed: list[tuple[list[int], list[str], str]] = []
        self.sent: list[tuple[str, int, bool, bool, int, str]] = []

    @contextlib.contextmanager
    def around_run(self, run: RunBracket) -> Iterator[None]:
        offsets, thread, raised = [message.offset for message in run.messages], threading.get_ident(), ""
        self.open.append(offsets)
        try:
            yield
        except BaseException as error:
            raised = repr(error)
            raise
        finally:
            assert threading.get_ident() == thread
            assert [end.message.offset for end in run.ends] == offsets
            self.open.remove(offsets)
            self.closed.append((offsets, [end.outcome.value for end in run.ends], raised))

    @contextlib.contextmanager
    def around_publish(self, publish: PublishBracket) -> Iterator[None]:
        raised = ""
        try:
            yield
        except Exception as error:
            raised = type(error).__name__
            raise
        finally:
            facts = publish.topic, len(publish.messages), publish.many, publish.transactional
            self.sent.append((*facts, len(publish.receipts), raised))


class Channel:
    """A channel that loses what it is told to lose."""

    def __init__(self, *, fence: bool = False, connection: bool = False) -> None:
        self.fence, self.connection = fence, connection

    def flush(self, flush: Any) -> None:
        if self.fence:
            raise FenceLost("another owner")

    def server_run(self) -> Any:
        return None

    def transact(self, call: Any, commit: Any, is_cut_short: Any) -> Any:
        returned = call(Transaction(None))
        if self.connection:
            raise TransactionLost(cut=True) from ConnectionError("gone")
        commit(returned, self.flush)
        return returned


def run_of(
    declare: Callable[[Ems], object],
    channel: Channel | None = None,
    *middleware: Middleware,
    order: Order = Order.NONE,
    isolation: Isolation = Isolation.NONE,
) -> Brackets:
    """Run a claim of three messages, with offsets from 5 on, and check that everything was closed."""
    app, seen, whole = Ems("shop", url="mysql://u:p@localhost/shop"), Brackets(), channel or Channel()
    declare(app)
    (route,) = app.registry.routes.values()
    there: Any = whole
    hooks = RunHooks.of([seen, *middleware])
    context = RunContext(route, Ladder.parse("5", 3, 0.0), there, ResultWriter(60.0), hooks, lanes=3)
    messages = [
        Message("t", 0, (n, bytes([n]) * 16, b"k%d" % (n % 2), None, b"", b"1", "2026-01-01"), Decoder(("json",)))
        for n in (5, 6, 7)
    ]
    claim = Claim(1, 0, 5, 7, 4, 1, ClaimSource.STREAM, isolation, "c", messages, order=order, taken_at="2026-01-01")
    executor = Executor(context)
    try:
        executor.run(executor.begin(claim, 1, 60.0, 0))
    finally:
        assert seen.open == []
    return seen


def plain(app: Ems) -> None:
    @app.subscribe("t", group="g", max_attempts=2)
    def handler(message: Message) -> None:
        raise_for(message.offset)


def raise_for(offset: int) -> None:
    if offset == 5:
        raise ValueError("five")
    if offset == 6:
        raise Ignore
    raise Reject("seven")


def test_a_bracket_knows_how_its_run_ended_and_the_error_passes_through_it() -> None:
    seen = run_of(plain)
    assert seen.closed == [
        ([5], ["retry"], "ValueError('five')"),
        ([6], ["ignored"], "Ignore()"),
        ([7], ["dead"], "Reject('seven')"),
    ]


def test_coroutines_and_lanes_have_a_bracket_for_each_message() -> None:
    def coroutines(app: Ems) -> None:
        @app.subscribe("t", group="g")
        async def handler(message: Message) -> None:
            await asyncio.sleep(0)
            raise_for(message.offset)

    def lanes(app: Ems) -> None:
        plain(app)

    expected = [([5], ["retry"]), ([6], ["ignored"]), ([7], ["dead"])]
    assert sorted(one[:2] for one in run_of(coroutines).closed) == expected
    assert sorted(one[:2] for one in run_of(lanes, order=Order.KEY).closed)[:2] == expected[:2]
    assert sorted(one[:2] for one in run_of(coroutines, order=Order.KEY).closed)[:2] == expected[:2]


def test_a_batch_that_fails_is_given_back_and_each_message_has_a_bracket_of_its_own() -> None:
    def batch(app: Ems) -> None:
        @app.subscribe("t", group="g", batch=3)
        def handler(messages: list[Message]) -> None:
            if len(messages) > 1:
                raise RuntimeError("too many")
            if messages[0].offset == 7:
                raise BatchFailed({messages[0].id: KeyError("seven")})

    assert run_of(batch).closed == [
        ([5, 6, 7], ["given_back"] * 3, "RuntimeError('too many')"),
        ([5], ["done"], ""),
        ([6], ["done"], ""),
        ([7], ["retry"], "KeyError('seven')"),
    ]


def transactional(app: Ems) -> None:
    @app.subscribe("t", group="g", transactional=True)
    def handler(transaction: Transaction, message: Message) -> None:
        pass


def test_a_run_whose_fence_or_connection_is_lost_is_lost() -> None:
    assert run_of(transactional).closed == [([n], ["done"], "") for n in (5, 6, 7)]
    for channel, error in (Channel(fence=True), FenceLost), (Channel(connection=True), LostUnderHandler):
        lost: list[Any] = []

        class Keep(Brackets):
            def around_run(self, run: RunBracket) -> Any:
                lost.append(run)  # noqa: B023 - used within the loop
                return super().around_run(run)

        with pytest.raises(error):
            run_of(transactional, channel, Keep())
        assert [end.outcome.value for end in lost[0].ends] == ["lost"]


def test_what_ends_after_its_claim_was_lost_is_lost_too() -> None:
    runs: list[RunBracket] = []

    class Thief(Middleware):
        @contextlib.contextmanager
        def around_run(self, run: RunBracket) -> Iterator[None]:
            runs.append(run)
            yield

    def stolen(app: Ems) -> None:
        @app.subscribe("t", group="g")
        def handler(message: Message) -> None:
            message.run._claim_run.progress.close()  # type: ignore[attr-defined]

    run_of(stolen, None, Thief())
    assert [end.outcome.value for end in runs[0].ends] == ["lost"] and len(runs) == 1


class Bad(Middleware):
    def __init__(self, opens: bool) -> None:
        self.opens = opens

    @contextlib.contextmanager
    def around_run(self, run: RunBracket) -> Iterator[None]:
        if not self.opens:
            raise OSError("cannot open")
        with contextlib.suppress(BaseException):  # it cannot suppress an error
            yield
        raise OSError("cannot close")


def test_an_error_at_the_start_of_a_bracket_is_one_of_the_run_and_one_at_its_end_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert [one[1:] for one in run_of(plain, None, Bad(opens=False)).closed] == [
        (["retry"], "OSError('cannot open')")
    ] * 3
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        assert [one[1] for one in run_of(plain, None, Bad(opens=True)).closed] == [["retry"], ["ignored"], ["dead"]]
    assert caplog.text.count("cannot close") >= 3


def test_a_send_has_a_bracket_however_it_ends() -> None:
    seen = Brackets()
    app = Ems("shop")
    app.add_middleware(seen)
    with app.test():
        app.send("t", 1)
        app.send_many("t", [1, 2])
        with pytest.raises(EncodeError):
            app.send("t", object())
        with app.transaction() as tx:
            tx.send("t", 1)
        app.publisher.publish("t", [Outgoing("t", 1)], many=True)
        asyncio.run(app.asend("t", 1))
    assert seen.sent == [
        ("t", 1, False, False, 1, ""),
        ("t", 2, True, False, 2, ""),
        ("t", 1, False, False, 0, "EncodeError"),
        ("t", 1, False, True, 1, ""),
        ("t", 1, True, False, 1, ""),
        ("t", 1, False, False, 1, ""),
    ]
    with pytest.raises(ConfigError, match="middleware"):
        app.add_middleware(Brackets)  # type: ignore[arg-type]


class Interrupted(Middleware):
    """Ctrl-C arrives while a bracket is closed, and hooks fail."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @contextlib.contextmanager
    def around_publish(self, publish: PublishBracket) -> Iterator[None]:
        yield
        raise self.error

    def after_publish(self, outgoing: Outgoing, receipt: Any) -> None:
        raise ValueError("a hook of no use")


def test_what_was_sent_is_sent_whatever_hooks_do_and_an_interrupt_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    seen = Brackets()
    app = Ems("shop", middleware=[seen, Interrupted(OSError("cannot close"))])
    with app.test():
        assert app.send("t", 1).offset == 1
    assert "a hook failed after a message was sent to t" in caplog.text
    assert "the end of Interrupted.around_publish of the middleware failed" in caplog.text
    app = Ems("shop", middleware=[seen, Interrupted(KeyboardInterrupt())])
    with app.test(), pytest.raises(KeyboardInterrupt):
        app.send("t", 1)
    assert seen.sent == [("t", 1, False, False, 1, "")] * 2, "the other bracket is closed as the send ended"


def test_a_bracket_that_is_no_context_manager_is_named() -> None:
    class Forgotten(Middleware):
        def around_run(self, run: RunBracket) -> Any:
            yield

    class Nothing(Middleware):
        def around_publish(self, publish: PublishBracket) -> Any:
            return None

    with pytest.raises(ConfigError, match=r"Forgotten.around_run: is a generator: put @contextmanager on it"):
        Ems("shop", middleware=[Forgotten()])
    app = Ems("shop", middleware=[Nothing()])
    with app.test(), pytest.raises(ConfigError, match=r"Nothing.around_publish: must return a context manager"):
        app.send("t", 1)


def test_no_hook_of_the_end_of_a_process_holds_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    forever, called = threading.Event(), []

    class Slow(Middleware):
        def on_process_stop(self) -> None:
            forever.wait()

    class Fails(Middleware):
        def on_process_stop(self) -> None:
            raise RuntimeError("no")

    class Quick(Middleware):
        def on_process_stop(self) -> None:
            called.append(1)

    StopHooks([Slow(), Fails(), Quick()], 0.2).call()
    assert "Slow.on_process_stop has not returned after 0.2 s" in caplog.text
    until(lambda: called == [1] and "Fails.on_process_stop failed" in caplog.text, 60, "the others were called")
    forever.set()
