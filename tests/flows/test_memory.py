"""Every word of a flow, in memory: the run's own rules, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emsworker import Ems, Ignore, Reject, Retry, Transaction
from emsworker.core.errors import ConfigError, EmsError, EncodeError, InvalidName, WrongArguments
from emsworker.flows import (
    AsyncFlow,
    CallFailed,
    Flow,
    FlowCancelled,
    FlowExists,
    FlowFailed,
    SignalTimeout,
    TooManySignals,
    UnknownFlow,
)
from emsworker.flows.errors import FlowEnded
from emsworker.flows.memory import MemoryFlowStore, store_of
from emsworker.flows.rows import WAITING, CallEnd, RunChange, StepRow
from emsworker.testing import TestApp


class Connection:
    """Counts what is committed, as a connection of PyMySQL would."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.rows: list[Any] = []

    def begin(self) -> None:
        self.open = []

    def commit(self) -> None:
        self.rows += self.open

    def rollback(self) -> None:
        self.open = []

    def cursor(self, kind: Any = None) -> Connection:
        return self

    def execute(self, statement: str, args: Any = None) -> None:
        self.open.append(args)


class Shop:
    """An app in memory, and what its functions did."""

    def __init__(self) -> None:
        self.app = Ems("shop", url="mysql://nobody@127.0.0.1:1/none")
        self.did: list[Any] = []
        self.connection = Connection()
        self.broken = True
        app = self.app

        @app.task(name="double")
        def double(n: int) -> int:
            self.did.append(("double", n))
            return n * 2

        @app.task(name="refuse", max_attempts=2, ladder="1s")
        def refuse(n: int) -> int:
            self.did.append(("refuse", n))
            if self.broken:
                raise ValueError(f"no {n}")
            return n

        @app.task(name="undo")
        def undo(what: str) -> None:
            self.did.append(("undo", what))

        self.double, self.refuse, self.undo = double, refuse, undo

    def step(self, n: Any) -> Any:
        self.did.append(("step", n))
        return n

    def fail(self) -> None:
        self.did.append("fail")
        if self.broken:
            raise KeyError("broken")

    def book(self, transaction: Transaction, n: int) -> int:
        transaction.execute("INSERT", n)
        return n

    def count(self, what: Any) -> int:
        return self.did.count(what)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def test(shop: Shop) -> Iterator[TestApp]:
    with shop.app.test(connection=shop.connection) as test:
        yield test


def kept(test: TestApp) -> MemoryFlowStore:
    return store_of(test._broker)


