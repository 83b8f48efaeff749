"""An app in memory."""

from datetime import timedelta
from typing import Any

import pytest

from emsworker import (
    BatchFailed,
    Cancelled,
    Ems,
    Filter,
    Ignore,
    Message,
    Middleware,
    Reject,
    ResultTimeout,
    Retry,
    TaskFailed,
)
from emsworker.core.errors import ConfigError, EmsError, InvalidName, MessageTooLarge, UnknownMessage
from emsworker.publish.outgoing import Outgoing


@pytest.fixture
def app() -> Ems:
    return Ems("memory", url="mysql://nobody@127.0.0.1:1/none", publish_timeout_s=0.3)


def test_a_task_runs_when_told_and_has_a_result(app: Ems) -> None:
    ran: list[int] = []

    @app.task(result=True)
    def add(x: int, y: int) -> int:
        ran.append(x)
        return x + y

    with app.test() as test:
        receipt = add.delay(2, y=3)
        assert ran == []
        with pytest.raises(ResultTimeout):
            app.result(receipt).get()
        assert test.run() == 1
        assert app.result(receipt.id).get() == 5 and ran == [2]
        assert app.results([receipt]).get(timeout=10) == [5]
        assert [message.body for message in test.sent] == [[[2], {"y": 3}]]
        app.result(receipt).forget()
        assert app.result(receipt).status == "pending"
    with pytest.raises(EmsError):
        add.delay(1, 1)


def test_the_keys_of_a_fair_group_are_run_in_rotation(app: Ems) -> None:
    ran: list[str] = []

    @app.task(fair="tenant")
    def serve(tenant: str, number: int) -> None:
        ran.append(f"{tenant}{number}")

    with app.test() as test:
        serve.delay_many([("large", number) for number in range(4)])
        serve.delay_many([("small", 0), ("small", 1), ("other", 0)])
        assert test.run() == 7
        assert ran == ["large0", "small0", "other0", "large1", "small1", "large2", "large3"]


def test_retries_go_up_the_ladder_without_waiting_and_end_dead(app: Ems) -> None:
    attempts: list[Any] = []

    @app.task(bind=True, max_attempts=3, ladder="1h 2h", result=True)
    def stubborn(self: Any) -> None:
        attempts.append((self.request.attempt, test.now))
        raise ValueError("no")

    with app.test() as test:
        result = app.result(stubborn.delay())
        assert test.run_due() == 1 and test.run_due() == 0
        test.advance(2 * 3600)
        assert test.run_due() == 1
        test.run()
        assert [attempt for attempt, _ in attempts] == [1, 2, 3]
        assert attempts[2][1] - attempts[1][1] >= timedelta(hours=2)
        (dead,) = test.dead
        assert (dead.group, dead.attempt, dead.reason) == ("workers", 3, "used up its 3 attempts")
        assert "ValueError: no" in dead.error
        with pytest.raises(TaskFailed, match="ValueError: no"):
            result.get()


def test_handlers_steer_as_they_do_in_a_worker(app: Ems) -> None:
    seen: list[Any] = []

    @app.subscribe("acts", "g", ladder="10s")
    def act(message: Message) -> None:
        seen.append((message.body, message.attempt))
        errors: dict[Any, Exception] = {1: Reject("bad"), 2: Ignore(), 3: Retry("later", countdown=5)}
        if message.attempt == 1 and message.body in errors:
            raise errors[message.body]

    with app.test() as test:
        app.send_many("acts", [0, 1, 2, 3])
        test.run()
        assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2)]
        assert [(dead.message.body, dead.reason) for dead in test.dead] == [(1, "bad")]


def test_batches_groups_delays_expiry_uids_and_hooks(app: Ems) -> None:
    events: list[Any] = []

    class Hooks(Middleware):
        def after_run(self, message: Message, group: str, outcome: Any, error: Any, ran_s: float) -> None:
            events.append((group, str(outcome)))

    app.middleware = (Hooks(),)

    @app.subscribe("readings", "store", batch=10, ladder="1s")
    def store(messages: list[Message]) -> None:
        if bad := {m.id: "bad" for m in messages if m.body == 2 and m.attempt == 1}:
            raise BatchFailed(bad)

    @app.subscribe("readings", "count")
    def count(message: Message) -> None:
        events.append(message.body)

    @app.task
    def note(text: str) -> None:
        events.append(text)
        if text == "chain":
            note.delay("link")

    with app.test() as test:
        app.send_many("readings", [1, 2])
        test.run()
        assert sorted(map(str, events)) == sorted(
            ["('store', 'done')", "('store', 'failed')", "('store', 'done')", "1", "2", *["('count', 'done')"] * 2]
        )
        events.clear()
        note.apply_async(["late"], countdown=60)
        note.apply_async(["stale"], expires=-1)
        note.delay("chain")
        first = note.apply_async(["once"], task_id="0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70")
        assert note.apply_async(["once"], task_id=first.id).created is False
        test.run()
        assert [event for event in events if isinstance(event, str)] == ["chain", "once", "link", "late"]
        assert ("workers", "expired") in events


