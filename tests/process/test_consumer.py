"""The consumer for programs that want messages: fetch, and settle in any order, with all that protects a worker."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from emsworker import (
    AccessDenied,
    ConfigError,
    EmsError,
    FenceLost,
    Filter,
    Message,
    NotInHand,
    PullConsumer,
    Reject,
    RunEnded,
)
from emsworker import Ems as App
from emsworker.admin import Admin
from emsworker.consume.claimer import Claimer
from emsworker.core.model import Isolation
from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import never, until
from tests.support.worker import QUICK, ROOT, kill

Make = Callable[..., App]


@pytest.fixture
def make(stream: Stream) -> Iterator[Make]:
    """Makes apps with short spans."""
    made: list[App] = []

    def app(**settings: Any) -> App:
        made.append(App("puller", url=stream.urls["alone"], **{**QUICK, **settings}))
        return made[-1]

    yield app
    for one in made:
        one.close()


def numbers(messages: Sequence[Message]) -> list[int]:
    return [message.body["n"] for message in messages]


def fetch_all(consumer: PullConsumer, count: int, wait: float = 10.0) -> list[Message]:
    """Fetch until there are ``count`` messages in hand."""
    messages: list[Message] = []
    end = machine_s() + wait
    while len(messages) < count and machine_s() < end:
        messages += consumer.fetch(count - len(messages), wait=0.5)
    assert len(messages) == count
    return messages


def send(stream: Stream, count: int, **options: Any) -> None:
    stream.send("orders", [{"n": n} for n in range(count)], **options)


def one_partition(stream: Stream, **options: Any) -> None:
    Admin(stream.app).create_topic("orders", partitions=1, **options)


def test_a_claim_that_takes_all_there_is_is_followed_by_none(
    stream: Stream, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, take = 0, Claimer.take

    def counted(claimer: Claimer, *how: Any) -> Any:
        nonlocal claims
        claims += 1
        return take(claimer, *how)

    monkeypatch.setattr(Claimer, "take", counted)
    one_partition(stream)
    app = make(poll_min_s=60.0, poll_max_s=60.0)
    with app.consumer("orders", "billing") as consumer:
        assert consumer.fetch(50, wait=0.2) == []
        app.send_many("orders", [{"n": n} for n in range(3)])  # it wakes this consumer
        assert numbers(consumer.fetch(50, wait=10)) == [0, 1, 2]
        assert consumer.fetch(50, wait=0.2) == []
        assert claims == 1
        app.send("orders", {"n": 3})
        assert numbers(consumer.fetch(50, wait=10)) == [3]
        assert claims == 2


def test_messages_come_in_order_and_are_done_once_acked(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 250)
    with make().consumer("orders", "billing") as consumer:
        seen = []
        while len(seen) < 250:
            messages = consumer.fetch(50, wait=5)
            assert 1 <= len(messages) <= 50
            seen += numbers(messages)
            assert [message.attempt for message in messages] == [1] * len(messages)
            assert messages[0].run.time_left > 50
            consumer.ack(*messages)
        assert consumer.fetch(1, wait=0.3) == []
    assert seen == list(range(250))
    stream.wait_settled(1)
    assert stream.one("SELECT COUNT(*) FROM ems_client") == 0


def test_acks_in_any_order_are_durable_one_by_one(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 10)
    consumer = make().consumer("orders", "billing").open()
    messages = fetch_all(consumer, 10)
    consumer.ack(*messages[5:])
    consumer.flush()
    assert stream.rows("SELECT `offset` FROM ems_retry ORDER BY `offset`") == [(n,) for n in range(1, 6)]
    for message in reversed(messages[2:5]):
        consumer.ack(message)
        consumer.flush()
    assert stream.rows("SELECT `offset` FROM ems_retry ORDER BY `offset`") == [(1,), (2,)]
    consumer.close()
    with make().consumer("orders", "billing") as other:
        assert sorted(numbers(fetch_all(other, 2))) == [0, 1], "given back, at once, with no attempt charged"
        assert other.fetch(10, wait=0.5) == []
    assert stream.one("SELECT COUNT(*) FROM ems_attempt WHERE outcome <> 'done'") == 0


def test_a_program_that_is_killed_repeats_nothing_that_it_had_acked(stream: Stream, make: Make) -> None:
    one_partition(stream)
    stream.beat()
    send(stream, 40)
    program = """
