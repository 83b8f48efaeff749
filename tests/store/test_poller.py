"""The poller of a worker process: what a wake-up that names its place spares, and what it must not skip."""

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import redis

from emsworker import Ems
from emsworker.consume import poller as module
from emsworker.consume.hints import Hint
from emsworker.consume.listener import Listener
from emsworker.consume.poller import Poller, PollTiming
from emsworker.core.config import Settings
from emsworker.core.limits import Limit
from emsworker.core.model import Group, Order, Topic, TopicKind, TopicRule
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.core.work import PollAnswer
from emsworker.local import Redis
from emsworker.publish import notifier as notifier_module
from emsworker.publish import redis_connection as connection
from emsworker.publish.notifier import Notifier
from emsworker.publish.redis_connection import RedisConnection
from emsworker.store import topics
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import limits
from tests.support.streams import Stream
from tests.support.waiting import until

SELDOM = Settings(poll_min_s=60.0, poll_max_s=60.0)  # who finds anything sooner was told


@contextmanager
def polling(stream: Stream, *groups: Group) -> Iterator[Poller]:
    """A poller whose thread is the test's; it has looked once."""
    topic_of = {group.id: Topic(group.topic_id, "t", TopicKind.CLUSTER, partitions=3) for group in groups}
    in_order = [group.id for group in groups if group.order is not Order.NONE]
    poller = Poller(Database(stream.url), SELDOM, topic_of, in_order, lambda *_: None)
    _look(poller)
    yield poller
    poller.shut_down()


def _look(poller: Poller) -> None:
    poller._notified = True
    poller.step()


def _looks_after(poller: Poller, ring: Callable[[], None]) -> bool:
    """Whether ringing asks for a look; if so, it looks."""
    ring()
    if rung := poller._notified:
        poller.step()
    return rung


@pytest.fixture
def topic(stream: Stream) -> Topic:
    return stream.topic(partitions=3)


def test_a_thread_is_sent_where_something_was_published_without_a_look(stream: Stream, topic: Topic) -> None:
    first, second = stream.group(topic, "first"), stream.group(topic, "second")
    with polling(stream, first, second) as poller:
        assert poller.next_hint() is None
        assert not _looks_after(poller, lambda: poller.notify(topic.id, [2]))
        found = {poller.next_hint() for _ in range(4)}
        assert found == {Hint(first.id, "stream", 2), Hint(second.id, "stream", 2)}