def test_every_word_comes_to_its_end_once(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def words(flow: Flow, n: int) -> Any:
        shop.did.append("begins")
        first = flow.step(shop.step, n)
        booked = flow.transaction(shop.book, n)
        flow.emit({"at": "booked"})
        doubled = flow.call(shop.double.s(n))
        many = flow.gather(shop.double.s(one) for one in range(3))
        assert flow.gather([]) == []
        flow.sleep("1d")
        flow.emit({"at": "slept"})
        return [first, booked, doubled, many, flow.wait_for("go"), flow.id, flow.attempt]

    handle = words.start(7, id="w")
    began = test.now
    test.run()
    assert handle.state == "waiting" and test.now - began >= timedelta(days=1)
    shop.app.signal("w", "go", ["sent"])
    test.run()
    assert handle.get(0) == [7, 7, 14, [0, 2, 4], ["sent"], "w", 1]
    assert [one for one in shop.did if one != "begins"] == [
        ("step", 7),
        ("double", 7),
        *(("double", one) for one in range(3)),
    ]
    assert shop.connection.rows == [7] and shop.did.count("begins") == 5
    assert list(handle.values()) == [{"at": "booked"}, {"at": "slept"}]
    assert not test.dead


def test_errors_of_gather_are_raised_or_returned(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def gathers(flow: Flow) -> Any:
        got = flow.gather([shop.double.s(1), shop.refuse.s(2), shop.double.s(3)], errors=True)
        try:
            flow.gather([shop.refuse.s(4), shop.double.s(5)])
        except CallFailed as error:
            return [got[0], str(got[1]), got[2], error.error_type, error.message, error.step]

    handle = gathers.start()
    test.run()
    text = "double, refuse[1] failed: ValueError: no 2"
    assert handle.get(0) == [2, text, 6, "ValueError", "no 4", "refuse, double[0]"]
    assert shop.count(("double", 5)) == 1, "the others have ended too"


@pytest.mark.parametrize("when", ["before", "in time", "too late", "never"])
def test_a_signal_before_its_wait_in_time_and_too_late(shop: Shop, test: TestApp, when: str) -> None:
    @shop.app.flow
    def waits(flow: Flow) -> Any:
        flow.sleep("10m")
        try:
            got = flow.wait_for("paid", timeout="1h")
        except SignalTimeout as error:
            got = str(error)
        flow.sleep("1d")
        return got

    handle = waits.start(id="s")
    if when == "before":
        shop.app.signal("s", "paid", 1)
    test.run_due()
    if when == "in time":
        test.advance(660)
        test.run_due()
        shop.app.signal("s", "other", "not this one")
        shop.app.signal("s", "paid", 1)
    if when == "too late":
        test.advance(660)
        test.run_due()
        test.advance(3700)
        test.run_due()
        shop.app.signal("s", "paid", 1)
    test.run()
    assert handle.get(0) == (1 if when in ("before", "in time") else "signal 'paid' did not come in time")


def test_two_signals_of_one_name_are_taken_in_order(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def waits(flow: Flow) -> Any:
        return [flow.wait_for("n"), flow.wait_for("n")]

    handle = waits.start(id="two")
    shop.app.signal("two", "n", 1)
    shop.app.signal("two", "n", 2)
    test.run()
    assert handle.get(0) == [1, 2]


def test_what_was_done_is_undone_once_and_in_reverse(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=2, ladder="1s")
    def fails(flow: Flow) -> None:
        flow.step(shop.step, 1)
        flow.undo(shop.undo.s("first"))
        flow.undo(shop.undo.s("second"))
        flow.sleep(1)
        flow.step(shop.fail)

    handle = fails.start(id="f")
    test.run()
    with pytest.raises(FlowFailed, match="flow 'f' failed: KeyError: 'broken'"):
        handle.get(0)
    assert [one for one in shop.did if one != "fail"] == [("step", 1), ("undo", "second"), ("undo", "first")]
    assert shop.count("fail") == 2, "each attempt ran the step"
    assert [dead.reason for dead in test.dead] and "flow 'f' has failed" in test.dead[0].error
    shop.broken = False
    assert not handle.retry(), "its checkpoints no longer hold"
    assert handle.state == "failed"


def test_a_call_that_ends_while_its_flow_goes_back_to_wait_for_it_is_not_missed(shop: Shop, test: TestApp) -> None:
    @shop.app.task(name="slow", max_attempts=2)
    def slow() -> None:
        if not shop.count("later"):
            shop.did.append("later")
            raise Retry(countdown=3600)

    @shop.app.flow(max_attempts=1)
    def fails(flow: Flow) -> None:
        flow.undo(slow.s())
        flow.step(shop.fail)

    handle = fails.start(id="f")
    pending = []
    test.run_due()
    store = kept(test)
    begin = store.begin

    def begin_and_end(number: int, owner: bytes, after: int | None) -> Any:
        loaded = begin(number, owner, after)
        assert loaded is not None
        pending.append([row.pending for row in loaded.steps if row.kind == "undone"])
        store.end(number, 2, CallEnd(0, b"null", None))
        return loaded

    store.begin = begin_and_end  # type: ignore[method-assign]
    shop.app.signal("f", "any", 1)  # which wakes it
    test.run_due()
    assert pending == [[1], [0]]
    assert handle.state == "failed"


def test_what_finally_asks_for_is_not_run_while_the_flow_waits(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def tidy(flow: Flow) -> Any:
        try:
            return flow.wait_for("go")
        finally:
            flow.step(shop.step, "tidied")

    @shop.app.flow
    def swallows(flow: Flow) -> Any:
        try:
            return flow.call(shop.double.s(1))
        except:  # noqa: E722
            flow.step(shop.step, "swallowed")
            return "swallowed"

    handle, other = tidy.start(id="t"), swallows.start()
    test.run()
    assert handle.state == "waiting" and not shop.count(("step", "tidied"))
    assert other.get(0) == 2 and not shop.count(("step", "swallowed"))
    shop.app.signal("t", "go", 1)
    test.run()
    assert handle.get(0) == 1 and shop.count(("step", "tidied")) == 1


def test_nothing_is_run_after_a_cancel_though_errors_are_swallowed(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def stubborn(flow: Flow) -> str:
        for number in range(3):
            try:
                flow.step(cancelling, number)
            except Exception:
                shop.did.append("swallowed")
        return "done"

    def cancelling(number: int) -> None:
        shop.did.append(("ran", number))
        shop.app.find_flow("c").cancel()

    handle = stubborn.start(id="c")
    test.run()
    assert shop.did == [("ran", 0)]
    with pytest.raises(FlowCancelled):
        handle.get(0)
    assert not handle.cancel() and not test.dead


def test_an_async_flow_that_was_cancelled_runs_nothing_more(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    async def stubborn(flow: AsyncFlow) -> str:
        async def one(number: int) -> None:
            await flow.step(cancelling, number)

        await asyncio.gather(*(one(number) for number in range(2)), return_exceptions=True)
        await flow.step(cancelling, 9)
        return "done"

    def cancelling(number: int) -> None:
        shop.did.append(("ran", number))
        shop.app.find_flow("c").cancel()

    handle = stubborn.start(id="c")
    test.run()
    assert shop.did == [("ran", 0)] and handle.state == "cancelled"


def test_async_flows_side_by_side(shop: Shop, test: TestApp) -> None:
    async def coroutine(n: int) -> int:
        shop.did.append(("coroutine", n))
        return n + 100

    @shop.app.flow
    async def side(flow: AsyncFlow, count: int) -> Any:
        async def one(n: int) -> Any:
            first = await flow.call(shop.double.s(n))
            await flow.sleep(n)
            return [first, await flow.step(coroutine, n), await flow.step(shop.step, n)]

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(n)) for n in range(count)]
            waits = group.create_task(flow.wait_for("go", timeout="1h"))
        booked = await flow.transaction(shop.book, 5)
        await flow.emit("end")
        many = await flow.gather([shop.double.s(n) for n in range(2)])
        return [[task.result() for task in tasks], waits.result(), booked, many]

    handle = side.start(3, id="side")
    test.run_due()
    shop.app.signal("side", "go", "gone")
    test.run()
    expected = [[[2 * n, n + 100, n] for n in range(3)], "gone", 5, [0, 2]]
    assert handle.get(0) == expected
    assert sorted(one for one in shop.did if one[0] == "coroutine") == [("coroutine", n) for n in range(3)]
    assert shop.connection.rows == [5] and list(handle.values()) == ["end"]


def test_children_fail_and_are_cancelled(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=1)
    def child(flow: Flow, n: int) -> Any:
        if n < 0:
            raise RuntimeError("a child")
        return flow.wait_for("go")

    @shop.app.flow
    def parent(flow: Flow) -> Any:
        got = flow.gather([child.s(-1), child.s(1)], errors=True)
        return [str(one) for one in got]

    handle = parent.start(id="p")
    test.run()
    assert handle.state == "waiting" and shop.app.find_flow("p/1.1").state == "waiting"
    shop.app.find_flow("p/1.1").cancel()
    test.run()
    first, second = handle.get(0)
    assert first.endswith("failed: RuntimeError: a child") and "FlowCancelled: flow 'p/1.1' was cancelled" in second

    second_parent = parent.start(id="q")
    test.run()
    assert second_parent.cancel()
    assert shop.app.find_flow("q/1.1").state == "cancelled"
    assert second_parent.retry(), "with a new child, for that one was cancelled"
    test.run()
    shop.app.signal("q/2.1", "go", "on")
    test.run()
    assert second_parent.get(0)[1] == "on"


def test_a_flow_that_has_failed_is_retried_from_its_failed_step(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=1)
    def fails(flow: Flow, at: str) -> Any:
        flow.step(shop.step, 1)
        flow.call(shop.double.s(1))
        if at == "call":
            return flow.call(shop.refuse.s(3))
        flow.step(shop.fail)
        return "well"

    call, step = fails.start("call", id="c"), fails.start("step", id="s")
    test.run()
    assert (call.state, step.state) == ("failed", "failed")
    shop.broken = False
    assert call.retry() and step.retry() and not step.retry()
    test.run()
    assert (call.get(0), step.get(0)) == (3, "well")
    assert shop.count(("step", 1)) == 2 and shop.count(("double", 1)) == 2, "once for each flow"


def test_a_flow_that_is_run_again_keeps_what_its_calls_have_returned(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=1)
    def child(flow: Flow) -> Any:
        flow.step(shop.step, "child")
        return flow.gather([shop.double.s(1), shop.refuse.s(2)])

    @shop.app.flow(max_attempts=1)
    def parent(flow: Flow) -> Any:
        return flow.gather([shop.refuse.s(3), child.s(), shop.double.s(4)])

    handle = parent.start(id="p")
    test.run()
    assert handle.state == "failed" and len(test.dead) == 4, "two calls and two flows"
    shop.broken = False
    assert shop.app.find_flow("p/1.1").retry(), "with the one that has called it"
    test.run()
    assert handle.get(0) == [3, [2, 2], 8]
    assert [shop.count(one) for one in (("step", "child"), ("double", 1), ("double", 4))] == [1, 1, 1]


def test_numbers_of_steps_are_not_used_again_by_a_second_retry(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=1)
    def fails(flow: Flow) -> Any:
        flow.step(shop.step, 1)
        if shop.did[-1] == "broken before the call":
            raise RuntimeError
        return flow.call(shop.refuse.s(1))

    handle = fails.start()
    test.run()
    shop.did.append("broken before the call")
    assert handle.retry(2)
    test.run()
    shop.did.append("mended")
    shop.broken = False
    assert handle.retry()
    test.run()
    assert handle.get(0) == 1
    steps = kept(test).steps_of(kept(test).find(handle.id))  # type: ignore[arg-type]
    assert [row.number for row in steps] == [1, 3], (
        "a call with the number of an earlier one has its uid: it is not sent"
    )


def test_a_deadline_ends_a_flow_that_waits(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def waits(flow: Flow) -> Any:
        flow.undo(shop.undo.s("it"))
        return flow.wait_for("go")

    handle = waits.start(id="d", timeout="1h")
    test.run_due()
    assert handle.state == "waiting"
    test.advance(3601)
    test.run_due()
    with pytest.raises(FlowFailed, match="FlowTimeout: flow 'd' was not done before"):
        handle.get(0)
    assert shop.did == [("undo", "it")]


def test_a_flow_with_an_id_is_started_once(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def one(flow: Flow, n: int) -> int:
        return flow.step(shop.step, n)

    @shop.app.flow
    def other(flow: Flow, n: int) -> int:
        return n

    assert one.start(1, id="x").created
    assert not one.start(1, id="x").created
    with pytest.raises(FlowExists, match="other arguments"):
        one.start(2, id="x")
    with pytest.raises(FlowExists, match="not of"):
        other.start(1, id="x")
    test.run()
    assert not one.start(1, id="x").created, "also when it has ended"
    test.run()
    assert shop.did == [("step", 1)]


def test_a_start_that_is_rolled_back_leaves_nothing(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def one(flow: Flow, n: int) -> int:
        return flow.step(shop.step, n)

    with pytest.raises(ZeroDivisionError), shop.app.transaction() as transaction:
        one.start(1, id="x", transaction=transaction)
        raise ZeroDivisionError
    test.run()
    assert not shop.did
    with pytest.raises(UnknownFlow):
        _ = shop.app.find_flow("x").state
    handle = one.start(1, id="x")
    assert handle.created
    test.run()
    assert handle.get(0) == 1


def _rename(shop: Shop, task: Any, function: Any) -> None:
    task._functions = {task.version: function}


@pytest.mark.parametrize("change", ["another name", "another kind", "left out", "more calls", "put before"])
def test_code_that_has_changed_stops_and_can_be_mended(shop: Shop, test: TestApp, change: str) -> None:
    def before(flow: Flow) -> Any:
        flow.undo(shop.undo.s("it"))
        flow.step(shop.step, 1)
        flow.gather([shop.double.s(1), shop.double.s(2)])
        flow.sleep("1h")
        return "well"

    def after(flow: Flow) -> Any:
        flow.undo(shop.undo.s("it"))
        if change == "put before":
            flow.step(shop.fail)
        if change == "another name":
            flow.step(shop.fail)
        elif change == "another kind":
            flow.transaction(shop.book, 1)
        elif change != "left out":
            flow.step(shop.step, 1)
        flow.gather([shop.double.s(n) for n in range(3 if change == "more calls" else 2)])
        flow.sleep("1h")
        return "wrong"

    task = shop.app.flow(before)
    handle = task.start(id="changed")
    test.run_due()
    _rename(shop, task, after)
    test.run()
    with pytest.raises(FlowFailed) as failed:
        handle.get(0)
    assert failed.value.error_type == "FlowChanged"
    named = {"left out": ["gather 'double'", "'step' (step 2)"], "more calls": ["3 calls", "2 were recorded (step 3)"]}
    names = named.get(change, ["transaction 'book'" if change == "another kind" else "step 'fail'", "'step' (step 2)"])
    assert all(name in failed.value.message for name in names), failed.value.message
    assert "fail" not in shop.did and ("undo", "it") not in shop.did and not shop.connection.rows
    _rename(shop, task, before)
    assert handle.retry()
    test.run()
    assert handle.get(0) == "well" and shop.count(("step", 1)) == 1


def test_an_async_flow_that_no_longer_asks_for_a_step_stops_before_it_waits(shop: Shop, test: TestApp) -> None:
    async def before(flow: AsyncFlow) -> Any:
        await flow.step(shop.step, 1)
        await flow.sleep(1)
        return await flow.wait_for("go")

    async def after(flow: AsyncFlow) -> Any:
        await flow.sleep(1)
        return await flow.wait_for("go")

    task = shop.app.flow(before)
    handle = task.start(id="changed")
    test.run_due()
    _rename(shop, task, after)
    test.run()
    with pytest.raises(FlowFailed, match=r"FlowChanged.*nothing more where step"):
        handle.get(0)


def test_patched_guards_a_step_for_flows_that_are_new(shop: Shop, test: TestApp) -> None:
    def before(flow: Flow) -> Any:
        flow.step(shop.step, 1)
        flow.sleep("1h")
        return ["old"]

    def after(flow: Flow) -> Any:
        done = []
        if flow.patched("first"):
            done.append(flow.step(shop.step, "first"))
        flow.step(shop.step, 1)
        flow.sleep("1h")
        if flow.patched("second"):
            done.append(flow.step(shop.step, "second"))
        return done

    task = shop.app.flow(before)
    old = task.start()
    test.run_due()
    _rename(shop, task, after)
    new = task.start()
    test.run()
    assert (old.get(0), new.get(0)) == (["second"], ["first", "second"])


def test_versions_run_with_their_own_code(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(name="versions")
    def first(flow: Flow) -> int:
        flow.sleep("1h")
        return 1

    old = first.start(id="old")
    test.run_due()

    @shop.app.flow(name="versions", version=2)
    def second(flow: Flow) -> int:
        flow.sleep("1h")
        return flow.step(shop.step, 2)

    assert second is first
    new = second.start(id="new")
    test.run()
    assert (old.get(0), new.get(0)) == (1, 2)
    with pytest.raises(ConfigError, match="version 2 of it is declared already"):
        shop.app.flow(name="versions", version=2)(lambda flow: None)
    for version in (0, 1 << 32, "3"):
        with pytest.raises(ConfigError, match="whole number from 1"):
            shop.app.flow(name="versions", version=version)(lambda flow: None)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="async def"):

        @shop.app.flow(name="versions", version=3)
        async def third(flow: AsyncFlow) -> None: ...


def test_a_worker_that_does_not_know_the_version_leaves_the_flow_to_others(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(name="versions", version=2)
    def second(flow: Flow) -> int:
        return flow.step(shop.step, 2)

    handle = second.start(id="new")
    functions, second._functions = second._functions, {1: lambda flow: 1}
    for _ in range(3):
        test.advance(6)
        test.run_due()
    assert handle.state == "waiting" and kept(test).find("new").waits == "a worker with version 2"  # type: ignore[union-attr]
    second._functions = functions
    test.run()
    assert handle.get(0) == 2 and not test.dead


def test_steps_within_a_step_and_outside_of_a_run_are_refused(shop: Shop, test: TestApp) -> None:
    flows: list[Flow] = []

    @shop.app.flow
    def nested(flow: Flow) -> Any:
        flows.append(flow)
        return flow.step(lambda: flow.step(shop.step, 1))

    @shop.app.flow
    def called(flow: Flow) -> Any:
        return flow.transaction(lambda transaction: flow.call(shop.double.s(1)))

    handles = nested.start(), called.start()
    test.run_due()  # no other attempt is due later: this cannot come right
    for handle in handles:
        with pytest.raises(FlowFailed, match="is asked for inside of step"):
            handle.get(0)
    with pytest.raises(EmsError, match="outside of the run"):
        flows[0].step(shop.step, 1)
    assert not shop.did


@pytest.mark.parametrize("where", ["step", "transaction", "emit", "result", "large", "large call"])
def test_results_that_cannot_be_kept(shop: Shop, test: TestApp, where: str) -> None:
    @shop.app.task(name="large")
    def large() -> str:
        return "x" * (1 << 20)

    @shop.app.flow(max_attempts=3)
    def keeps(flow: Flow) -> Any:
        shop.did.append("begins")
        if where == "step":
            flow.step(object)
        if where == "transaction":
            flow.transaction(lambda transaction: (shop.book(transaction, 1), object())[1])
        if where == "emit":
            flow.emit(object())
        if where == "large":
            flow.step(lambda: "x" * (1 << 20))
        if where == "large call":
            flow.call(large.s())
        return object()

    handle = keeps.start()
    test.run()
    with pytest.raises(FlowFailed, match=r"cannot be kept|over the limit of") as failed:
        handle.get(0)
    assert failed.value.error_type == ("CallFailed" if where == "large call" else "EncodeError")
    assert not shop.connection.rows and shop.count("begins") == (2 if where == "large call" else 1)


def test_what_cannot_be_started_is_refused_and_leaves_nothing(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def one(flow: Flow, n: int) -> int:
        return n

    with pytest.raises(WrongArguments, match="nothing was sent"):
        one.start()  # type: ignore[call-arg]
    with pytest.raises(EncodeError, match="cannot be kept"):
        one.start(object())
    with pytest.raises(InvalidName, match="1 to 190 characters"):
        one.start(1, id="x" * 191)
    with pytest.raises(InvalidName):
        one.start(1, id="")
    with pytest.raises(InvalidName):
        one.start(1, attributes={"customer": "x" * 191})
    with pytest.raises(ConfigError, match="timeout"):
        one.start(1, timeout="soon")
    assert not test.sent and not kept(test)._flows


def test_how_a_flow_is_declared_and_started_is_checked(shop: Shop, test: TestApp) -> None:
    with pytest.raises(ConfigError, match="the first one is the flow"):

        @shop.app.flow
        def empty() -> None: ...

    @shop.app.flow(requires="gpu")
    def nothing(flow: Flow) -> None: ...

    assert nothing.group == "workers-gpu"
    with pytest.raises(WrongArguments, match="attributes = "):
        nothing.start(attributes=["a"])


def test_wrong_uses_in_a_flow_are_told(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=5)
    def wrong(flow: Flow, what: str) -> Any:
        async def coroutine() -> None: ...

        if what == "no signature":
            flow.call(shop.double(1))  # type: ignore[arg-type]
        if what == "no function":
            flow.step(3)  # type: ignore[arg-type]
        if what == "coroutine":
            flow.step(coroutine)
        if what == "arguments":
            flow.call(shop.double.s(1, 2))  # type: ignore[call-arg]
        if what == "name":
            flow.wait_for("x" * 191)
        if what == "time":
            flow.sleep("soon")

    texts = {
        "no signature": "is no call of a task",
        "no function": "give it a function",
        "coroutine": "only an async def flow",
        "arguments": "cannot be called with these arguments",
        "name": "at most 190 characters",
        "time": "soon",
    }
    for what, text in texts.items():
        handle = wrong.start(what)
        test.run()
        with pytest.raises(FlowFailed, match=text):
            handle.get(0)
    assert len(test.dead) == len(texts)


def test_signals_that_nobody_can_take_are_refused(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def one(flow: Flow) -> int:
        return 1

    with pytest.raises(UnknownFlow, match="there is no flow 'none'"):
        shop.app.signal("none", "go")
    with pytest.raises(UnknownFlow):
        shop.app.find_flow("none").cancel()
    one.start(id="x")
    for use in (lambda: shop.app.signal(5, "go"), lambda: shop.app.find_flow(5)):  # type: ignore[arg-type]
        with pytest.raises(InvalidName, match="flow id 5: it must be a text"):
            use()
    with pytest.raises(InvalidName, match="1 to 190"):
        shop.app.signal("x", "n" * 191)
    with pytest.raises(EncodeError):
        shop.app.signal("x", "go", object())
    test.run()
    with pytest.raises(FlowEnded, match=r"has ended \(done\)"):
        shop.app.signal("x", "go")


def test_a_flow_has_room_for_a_number_of_signals(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def one(flow: Flow) -> Any:
        return flow.wait_for("go")

    handle = one.start(id="x")
    for _ in range(16):
        shop.app.signal("x", "other", "y" * ((1 << 20) - 2))
    with pytest.raises(TooManySignals, match="16777216 bytes"):
        shop.app.signal("x", "go", 1)
    one.start(id="many")
    for n in range(1000):
        shop.app.signal("many", "other", n)
    with pytest.raises(TooManySignals, match="not taken 1000 signals"):
        shop.app.signal("many", "go", 1)
    test.run()
    assert handle.state == "waiting"


def test_the_dead_letter_of_a_flow_that_was_undone_says_that_it_is_over(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=1)
    def undone(flow: Flow) -> None:
        flow.undo(shop.undo.s("it"))
        raise ValueError("no")

    @shop.app.flow(max_attempts=1)
    def failed(flow: Flow) -> None:
        raise ValueError("no")

    for function, hint in (
        (undone, "its steps were undone, so it is over"),
        (failed, "`ems flows retry` runs it again"),
    ):
        handle = function.start()
        test.run()
        assert handle.state == "failed" and hint in str(test.dead[-1].error)


def test_a_plain_call_of_a_flow_starts_it(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def one(flow: Flow, n: int) -> int:
        return flow.step(shop.step, n)

    receipt = one.delay(3)
    test.run()
    assert shop.app.find_flow(receipt.id).get(0) == 3
    with pytest.raises(WrongArguments):
        one.delay()  # type: ignore[call-arg]


def test_a_failure_that_the_flow_goes_on_after_is_raised_by_later_runs_too(shop: Shop, test: TestApp) -> None:
    def group() -> None:
        raise ExceptionGroup("both", [ValueError("one")])

    @shop.app.flow(max_attempts=1)
    def goes_on(flow: Flow) -> Any:
        got = []
        for function in (shop.fail, group):
            try:
                flow.step(function)
            except Exception as error:
                got.append(str(error).split(":")[0])
        try:
            flow.transaction(failing)
        except ValueError as error:
            got.append(str(error))
        flow.sleep("1h")
        return got

    def failing(transaction: Transaction) -> None:
        shop.book(transaction, 1)
        raise ValueError("of mine")

    handle = goes_on.start()
    test.run()
    got = handle.get(0)
    assert "broken" in got[0] and got[2] == "of mine", got
    assert not shop.connection.rows and shop.count("fail") == 1


def test_attempts_run_a_step_again_and_keep_those_before(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=3, ladder="1s")
    def tries(flow: Flow) -> Any:
        flow.step(shop.step, 1)
        if flow.attempt < 3:
            flow.step(shop.fail)
        return flow.attempt

    handle = tries.start()
    test.run()
    assert handle.get(0) == 3 and shop.count(("step", 1)) == 1 and shop.count("fail") == 2


def test_a_call_that_is_given_up_is_told_to_its_flow(shop: Shop, test: TestApp) -> None:
    @shop.app.task(name="ignored")
    def ignored() -> None:
        raise Ignore("not needed")

    @shop.app.task(name="rejected")
    def rejected() -> None:
        raise Reject("not possible")

    @shop.app.flow
    def calls(flow: Flow) -> Any:
        late = shop.double.s(1).set(countdown=60, expires=1)
        got = flow.gather([ignored.s(), rejected.s(), late], errors=True)
        return [getattr(one, "error_type", one) for one in got]

    handle = calls.start()
    test.run()
    assert handle.get(0) == ["Ignore", "Reject", "Expired"]


def test_a_call_that_undoes_keeps_its_options(shop: Shop, test: TestApp) -> None:
    @shop.app.flow(max_attempts=1)
    def fails(flow: Flow) -> None:
        flow.undo(shop.undo.s("it").set(key="k", priority=3))
        flow.step(shop.fail)

    fails.start()
    test.run()
    (sent,) = [message for message in test.sent if message.body == [["it"], {}]]
    assert sent.key == "k" and sent.priority == 3


def test_a_flow_that_ignores_its_message_ends(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    def ignores(flow: Flow) -> None:
        raise Ignore("not needed")

    handle = ignores.start()
    test.run()
    with pytest.raises(FlowFailed, match="Ignore: not needed"):
        handle.get(0)
    with pytest.raises(ConfigError, match="a flow has no such option"):
        shop.app.flow(on_error="ignore")(lambda flow: None)


def test_a_flow_that_a_schedule_has_started_knows_its_slot() -> None:
    app = Ems("slots")
    seen: list[Any] = []

    @app.flow(name="nightly")
    def nightly(flow: Flow) -> None:
        seen.append(flow.slot)
        flow.sleep(1)
        seen.append(flow.slot)

    slot = datetime(2026, 1, 2, 3, tzinfo=UTC)
    with app.test() as test:
        headers = {"ems-task": "nightly", "ems-group": nightly.group, "ems-slot": slot.isoformat()}
        app.publisher.send(nightly.topic, [[], {}], headers=headers)
        test.run()
        nightly.start()
        test.run()
    assert seen == [slot, slot, slot, None, None, None]


def test_a_time_that_comes_during_a_run_is_not_missed(shop: Shop, test: TestApp) -> None:
    @shop.app.flow
    async def sleeping(flow: AsyncFlow) -> None:
        await flow.sleep(1)

    sleeping.start(id="s")
    store = kept(test)
    loaded = store.begin(1, b"o" * 16)
    assert loaded is not None
    due_at = shop.app.server_time(1)
    store.write(loaded.flow, RunChange([StepRow(1, "sleep", "sleep", is_ended=False, due_at=due_at)]))
    test._broker.advance(2)
    assert store.begin(1, b"t" * 16) is None, "its message is passed over: a run is under way"
    change = RunChange(state=WAITING, waits="sleep", since=loaded.now)
    assert not store.write(loaded.flow, change)
    again = store.begin(1, b"o" * 16)
    assert again is not None and again.now >= due_at
    assert store.write(again.flow, RunChange(state=WAITING, waits="sleep", since=again.now)), "it has seen the time"