def test_what_a_stream_refuses_is_refused(app: Ems) -> None:
    with app.test() as test:
        with pytest.raises(InvalidName):
            app.send("no topic", 1)
        with pytest.raises(InvalidName, match="reserved"):
            app.send("t", 1, headers={"ems-task": "x"})
        with pytest.raises(MessageTooLarge):
            app.send("t", b"x" * (5 << 20))
        with pytest.raises(EmsError, match="in memory"):
            app.stream.database.call(lambda session: None)
        with pytest.raises(EmsError, match="already"):
            app.test().start()
        assert test.sent == []


def test_a_transactional_task_needs_a_connection(app: Ems) -> None:
    @app.task(transactional=True, max_attempts=1)
    def pay(transaction: Any) -> None:
        raise AssertionError("it must not run")

    with app.test() as test:
        pay.delay()
        test.run()
        assert "app.test(connection=" in test.dead[0].error


def test_an_endless_chain_is_told(app: Ems) -> None:
    @app.task
    def again() -> None:
        again.delay()

    with app.test() as test:
        again.delay()
        with pytest.raises(EmsError, match="no end"):
            test.run()


def test_eager_runs_what_is_sent_at_once() -> None:
    app = Ems("eager", eager=True)
    ran: list[str] = []

    @app.task(result=True)
    def outer() -> str:
        inner.delay()
        ran.append("outer")
        return "done"

    @app.task(max_attempts=2)
    def inner() -> None:
        ran.append("inner")
        raise ValueError("twice")

    assert app.result(outer.delay()).get() == "done"
    assert ran == ["outer", "inner", "inner"]
    with pytest.raises(ConfigError):
        Ems("x", eager="yes")


def test_a_dedup_key_is_taken_for_its_window_and_while_its_message_is_unfinished(app: Ems) -> None:
    seen: list[Any] = []

    @app.subscribe("orders", "g")
    def note(message: Message) -> None:
        seen.append(message.body)
        if message.body == "inner":
            assert not app.send("orders", "from inside", dedup_key="c", dedup_window=0).created

    with app.test() as test:
        first = app.send("orders", 1, dedup_key="a", dedup_window=0)
        again = app.send("orders", 2, dedup_key="a", dedup_window=0)
        assert (first.created, again.created, again.id, first.offset) == (True, False, first.id, None)
        assert app.send("elsewhere", 1, dedup_key="a").created
        test.run()
        assert app.send("orders", 3, dedup_key="a", dedup_window="5m").created
        test.run()
        assert not app.send("orders", 4, dedup_key="a").created
        test.advance(301)
        later = app.send("orders", 5, dedup_key="a", countdown=600)
        test.advance(500)
        assert app.send("orders", 6, dedup_key="a").id == later.id
        receipts = app.send_many("orders", [Outgoing("orders", n, dedup_key="b") for n in (7, 8)])
        assert [receipt.created for receipt in receipts] == [True, False]
        app.send("orders", "inner", dedup_key="c", dedup_window=0)
        test.run()
        assert seen == [1, 3, 7, "inner", 5]
        with pytest.raises(ConfigError, match="dedup_window"):
            app.send("orders", 1, dedup_key="a", dedup_window="soon")


def test_a_transaction_sends_at_its_end_or_not_at_all(app: Ems) -> None:
    told: list[Any] = []

    class Hooks(Middleware):
        def after_publish(self, outgoing: Outgoing, receipt: Any) -> None:
            told.append(outgoing.body)

    app = Ems("memory", middleware=[Hooks()])
    ran: list[str] = []

    @app.task
    def bill(order: str) -> None:
        ran.append(order)

    with app.test() as test:
        with app.transaction() as tx:
            tx.send("orders", "sent")
            bill.apply_async(["kept"], transaction=tx)
            assert test.run() == 0 and test.sent == [] and told == []
        assert test.run() == 1 and ran == ["kept"] and told == ["sent", [["kept"], {}]]
        with pytest.raises(KeyError), app.transaction() as tx:
            bill.apply_async(["dropped"], transaction=tx, dedup_key="k")
            assert not bill.apply_async(["dropped"], transaction=tx, dedup_key="k").created
            raise KeyError
        assert test.run() == 0 and len(test.sent) == 2
        assert bill.apply_async(["free again"], dedup_key="k").created
        with pytest.raises(EmsError, match="in memory only"):
            bill.apply_async(["nobody knows"], transaction=tx)
        with pytest.raises(EmsError, match="in memory only"):
            app.send("orders", 1, transaction=object())
        with pytest.raises(EmsError, match=r"app.test\(connection="), app.transaction() as tx:
            tx.execute("SELECT 1")