import signal
from emsworker import Ems
with Ems("killed").consumer("orders", "billing") as consumer:
    messages = []
    while len(messages) < 40:
        messages += consumer.fetch(40, wait=1)
    consumer.ack(*messages[::2])
    signal.pause()
"""
    settings = {f"EMS_{name.upper()}": str(value) for name, value in {**QUICK, "url": stream.url}.items()}
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ | settings, cwd=ROOT)
    try:
        left = "SELECT COUNT(*) FROM ems_retry"  # the rest of a claim that is settled in part
        until(lambda: stream.one(left) == 20, 30, "the acks are written down, though no flush asks for it")
    finally:
        process.kill()
        process.wait()
    with make().consumer("orders", "billing") as consumer:
        seen = []
        while len(seen) < 20 and (messages := consumer.fetch(20, wait=10)):
            seen += numbers(messages)
            assert {message.attempt for message in messages} == {1}
            consumer.ack(*messages)
        assert sorted(seen) == list(range(1, 40, 2))
        assert consumer.fetch(1, wait=0.5) == []
    stream.wait_settled(1)


def test_a_claim_whose_packet_is_refused_after_its_commit_comes_back_at_once(
    stream: Stream, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grant may be revoked between the COMMIT and the statement that reads the messages."""
    one_partition(stream)
    send(stream, 3)
    with make().consumer("orders", "billing") as consumer:
        session, refused = consumer._claiming._session, list[int]()
        really_send = session.send

        def send_and_be_refused(sql: str) -> list[Any]:
            results = really_send(sql)
            if not refused and stream.rows("SELECT 1 FROM ems_claim WHERE state = 'start'"):
                refused.append(1)
                raise AccessDenied("SELECT command denied")
            return results

        monkeypatch.setattr(session, "send", send_and_be_refused)
        messages = fetch_all(consumer, 3)
        assert sorted(numbers(messages)) == [0, 1, 2] and {message.attempt for message in messages} == {1}
        assert refused
        consumer.ack(*messages)
    stream.wait_settled(1)


def test_nacked_messages_climb_the_ladder_and_die(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 5)
    app = make()
    with app.consumer("orders", "billing") as consumer:
        zero, one, two, three, four = fetch_all(consumer, 5)
        consumer.nack(one, error=ValueError("no such customer"))
        consumer.nack(two, delay="1s", error="later")
        consumer.nack(three, dead=True, error="nonsense")
        consumer.nack(four, error=Reject("refused"))
        consumer.ack(zero)
        again = consumer.fetch(5, wait=5)
        assert [(m.body["n"], m.attempt) for m in again] == [(1, 2)], "the ladder has 300 ms"
        consumer.nack(*again)
        seen = []
        while len(seen) < 3:
            (message,) = consumer.fetch(1, wait=5)
            seen.append((message.body["n"], message.attempt))
            consumer.ack(message) if message.body["n"] == 2 else consumer.nack(message)
        assert sorted(seen) == [(1, 3), (1, 4), (2, 2)]
        until(lambda: stream.one("SELECT COUNT(*) FROM ems_dead") == 3, 5, "all are buried")
    letters = {row.place[1]: row for row in Admin(app).dead.iterate("orders", "billing")}
    assert {offset: letter.attempts for offset, letter in letters.items()} == {2: 4, 4: 1, 5: 1}
    assert letters[4].reason == "nonsense"
    assert letters[5].reason == "refused"
    first = stream.one("SELECT error FROM ems_attempt WHERE `offset` = 2 ORDER BY attempt LIMIT 1")
    assert first.endswith("ValueError: no such customer")
    stream.wait_settled(5)


def test_what_is_settled_twice_or_elsewhere_is_refused(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 4)
    app = make()
    with app.consumer("orders", "billing") as consumer, app.consumer("orders", "audit") as other:
        first, second, third, fourth = fetch_all(consumer, 4)
        consumer.ack(first)
        with pytest.raises(NotInHand, match="settled already"):
            consumer.ack(second, first)
        with pytest.raises(NotInHand, match="settled already"):
            consumer.extend(first, 1)
        with pytest.raises(NotInHand, match="not delivered by this"):
            other.ack(second)
        with pytest.raises(NotInHand, match="twice"):
            consumer.ack(second, second)
        with pytest.raises(ValueError, match="dead letter"):
            consumer.nack(second, delay=1, dead=True)
        with pytest.raises(ValueError, match="duration"):
            consumer.nack(second, delay="soon")
        consumer.ack(second, third, fourth)
    with pytest.raises(EmsError, match="not open"):
        consumer.fetch()