def test_a_waiting_thread_is_woken(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    with polling(stream, group) as poller:
        woken = threading.Thread(target=poller.wait_for_hint, args=(60.0,))
        woken.start()
        until(lambda: poller._idle == 1, 5, "it waits")
        poller.notify(topic.id, [0])
        woken.join(5)
        assert not woken.is_alive()
        assert poller.next_hint() == Hint(group.id, "stream", 0)


def test_a_relieved_poller_names_what_an_idle_thread_may_claim(stream: Stream, topic: Topic) -> None:
    free, paused = stream.group(topic, "free"), stream.group(topic, "paused")
    topics.change_group(stream.session, replace(paused, paused=True))
    with polling(stream, free, paused) as poller:
        soon = threading.Event()
        poller.relieve(soon.set)
        poller.note_work()
        assert poller.wanted() == ([], math.inf), "no thread is idle"
        idle = threading.Thread(target=poller.wait_for_hint, args=(60.0,))
        idle.start()
        assert soon.wait(5), "a thread is idle just after work"
        until(lambda: poller._idle == 1, 5, "it waits")
        groups, within_s = poller.wanted()
        assert list(groups) == [free.id]
        assert within_s < SELDOM.poll_min_s
        poller.notify(topic.id, [1])
        idle.join(5)
        assert poller.next_hint() == Hint(free.id, "stream", 1)


def test_a_relieved_poller_looks_seldom_while_it_is_asked_and_no_group_is_left_out(
    stream: Stream, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, other = stream.group(topic, "free"), stream.group(topic, "other")
    with polling(stream, free, other) as poller:
        poller.relieve(lambda: None)
        poller._timing.interval = PollInterval(0.005, 1.0)
        poller._idle, later = 1, ticks() + 3600
        assert poller._next_look(later) == later + 1, "nobody looks instead"
        poller.wanted()
        assert poller._next_look(later) == later + 5
        monkeypatch.setattr(module, "SOON_S", 0.0)
        assert poller._next_look(later) == later + 1, "whoever looked has not asked for long"
        monkeypatch.undo()
        topics.change_group(stream.session, replace(other, paused=True))
        _look(poller)
        assert poller._next_look(later) == later + 1, "what that look leaves out may be resumed"


@pytest.mark.usefixtures("slow_redis")
def test_polls_are_rare_while_redis_tells_of_everything(
    stream: Stream, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with polling(stream, stream.group(topic)) as poller:
        poller._timing = PollTiming(replace(SELDOM, poll_min_s=0.002))
        poller._timing.interval, poller._idle = PollInterval(0.002, 60.0), 1
        poller.note_work()
        now, poller._timing.cost_s = poller._timing.worked_at, 0.0

        def pause() -> float:
            return poller._next_look(now) - now

        assert pause() == pytest.approx(0.002), "nobody has told anything yet"
        poller.tell(topic.id, [0])
        assert pause() == pytest.approx(0.05)
        poller.note_found(topic.id, [0])
        assert poller._timing._untold_since == math.inf, "it had been told of that"
        poller.note_found(topic.id, [1])
        assert pause() == pytest.approx(0.05), "the notification may be on its way"
        monkeypatch.setattr(module, "_LATE_S", 0.0)
        assert pause() == pytest.approx(0.002), "nobody told of that"
        poller.tell(topic.id, [1])
        assert pause() == pytest.approx(0.05)


def test_a_server_that_answers_slowly_is_asked_seldom(stream: Stream, topic: Topic) -> None:
    with polling(stream, stream.group(topic)) as poller:
        poller._timing.interval, poller._idle = PollInterval(0.005, 60.0), 1
        poller.note_work()
        poller._timing.cost_s = 0.001
        assert poller._next_look(poller._timing.worked_at) - poller._timing.worked_at == pytest.approx(0.005)
        poller._timing.cost_s = 0.02
        assert poller._next_look(poller._timing.worked_at) - poller._timing.worked_at == pytest.approx(0.08)


@pytest.mark.parametrize("told", [True, False])
def test_what_a_notification_makes_it_look_for_was_told(stream: Stream, topic: Topic, app: Ems, told: bool) -> None:
    with polling(stream, stream.group(topic, order=Order.KEY)) as poller:
        app.send("t", "x")
        if told:
            poller.tell(topic.id, ())
        else:
            poller._due_at = 0.0
        poller.step()
        assert (poller._timing._untold_since == math.inf) is told


def test_without_a_place_it_looks(stream: Stream, topic: Topic) -> None:
    with polling(stream, stream.group(topic)) as poller:
        assert _looks_after(poller, lambda: poller.notify(topic.id, ()))
        assert _looks_after(poller, lambda: poller.notify(topic.id + 1, [0])), "of a topic that only broadcasts"
        assert poller.next_hint() is None


@pytest.mark.parametrize("why", ["paused", "limited", "in order", "write-only"])
def test_where_a_thread_may_not_just_go_it_looks_first(stream: Stream, topic: Topic, why: str) -> None:
    group = stream.group(topic, order=Order.KEY if why == "in order" else Order.NONE)
    if why == "paused":
        topics.change_group(stream.session, replace(group, paused=True))
    elif why == "limited":
        limits.set_limit(stream.session, group.id, Limit(max_running=1))
    elif why == "write-only":
        topics.change_topic(stream.session, replace(topic, rule=TopicRule.WRITE))
    with polling(stream, group) as poller:
        assert _looks_after(poller, lambda: poller.notify(topic.id, [0]))
        assert poller.next_hint() is None


def test_one_group_of_a_topic_may_go_while_it_looks_for_the_other(stream: Stream, topic: Topic) -> None:
    free, paused = stream.group(topic, "free"), stream.group(topic, "paused")
    topics.change_group(stream.session, replace(paused, paused=True))
    with polling(stream, free, paused) as poller:
        poller.notify(topic.id, [1])
        assert poller.next_hint() == Hint(free.id, "stream", 1)
        assert _looks_after(poller, lambda: poller.notify(topic.id, [1]))


def test_who_was_rung_for_since_is_not_forgotten(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    with polling(stream, group) as poller:
        poller.notify(topic.id, [0])
        hint = poller.next_hint()
        assert hint is not None
        poller.notify(topic.id, [0])  # after the claim that found nothing, and before its thread tells so
        poller.forget(hint)
        assert poller.next_hint() == hint
        poller.forget(hint)
        assert poller.next_hint() is None


@pytest.fixture
def slow_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications may come as late as a busy machine likes."""
    monkeypatch.setattr(module, "_ANNOUNCED_S", 60.0)
    monkeypatch.setattr(module, "_LATE_S", 60.0)


def _announced(poller: Poller, topic: Topic) -> Hint:
    poller._idle = 1
    poller.announce(topic.id, [0])
    hint = poller.next_hint()
    assert hint is not None and hint.announced
    return hint


@pytest.mark.usefixtures("slow_redis")
def test_an_announcement_that_was_followed_makes_its_notification_superfluous(stream: Stream, topic: Topic) -> None:
    with polling(stream, stream.group(topic)) as poller:
        poller.announce(topic.id, [0])
        assert poller.next_hint() is None, "no thread is idle"
        hint = _announced(poller, topic)
        poller.tell(topic.id, [0])  # during the claim
        poller.forget(hint, found=True)
        assert poller.next_hint() is None
        hint = _announced(poller, topic)
        poller.forget(hint, found=True)
        poller.tell(topic.id, [0])  # after it
        assert poller.next_hint() is None
        poller.tell(topic.id, [0])
        assert poller.next_hint() == hint, "of another message"


@pytest.mark.usefixtures("slow_redis")
def test_an_announcement_that_led_nowhere_is_forgotten_and_its_notification_is_not(
    stream: Stream, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with polling(stream, stream.group(topic)) as poller:
        hint = _announced(poller, topic)
        poller.forget(hint)
        assert poller.next_hint() is None
        poller.tell(topic.id, [0])  # after the claim
        again = poller.next_hint()
        assert again == hint and not again.announced
        poller.forget(again)
        hint = _announced(poller, topic)
        poller.tell(topic.id, [0])  # during the claim, which had looked before the commit
        poller.forget(hint)
        again = poller.next_hint()
        assert again == hint and not again.announced
        poller.forget(again)
        poller.announce(topic.id, [0])
        poller.tell(topic.id, [0])  # before an idle thread has woken up
        again = poller.next_hint()
        assert again == hint and not again.announced
        poller.forget(again)
        monkeypatch.setattr(module, "_ANNOUNCED_S", 0.0)
        poller.announce(topic.id, [0])
        again = poller.next_hint()
        assert again == hint and not again.announced, "its commit is over"
        poller.forget(again)
        poller.tell(topic.id, [0])
        assert poller.next_hint() == hint


@pytest.mark.usefixtures("slow_redis")
def test_a_notification_is_polled_for_if_another_group_did_not_hear_its_announcement(
    stream: Stream, topic: Topic
) -> None:
    free, other = stream.group(topic, "free"), stream.group(topic, "other")
    topics.change_group(stream.session, replace(other, paused=True))
    with polling(stream, free, other) as poller:
        hint = _announced(poller, topic)
        poller.tell(topic.id, [0])
        poller.forget(hint, found=True)
        assert poller._notified and poller.next_hint() is None


def test_what_is_rung_for_during_a_look_is_kept(stream: Stream, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    group = stream.group(topic)
    real = module.find_work
    with polling(stream, group) as poller:

        def find_work(session: Session, group_ids: Sequence[int]) -> PollAnswer:
            look = real(session, group_ids)
            poller.notify(topic.id, [1])
            return look

        monkeypatch.setattr(module, "find_work", find_work)
        _look(poller)
        assert poller.next_hint() == Hint(group.id, "stream", 1)


def test_who_was_paused_meanwhile_loses_what_was_rung_for(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    with polling(stream, group) as poller:
        poller.notify(topic.id, [0])
        topics.change_group(stream.session, replace(group, paused=True))
        _look(poller)
        assert poller.next_hint() is None


def test_a_wake_up_over_redis_names_the_place(redis_url: str) -> None:
    heard: list[tuple[int, list[int]]] = []
    died: list[str] = []
    listener = Listener(
        redis_url,
        "s",
        [7, 8],
        lambda topic, places: heard.append((topic, sorted(places))),
        lambda name, error: died.append(name),
    )
    listener.start()
    here: list[int] = []
    notifier = Notifier(redis_url, "s", [lambda topic, _: here.append(topic)])
    try:
        until(lambda: notifier.notify_at({7: [0]}) or heard, 10, "it listens")
        for places in ({7: {3, 1}}, {8: range(65)}, {9: [0]}):
            notifier.notify_at(places)
        notifier.notify([8])
        with redis.Redis.from_url(redis_url) as other:
            other.publish("ems:s:wake:7", "of another version")
        until(lambda: heard[-1:] == [(7, [])], 5, "all have come")
    finally:
        listener.stop()
        listener.join(5)
    assert heard[-4:] == [(7, [1, 3]), (8, []), (8, []), (7, [])] and not died
    assert here[-4:] == [7, 8, 9, 8]


def test_a_send_after_a_pause_is_announced_before_its_commit(
    stream: Stream, topic: Topic, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    ready = threading.Event()

    def hear(what: str, places: Sequence[int]) -> None:
        if list(places) == [1]:
            committed = "SELECT COUNT(*) FROM ems_message WHERE body = '2'"
            heard.append(what if what == "told" else f"{what}, {stream.value(committed)} committed")
        else:
            ready.set()

    app = stream.app(redis_url=redis_url)
    listener = Listener(
        redis_url,
        app.stream.stream_id,
        [topic.id],
        lambda _, places: hear("told", list(places)),
        lambda name, error: None,
        lambda _, places: hear("announced", list(places)),
    )
    listener.start()
    try:
        until(lambda: app.send("t", 1, partition=0) and ready.is_set(), 10, "it listens")
        monkeypatch.setattr(notifier_module, "_QUIET_S", 60.0)
        app.send("t", 1, partition=0)
        app.send("t", 1, partition=1)
        until(lambda: heard == ["told"], 10, "workers are awake")
        assert app.stream.producer._notifier._quiet_at > ticks() + 30
        app.stream.producer._notifier._quiet_at = 0.0
        stream.rows("BEGIN")
        stream.rows("SELECT * FROM ems_partition WHERE topic_id = %s FOR UPDATE", topic.id)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(app.send, "t", 2, partition=1)
            until(lambda: heard[1:], 10, "it is announced")
            stream.rows("COMMIT")
            assert sent.result(10).offset > 1
        until(lambda: heard[2:], 10, "it is told of")
        assert heard == ["told", "announced, 0 committed", "told"]
    finally:
        listener.stop()
        listener.join(5)


def _answers(connection: RedisConnection | None) -> bool:
    assert connection is not None
    try:
        return bool(connection.ask("PING") == b"PONG")
    except redis.ConnectionError:
        return False


def test_who_publishes_waits_for_no_answer_of_redis(redis_url: str, redis_server: Redis) -> None:
    notifier = Notifier(redis_url, "s", [])
    assert notifier._redis is not None
    notifier.notify([7])
    for _ in range(3):
        with redis.Redis.from_url(redis_url) as other:
            other.client_kill_filter(_type="normal", skipme=True)  # as after an idle hour
        notifier.notify([7])
        assert notifier._redis.unanswered == 1 and not notifier._redis.breaker.is_open, (
            "it has connected again, and told"
        )
    until(lambda: _answers(notifier._redis), 5, "the connection is none of those that were closed")
    assert redis_server.pid is not None
    os.kill(redis_server.pid, signal.SIGSTOP)
    try:
        for _ in range(connection._MOST_UNANSWERED):
            notifier.notify([7])
        assert notifier._redis.unanswered >= connection._MOST_UNANSWERED and not notifier._redis.breaker.is_open, (
            "to wait for one ends in this"
        )
        notifier.notify([7])
        notifier.notify([7])
        assert notifier._redis.breaker.is_open, "it is left alone for some seconds"
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)
    notifier._redis.breaker._until = 0.0
    notifier.notify([7])
    assert notifier._redis.ask("PING") == b"PONG" and notifier._redis.unanswered == 0