def test_a_group_gets_what_its_filter_asks_for(app: Ems) -> None:
    seen: list[Any] = []

    @app.subscribe("orders", "g", filter=Filter(tags=["new", "paid"], headers={"shop": "north"}))
    def note(message: Message) -> None:
        seen.append(message.body)

    with app.test() as test:
        app.send("orders", 1, tag="new", headers={"shop": "north", "more": "x"})
        app.send("orders", 2, tag="new", headers={"shop": "south"})
        app.send("orders", 3, tag="old", headers={"shop": "north"})
        app.send("orders", 4, headers={"shop": "north"})
        app.send("orders", 5, tag="paid", headers={"shop": "north"}, countdown=60)
        assert test.run() == 2 and seen == [1, 5] and len(test.sent) == 5
        left_out = app.send("orders", 6, tag="old", dedup_key="k", dedup_window=0)
        assert app.send("orders", 6, tag="old", dedup_key="k", dedup_window=0).id != left_out.id


def test_an_ordered_group_runs_in_order(app: Ems) -> None:
    runs: list[tuple[str, int, int]] = []

    def record(group: str, message: Message) -> None:
        runs.append((group, message.body, message.attempt))
        if message.body == 1 and message.attempt < 3:
            raise ValueError

    app.subscribe("moves", "free", ladder="1s")(lambda message: record("free", message))
    app.subscribe("moves", "keyed", order="key", ladder="1s")(lambda message: record("keyed", message))
    app.subscribe("moves", "serial", order="partition", ladder="1s")(lambda message: record("serial", message))
    with app.test() as test:
        for number, key in enumerate("baab", start=0):
            app.send("moves", number, key=key)
        test.run()
    by_group = {name: [(body, n) for group, body, n in runs if group == name] for name in ("free", "keyed", "serial")}
    assert by_group["free"] == [(0, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]
    assert by_group["keyed"] == [(0, 1), (1, 1), (3, 1), (1, 2), (1, 3), (2, 1)]
    assert by_group["serial"] == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]


def test_what_is_cancelled_is_not_run(app: Ems) -> None:
    ran: list[str] = []

    @app.task(bind=True, ladder="1m", max_attempts=3)
    def work(self: Any, what: str) -> None:
        ran.append(what)
        if what == "cancels itself":
            assert app.cancel(self.request.id)
        if what != "good":
            raise ValueError(what)

    with app.test() as test:
        waiting, late = work.delay("waiting"), work.apply_async(["late"], countdown=60)
        assert work.cancel(waiting) and work.cancel(waiting) and work.cancel(late.id)
        assert test.run() == 0
        assert not work.apply_async(["late"], task_id=waiting.id).created
        failing = work.delay("failing")
        work.delay("cancels itself")
        test.run_due()
        assert app.cancel(failing.id)
        good = work.delay("good")
        test.run()
        assert ran == ["failing", "cancels itself", "good"] and test.dead == []
        assert not app.cancel(good)
        with pytest.raises(UnknownMessage, match="topic 'elsewhere' has no message"):
            app.cancel(good.id, "elsewhere")


def test_results_and_keys_of_once_last_as_long_as_they_say(app: Ems) -> None:
    @app.task(result_ttl_s=60)
    def one() -> int:
        return 1

    with app.test() as test:
        receipt = one.delay()
        test.run()
        assert app.result(receipt).get() == 1
        with app.once("k", ttl_s=60) as first:
            assert first
        with app.once("k") as first:
            assert not first
        test.advance(61)
        assert app.result(receipt).status == "pending"
        with app.once("k", backend="redis") as first:
            assert first
        with pytest.raises(ConfigError, match="backend"):
            app.once("k", backend="oracle")
        app.close()
        assert one.delay().created


def test_broadcasts_are_heard_once_each_and_never_retried(app: Ems) -> None:
    heard: list[Any] = []

    @app.subscribe("config", broadcast=True, name="cache")
    def load(message: Message) -> None:
        heard.append(message.body)
        if message.body == "bad":
            raise ValueError("no")

    @app.subscribe("config", broadcast=True)
    async def load_too(message: Message) -> None:
        heard.append((message.body,))

    with app.test() as test:
        app.send_many("config", ["bad", "good"])
        assert test.run() == 4
        assert [one for one in heard if isinstance(one, str)] == ["bad", "good"]
        assert [one for one in heard if isinstance(one, tuple)] == [("bad",), ("good",)]
        assert test.dead == []
        with pytest.raises(EmsError, match="run by groups"):
            app.task(name="t")(print).apply_async(topic="config")


def test_cancelled_calls(app: Ems) -> None:
    """One that cancels itself, one behind it in its claim, one that is delayed, and one that has ended."""
    ran: list[Any] = []

    @app.task(bind=True, result=True)
    def work(self: Any, n: int) -> int:
        ran.append(n)
        if n == 0:
            assert app.cancel(calls[1]) and app.cancel(calls[0])
            ran.append("never")
        return n

    with app.test() as test:
        calls = [work.delay(n) for n in range(3)]
        later = work.apply_async([3], delay="1h")
        assert work.cancel(later)
        test.run()
        assert ran == [0, 2]
        for call in (calls[0], calls[1], later):
            with pytest.raises(Cancelled, match="was cancelled"):
                app.result(call).get()
        assert app.result(calls[2]).get() == 2 and not app.cancel(calls[2])
        assert [type(one) for one in app.results(calls).get(raises=False)] == [Cancelled, Cancelled, int]
        assert test.dead == []
