"""Effects that happen once, though their messages come again."""

import threading
from collections.abc import Iterator

import pytest

from emsworker import Ems, Message, Retry, once
from emsworker.core.errors import ConfigError, InvalidName
from emsworker.publish.transaction import Transaction
from emsworker.store.cluster import once as store
from tests.support.streams import Stream, in_threads, wait_until


@pytest.fixture(params=["mysql", "redis"])
def guarded(request: pytest.FixtureRequest, stream: Stream) -> Iterator[tuple[Ems, str]]:
    """An app, and where it keeps its keys."""
    redis_url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    yield stream.app(redis_url=redis_url), request.param


def test_one_effect_of_three_deliveries(guarded: tuple[Ems, str]) -> None:
    app, backend = guarded
    effects = []
    for delivery in range(3):
        with app.once("mail:1", backend=backend) as first:
            if first:
                effects.append(delivery)
    assert effects == [0]
    with app.once("mail:2", backend=backend) as first:
        assert first and not first.uncertain


def test_an_effect_that_fails_is_tried_again(guarded: tuple[Ems, str]) -> None:
    app, backend = guarded
    with pytest.raises(ZeroDivisionError), app.once("k", backend=backend) as first:
        assert first
        _ = 1 / 0
    with app.once("k", backend=backend) as first:
        assert first and not first.uncertain


def test_of_many_at_once_one_does_it_and_the_others_come_again(guarded: tuple[Ems, str]) -> None:
    app, backend = guarded
    effects: list[int] = []
    all_tried = threading.Barrier(4)

    def attempt(number: int) -> float:
        try:
            with app.once("k", backend=backend, running_s=30, wait_s=0.1) as first:
                all_tried.wait(20)
                if first:
                    effects.append(number)
                return 0.0
        except Retry as retry:
            all_tried.wait(20)
            assert retry.countdown_s is not None
            return retry.countdown_s

    waits = in_threads(4, attempt)
    assert len(effects) == 1
    assert sorted(waits)[0] == 0.0 and all(0 < wait <= 30 for wait in sorted(waits)[1:])
    with app.once("k", backend=backend) as first:
        assert not first


def test_a_short_attempt_is_waited_for(guarded: tuple[Ems, str]) -> None:
    app, backend = guarded
    inside, answers = threading.Event(), []

    def second() -> None:
        inside.wait(20)
        with app.once("k", backend=backend, wait_s=20) as found:
            answers.append(bool(found))

    waiting = threading.Thread(target=second)
    waiting.start()
    with app.once("k", backend=backend) as first:
        assert first
        inside.set()
        waiting.join(0.2)
        assert answers == []
    waiting.join(20)
    assert answers == [False]


@pytest.mark.parametrize(("policy", "again"), [("repeat", True), ("skip", False)])
def test_one_that_died_in_its_middle_is_uncertain(guarded: tuple[Ems, str], policy: str, again: bool) -> None:
    app, backend = guarded
    dead = app.once("k", backend=backend, running_s=0.3)
    assert dead.__enter__()  # and never comes back

    def enter() -> bool:
        try:
            with app.once("k", backend=backend, running_s=0.3, if_uncertain=policy) as found:
                assert found.uncertain
                assert bool(found) is again
                return True
        except Retry:
            return False

    wait_until(enter, 5, "its time is over")
    dead.__exit__(ValueError, ValueError(), None)  # it wakes up late, and must not undo what its successor did
    with app.once("k", backend=backend) as first:
        assert not first


def test_a_key_is_part_of_the_transaction(stream: Stream) -> None:
    stream.rows("CREATE TABLE effect (n INT) ENGINE=InnoDB")
    for commits in (False, True, True, True):
        connection = stream.other()
        transaction = Transaction(connection)
        if once(transaction, "pay:1"):
            transaction.execute("INSERT INTO effect VALUES (1)")
        if commits:
            connection.commit()
        else:
            connection.rollback()
        connection.close()
    assert stream.value("SELECT COUNT(*) FROM effect") == 1


def test_a_second_transaction_waits_for_the_first_and_sees_its_end(stream: Stream) -> None:
    holder = stream.other()
    assert once(Transaction(holder), "k")
    answers: list[bool] = []
    other = stream.other()
    waiting = threading.Thread(target=lambda: answers.append(once(Transaction(other), "k")))
    waiting.start()
    wait_until(lambda: stream.value(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE %s", "INSERT IGNORE INTO ems_once%"
    ), 10, "it waits")  # fmt: skip
    assert answers == []
    holder.rollback()
    waiting.join(20)
    assert answers == [True]
    other.rollback()
    other.close()
    holder.close()


def test_keys_are_swept_in_bounded_chunks(stream: Stream) -> None:
    for number in range(5):
        store.begin(stream.session, b"old%d" % number, 0.0, 0.0)
    assert store.begin(stream.session, b"new", 100.0, 1.0).entry == "first"
    assert [store.sweep(stream.session, 3) for _ in range(3)] == [3, 2, 0]
    assert stream.value("SELECT COUNT(*) FROM ems_once") == 1


def test_wrong_use_is_named(stream: Stream) -> None:
    app = stream.app()
    with pytest.raises(ConfigError, match="redis_url"):
        app.once("k", backend="redis")
    with pytest.raises(ConfigError, match="repeat, skip"):
        app.once("k", if_uncertain="maybe")
    with pytest.raises(InvalidName, match="255"):
        app.once("k" * 256)


def test_in_memory_too() -> None:
    app = Ems("memory")
    effects: list[str] = []

    @app.subscribe("mails", "g")
    def mail(message: Message) -> None:
        with app.once(f"mail:{message.body}") as first:
            if first:
                effects.append(message.body)

    with app.test() as test:
        for _ in range(3):
            app.send("mails", "a")
        app.send("mails", "b")
        test.run()
    assert effects == ["a", "b"]