def test_a_message_that_takes_too_long_is_retried_unless_it_is_extended(stream: Stream, make: Make) -> None:
    one_partition(stream)
    stream.beat()
    send(stream, 3)
    with make().consumer("orders", "billing", timeout=1) as consumer:
        slow, long, quick = fetch_all(consumer, 3)
        consumer.extend(long, 30)
        assert long.run.time_left > 29
        again = consumer.fetch(1, wait=10)
        assert [(m.body["n"], m.attempt) for m in again] == [(0, 2)]
        with pytest.raises(RunEnded, match="timed out"):
            consumer.ack(slow)
        assert slow.run.time_left == 0
        consumer.ack(long)
        consumer.ack(*again)
        with pytest.raises(RunEnded):
            consumer.ack(quick)
        consumer.ack(*consumer.fetch(1, wait=10))
        consumer.flush()
    assert stream.rows("SELECT `offset`, outcome FROM ems_attempt WHERE outcome <> 'done' ORDER BY `offset`") == [
        (1, "timeout"),
        (3, "timeout"),
    ]
    stream.wait_settled(1)


def test_a_longer_time_than_the_groups_is_kept_by_the_beat_too(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 1)
    stream.beat()
    app = make(timeout_s=0.5)
    with app.consumer("orders", "billing", timeout="20s") as consumer:
        (message,) = fetch_all(consumer, 1)
        never(lambda: consumer.fetch(1, wait=0.1), 3, "it was taken away")
        consumer.ack(message)
        consumer.flush()


def test_two_consumers_and_a_worker_share_a_group(stream: Stream, make: Make) -> None:
    send(stream, 600)
    seen: list[int] = []
    lock = threading.Lock()

    def consume() -> None:
        with make().consumer("orders", "billing", prefetch=10, idle_timeout=2) as consumer:
            for message in consumer:
                with lock:
                    seen.append(message.body["n"])
                consumer.ack(message)

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(600))
    stream.wait_settled(1)


def test_slow_programs_do_not_hoard(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 200)
    slow = make().consumer("orders", "billing").open()
    iterator = iter(slow)
    for _ in range(19):
        slow.ack(next(iterator))
    last = next(iterator)
    assert stream.one("SELECT next_offset FROM ems_cursor") > 40, "it has claimed more than it was given"
    with make().consumer("orders", "billing", idle_timeout=2) as other:
        seen = []
        for message in other:
            seen.append(message.body["n"])
            other.ack(message)
        assert sorted(seen) == list(range(20, 200))
    slow.ack(last)
    slow.close()
    stream.wait_settled(1)


def test_a_suspect_that_is_got_by_itself_is_alone_and_named_too(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 3)
    with make().consumer("orders", "g") as consumer:
        (place,) = consumer._claiming.places.values()
        first, second = consumer.get(place), consumer.get(place)
        assert first is not None and second is not None and numbers([first, second]) == [0, 1]
        consumer.release(first)
        consumer.flush()
        stream.run("UPDATE ems_retry SET isolation = %s", Isolation.LONGER)
        assert consumer.get(place) is None, "it waits until the other one is settled"
        consumer.ack(second)
        suspect = until(lambda: consumer.get(place), 10, "it is alone")
        assert stream.rows("SELECT running FROM ems_claim WHERE running IS NOT NULL") == [(suspect.offset,)]
        assert consumer.get(place) is None and numbers([suspect]) == [0]
        consumer.ack(suspect)
        third = until(lambda: consumer.get(place), 10, "others are delivered again")
        assert numbers([third]) == [2]


def test_the_end_gives_back_what_was_not_settled_at_no_charge(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 10)
    with pytest.raises(ZeroDivisionError), make().consumer("orders", "billing") as consumer:
        messages = fetch_all(consumer, 8)
        consumer.ack(messages[0], messages[4])
        consumer.release(messages[1])
        raise ZeroDivisionError
    assert stream.one("SELECT COUNT(*) FROM ems_client") == 0
    with make().consumer("orders", "billing") as other:
        messages = fetch_all(other, 8)
        assert sorted(numbers(messages)) == [1, 2, 3, 5, 6, 7, 8, 9]
        assert {message.attempt for message in messages} == {1}
        other.ack(*messages)
    stream.wait_settled(1)


def test_a_failed_message_holds_up_its_own_key_only(stream: Stream, make: Make) -> None:
    one_partition(stream)
    for n in range(12):
        stream.send("orders", [{"n": n}], key=f"key-{n % 3}")
    app = make()
    with app.consumer("orders", "billing", order="key") as consumer:
        first = fetch_all(consumer, 3)
        assert numbers(first) == [0, 1, 2], "one of each key"
        assert consumer.fetch(10, wait=0.3) == []
        consumer.nack(first[0], delay=1)
        consumer.ack(first[1], first[2])
        seen = []
        while len(seen) < 10:
            for message in consumer.fetch(10, wait=5):
                seen.append(message.body["n"])
                consumer.ack(message)
        assert [n for n in seen if n % 3 == 0] == [0, 3, 6, 9]
        assert [n for n in seen if n % 3 == 1] == [4, 7, 10]
        assert [n for n in seen if n % 3 == 2] == [5, 8, 11]
        assert seen.index(0) > 2, "the other keys did not wait"
    stream.wait_settled(5)


def test_a_partition_in_order_is_strict(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 6)
    app = make()
    with (
        app.consumer("orders", "billing", order="partition") as consumer,
        make().consumer("orders", "billing", order="partition") as other,
    ):
        (first,) = consumer.fetch(10, wait=5)
        assert consumer.fetch(10, wait=0.3) == []
        assert other.fetch(10, wait=0.5) == []
        consumer.ack(first)
        (second,) = consumer.fetch(10, wait=5)
        consumer.nack(second, delay=0.5)
        seen = []
        while len(seen) < 5:
            for one in (consumer, other):
                for message in one.fetch(10, wait=0.2):
                    seen.append((message.body["n"], message.attempt))
                    one.ack(message)
        assert seen == [(1, 2), (2, 1), (3, 1), (4, 1), (5, 1)]
    stream.wait_settled(5)


def test_filters_priorities_and_refusals(stream: Stream, make: Make) -> None:
    Admin(stream.app).create_topic("orders", partitions=1, priorities=2)
    Admin(stream.app).create_topic("news", kind="broadcast")
    for n in range(20):
        stream.send("orders", [{"n": n}], tag="a" if n % 2 else "b", priority=9 if n >= 10 else 0)
    app = make()
    with app.consumer("orders", "odd", filter=Filter(tags=["a"]), prefetch=5) as consumer:
        seen = []
        while len(seen) < 10:
            messages = consumer.fetch(5, wait=5)
            seen += numbers(messages)
            consumer.ack(*messages)
    assert sorted(seen) == list(range(1, 20, 2))
    assert min(seen[:5]) > 10, "the higher priority comes first"
    with pytest.raises(ConfigError, match="broadcast"), app.consumer("news", "g"):
        pass
    with pytest.raises(ConfigError, match="filter"), app.consumer("orders", "odd", filter=Filter(tags=["c"])):
        pass
    for wrong in ({"prefetch": 0}, {"timeout": "soon"}, {"timeout": 0}, {"order": "up"}):
        with pytest.raises(ConfigError):
            app.consumer("orders", "odd", **wrong)


def test_limits_of_the_group_are_kept(stream: Stream, make: Make) -> None:
    send(stream, 30)
    admin = Admin(stream.app)
    admin.create_group("orders", "billing")
    admin.limits.set("orders", "billing", max_running=3)
    app = make()
    with app.consumer("orders", "billing") as one, app.consumer("orders", "billing") as two:
        taken = until(lambda: one.fetch(2, wait=0.2), 5, "a slot is free")
        taken_too: list[Message] = []
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert one.fetch(10, wait=0.05) == []
            taken_too += two.fetch(10, wait=0.05)
        assert len(taken) + len(taken_too) <= 3
        one.ack(*taken)
        two.ack(*taken_too)
        count = len(taken) + len(taken_too)
        while count < 30:
            for consumer in (one, two):
                messages = consumer.fetch(10, wait=0.2)
                assert len(messages) <= 3
                count += len(messages)
                consumer.ack(*messages)


def test_only_prefetch_messages_are_in_hand(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 20)
    with make().consumer("orders", "billing", prefetch=4) as consumer:
        messages = fetch_all(consumer, 4)
        assert consumer.fetch(1, wait=0.3) == []
        timer = threading.Timer(0.3, consumer.ack, [messages[2]])
        timer.start()
        assert numbers(consumer.fetch(5, wait=5)) == [4]
        timer.join()


def claims_by_state(stream: Stream) -> dict[str, int]:
    return dict(stream.rows("SELECT state, COUNT(*) FROM ems_claim GROUP BY state"))


def in_three_claims(stream: Stream, consumer: PullConsumer) -> list[Message]:
    messages = [message for _ in range(3) for message in fetch_all(consumer, 2)]
    assert claims_by_state(stream) == {"start": 3}
    return messages


def test_one_claim_carries_the_acks_of_several(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 8)
    with make(ack_interval_s=60).consumer("orders", "billing", prefetch=8) as consumer:
        consumer.ack(*in_three_claims(stream, consumer))
        assert claims_by_state(stream) == {"start": 3}, "nothing is written down before its time"
        fetch_all(consumer, 1)
        assert claims_by_state(stream) == {"done": 3, "start": 1}, "one packet, as the flusher sleeps"


def test_a_claim_that_was_lost_does_not_take_the_acks_of_others_with_it(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 8)
    with make(ack_interval_s=60).consumer("orders", "billing", prefetch=8) as consumer:
        consumer.ack(*in_three_claims(stream, consumer))
        stream.run("UPDATE ems_claim SET claim_id = claim_id + 1 WHERE lo = 3")  # as for another owner
        assert numbers(fetch_all(consumer, 1)) == [6], "the claim goes on without them"
        with pytest.raises(FenceLost):
            consumer.flush()
        ended = stream.rows("SELECT lo FROM ems_claim WHERE state = 'done' ORDER BY lo")
        assert ended == [(1,), (5,)], "each was written by itself"
        assert consumer.losses == 1


def test_confirm_tells_each_caller_which_of_its_messages_come_again(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 8)
    with make(ack_interval_s=60).consumer("orders", "billing", prefetch=8) as consumer:
        messages = in_three_claims(stream, consumer)
        consumer.ack(*messages)
        stream.run("UPDATE ems_claim SET claim_id = claim_id + 1 WHERE lo = 3")  # as for another owner
        lost = {message.offset for message in messages if message.offset in (3, 4)}
        assert {message.offset for message in consumer.confirm(*messages)} == lost
        assert {message.offset for message in consumer.confirm(*messages[::-1])} == lost, "and so to another caller"
        assert stream.rows("SELECT lo FROM ems_claim WHERE state = 'done' ORDER BY lo") == [(1,), (5,)]
        consumer.flush()  # nothing is left to be told


def test_claims_pause_while_half_is_in_hand(stream: Stream, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim then takes several messages, though they are acked one at a time."""
    monkeypatch.setattr("emsworker.consume.claiming._REST", 1e6)
    one_partition(stream)
    send(stream, 16)
    with make().consumer("orders", "billing", prefetch=8) as consumer:
        messages = fetch_all(consumer, 8)
        timers = [threading.Timer(0.1 * place, consumer.ack, [messages[place]]) for place in range(4)]
        for timer in timers:
            timer.start()
        assert numbers(consumer.fetch(8, wait=1e6)) == [8, 9, 10, 11]
        consumer.ack(messages[4])
        assert numbers(consumer.fetch(8, wait=1)) == [12], "who waits for less than a pause does not miss what is there"
        for timer in timers:
            timer.join()


def test_a_fast_consumer_claims_ahead_and_what_it_does_not_need_goes_back(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 400)
    seen: list[int] = []
    with make().consumer("orders", "billing", prefetch=4) as consumer:
        consumer.claim_ahead(0.05)
        larger = "SELECT hi FROM ems_claim WHERE hi - lo >= 4 AND state = 'start' AND hi > acked_to + 8"
        while not stream.rows(larger):
            messages = consumer.fetch(100, wait=5)
            assert 1 <= len(messages) <= 4, "no more are delivered than the prefetch"
            consumer.ack(*messages)
            seen += numbers(messages)
        held = fetch_all(consumer, 4)
        assert consumer.fetch(1, wait=0.2) == []
        with make().consumer("orders", "billing", prefetch=400) as other:
            rest = fetch_all(other, 400 - len(seen) - 4)
            other.ack(*rest)
        consumer.ack(*held)
    assert sorted(seen + numbers(held) + numbers(rest)) == list(range(400))
    assert stream.rows("SELECT COUNT(*) FROM ems_attempt") == [(0,)], "nothing was charged"


def test_slow_work_is_not_claimed_ahead(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 40)
    with make().consumer("orders", "billing", prefetch=2) as consumer:
        consumer.claim_ahead(0.01)
        for _ in range(10):
            messages = consumer.fetch(2, wait=5)
            time.sleep(0.3)  # what the work takes
            consumer.ack(*messages)
        assert stream.rows("SELECT MAX(hi - lo + 1) FROM ems_claim") == [(2,)]


def test_stopping_ends_iteration(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 3)
    with make().consumer("orders", "billing") as consumer:
        seen = []
        for message in consumer:
            seen.append(message.body["n"])
            consumer.ack(message)
            if len(seen) == 3:
                threading.Timer(0.2, consumer.stop).start()
        assert seen == [0, 1, 2]


def test_a_paused_process_can_settle_nothing(stream: Stream, make: Make) -> None:
    one_partition(stream)
    stream.beat()
    send(stream, 2)
    program = """
import sys
from emsworker import Ems, FenceLost, LeaseLost
with Ems("paused").consumer("orders", "billing") as consumer:
    messages = []
    while len(messages) < 2:
        messages += consumer.fetch(2, wait=1)
    print("fetched", flush=True)
    sys.stdin.readline()
    try:
        consumer.ack(*messages)
        consumer.flush()
    except (FenceLost, LeaseLost) as error:
        print(type(error).__name__, flush=True)
    else:
        print("acked", flush=True)
    more = consumer.fetch(1, wait=10)
    print(len(more), flush=True)
    consumer.ack(*more)
"""
    settings = {f"EMS_{name.upper()}": str(value) for name, value in {**QUICK, "url": stream.url}.items()}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "fetched\n"
        kill(process.pid, signal.SIGSTOP)
        with make().consumer("orders", "billing") as other:
            messages = fetch_all(other, 2, 20)
            kill(process.pid, signal.SIGCONT)
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "FenceLost\n"
            other.ack(*messages)
        stream.send("orders", [{"n": 9}])
        assert process.stdout.readline() == "1\n", "it has registered anew"
        assert process.wait(20) == 0
    stream.wait_settled(5)


def test_coroutines_use_it_through_threads(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 30)

    async def consume() -> list[int]:
        seen: list[int] = []
        async with make().consumer("orders", "billing", prefetch=10, idle_timeout=2) as consumer:
            (first, second, third) = await consumer.afetch(3, wait=5)
            await consumer.aextend(first, 5)
            await consumer.aack(first)
            await consumer.anack(second, delay=0)
            await consumer.arelease(third)
            waiting = asyncio.ensure_future(consumer.afetch(20, wait=30))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            async for message in consumer:
                seen.append(message.body["n"])
                await consumer.aack(message)
            await consumer.aflush()
        return seen

    seen = asyncio.run(consume())
    assert sorted(seen) == list(range(1, 30))
    stream.wait_settled(1)


def test_a_forked_child_cannot_use_it(stream: Stream, make: Make) -> None:
    one_partition(stream)
    send(stream, 1)
    with make().consumer("orders", "billing") as consumer:
        (message,) = fetch_all(consumer, 1)

        if (child := os.fork()) == 0:
            refused = 1
            with contextlib.suppress(EmsError):
                consumer.ack(message)
                refused = 0
            consumer.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        consumer.ack(message)
    stream.wait_settled(1)


@pytest.mark.slow
def test_it_survives_lost_connections(stream: Stream, make: Make) -> None:
    send(stream, 300)
    seen: list[int] = []
    done = threading.Event()

    def cut() -> None:
        while not done.wait(0.15):
            for (number,) in stream.rows(
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            ):
                try:
                    stream.run(f"KILL {number}")
                except Exception:  # it has ended by itself
                    continue

    cutter = threading.Thread(target=cut)
    with make().consumer("orders", "billing", prefetch=20, idle_timeout=5) as consumer:
        cutter.start()
        for message in consumer:
            seen.append(message.body["n"])
            consumer.ack(message)
            time.sleep(0.005)
            if len(seen) >= 300:
                done.set()
        done.set()
        cutter.join()
        consumer.flush()
    assert sorted(seen) == list(range(300)), "none lost, and none repeated"
    stream.wait_settled(2)
