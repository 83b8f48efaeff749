"""The contract of a broker, kept by the stream in MySQL and by the one in memory alike."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from emsworker import Filter
from emsworker.broker.memory import MemoryBroker
from emsworker.broker.mysql import MysqlBroker
from emsworker.broker.port import Broker
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, FenceLost, MessageTooLarge, UnknownMessage
from emsworker.core.flush import ResultRow
from emsworker.core.ids import new_claim_id, parse_uid
from emsworker.core.model import Claim, ClaimSource, Isolation, Message, OnceState, Order
from emsworker.core.partitioner import partition_number
from emsworker.core.work import Claimant
from emsworker.store.groups.claims import NothingClaimed
from tests.support.brokers import Place, memory_place, mysql_place
from tests.support.streams import Stream, failed, flush_of, offsets

DELAY_S = 0.2


def _bodies(messages: Sequence[Message]) -> list[Any]:
    return [message.body for message in messages]


class Contract:
    """What both brokers keep; each of them has a fixture ``place``."""

    def test_messages_are_claimed_in_their_order_and_finished_once(self, place: Place) -> None:
        topic, group = place.group()
        receipts = place.send(1, 2, 3)
        assert [receipt.offset for receipt in receipts] == [1, 2, 3]
        claim = place.take(topic, group, batch=2)
        assert (_bodies(claim.messages), claim.lo, claim.hi, claim.source) == ([1, 2], 1, 2, ClaimSource.STREAM)
        assert [message.attempt for message in claim.messages] == [1, 1]
        rest = place.channel.take_range(place.claimant(topic, group), 0, [flush_of(claim, topic, 2)])
        assert isinstance(rest, Claim) and _bodies(rest.messages) == [3]
        place.channel.flush(flush_of(rest, topic, 3))
        assert place.channel.take_range(place.claimant(topic, group), 0) is NothingClaimed.EMPTY
        assert not place.work_of(group)

    def test_every_group_gets_every_message(self, place: Place) -> None:
        for name in ("one", "other"):
            place.group(name)
        place.send("a", "b")
        for name in ("one", "other"):
            assert _bodies(place.take(*place.group(name)).messages) == ["a", "b"]

    def test_a_fair_group_takes_its_keys_in_rotation(self, place: Place) -> None:
        topic, group = place.group()

        def send(key: str, count: int) -> None:
            for number in range(count):
                place.send(f"{key}{number}", headers={"tenant": key})

        def run(count: int, *failing: str) -> list[str]:
            bodies = []
            for _ in range(count):
                claimant = replace(place.claimant(topic, group, 1), fair="tenant")
                claim = place.channel.take_retries(claimant)
                if not isinstance(claim, Claim):
                    break
                (message,) = claim.messages
                bodies.append(f"{message.body}.{message.attempt}")
                fails = [failed(message.offset, message.attempt, DELAY_S)] if message.body in failing else []
                done = [] if fails else [(message.offset, message.attempt, 1)]
                flush = flush_of(claim, topic, claim.hi, done_offsets=done, failures=fails, finished=True)
                place.channel.flush(flush)
            return bodies

        send("a", 5)
        assert run(2) == ["a0.1", "a1.1"]
        send("b", 2)
        assert run(2) == ["a2.1", "b0.1"], "what comes new has the place of the message that is next"
        send("c", 1)
        place.send("none")
        assert run(4, "b1") == ["a3.1", "b1.1", "c0.1", "none.1"]
        place.pass_time(DELAY_S)
        send("a", 1)
        assert run(9) == ["a4.1", "b1.2", "a0.1"]
        assert place.work_of(group) is None

    def test_a_uid_is_stored_once(self, place: Place) -> None:
        uid = str(uuid.uuid4())
        (first,), (again,) = place.send("a", uid=uid), place.send("b", uid=uid)
        assert (first.created, again.created, again.id, again.offset) == (True, False, uid, first.offset)

    def test_what_the_topic_does_not_take_is_refused(self, place: Place) -> None:
        with pytest.raises(MessageTooLarge):
            place.send(b"x" * (Settings().max_message_bytes + 1))
        topic, group = place.group("filtered", Filter(tags=["new"]))
        with pytest.raises(ConfigError, match="filter"):
            place.broker.group(topic, group.name, Filter(tags=["old"]))

    def test_a_delayed_message_waits_for_its_time(self, place: Place) -> None:
        topic, group = place.group()
        now = place.broker.now()
        (later,) = place.send("later", countdown=DELAY_S)
        (timed,) = place.send("timed", eta=now + timedelta(hours=1))
        assert later.offset is timed.offset is None
        assert place.channel.take_range(place.claimant(topic, group), 0) is NothingClaimed.EMPTY
        place.pass_time(DELAY_S)
        assert _bodies(place.take(topic, group).messages) == ["later"]
        place.pass_time(3700)
        assert _bodies(place.take(topic, group).messages) == ["timed"]

    def test_a_dedup_key_is_taken_until_its_message_is_finished(self, place: Place) -> None:
        topic, group = place.group()
        (first,) = place.send(1, dedup_key="k", dedup_window=0)
        (second,) = place.send(2, dedup_key="k", dedup_window=0)
        assert (first.created, second.created, second.id) == (True, False, first.id)
        place.pass_time(1)
        claim = place.take(topic, group)
        place.channel.flush(flush_of(claim, topic, claim.hi))
        assert place.send(3, dedup_key="k", dedup_window=0)[0].created

    def test_a_group_gets_what_its_filter_asks_for(self, place: Place) -> None:
        topic, group = place.group("filtered", Filter(tags=["new"], headers={"region": "eu"}))
        for tag, region in (("new", "eu"), ("old", "eu"), ("new", "us"), ("new", "eu")):
            place.send(f"{tag} {region}", tag=tag, headers={"region": region})
        claim = place.take(topic, group)
        assert (offsets(claim), claim.lo, claim.hi) == ([1, 4], 1, 4)

    def test_a_higher_priority_has_a_partition_of_its_own(self, place: Place) -> None:
        topic, group = place.group()
        place.send("low")
        place.send("high", priority=9)
        work = place.work_of(group)
        assert work is not None and sorted(work.partitions) == [0, partition_number(9, 0)]
        assert _bodies(place.take(topic, group, partition=partition_number(9, 0)).messages) == ["high"]

    @pytest.mark.parametrize("order", [Order.NONE, Order.PARTITION])
    def test_a_claim_knows_how_far_broadcasts_go(self, place: Place, order: Order) -> None:
        topic, group = place.group(order=order)
        bus, sent = place.broker.topic("bus"), 0
        place.send(1, 2)

        def taken(take: Callable[[Claimant], Claim | NothingClaimed]) -> Claim:
            nonlocal sent
            sent += len(place.send("command", topic="bus"))
            claim = take(replace(place.claimant(topic, group), broadcasts=[bus.id]))
            assert isinstance(claim, Claim), claim
            assert sum(end - 1 for end in claim.ends.values()) == sent
            assert {topic_id for topic_id, _ in claim.ends} == {bus.id}
            return claim

        in_order = partial(place.channel.take_range, partition=0)
        is_free = order is Order.NONE
        first = taken(in_order)
        place.channel.give_back(flush_of(first, topic, 1, finished=True), 1)
        rest = taken(place.channel.take_waiting if is_free else in_order)
        place.channel.flush(flush_of(rest, topic, 2, failures=[failed(2, retry_in_s=1.0)]))
        place.pass_time(2)
        assert offsets(taken(place.channel.take_retries if is_free else in_order)) == [2]

    def test_only_the_owner_ends_a_claim(self, place: Place) -> None:
        topic, group = place.group()
        place.send(1, 2)
        claim = place.take(topic, group)
        zombie = Claim(**{name: getattr(claim, name) for name in claim.__slots__} | {"claim_id": new_claim_id()})
        for end in (
            lambda: place.channel.flush(flush_of(zombie, topic, 2)),
            lambda: place.channel.give_back(flush_of(zombie, topic, 1), 1),
            lambda: place.channel.detach(flush_of(zombie, topic, 0), zombie),
        ):
            with pytest.raises(FenceLost):
                end()
        assert (place.channel.acked_to(claim), place.channel.acked_to(zombie)) == (0, None)
        place.channel.flush(flush_of(claim, topic, 1))
        assert place.channel.acked_to(claim) == 1
        place.channel.flush(flush_of(claim, topic, 2))
        with pytest.raises(FenceLost):
            place.channel.flush(flush_of(claim, topic, 2))

    def test_what_is_given_back_waits_with_no_attempt_charged(self, place: Place) -> None:
        topic, group = place.group()
        place.send(*range(1, 7))
        claim = place.take(topic, group)
        place.channel.give_back(flush_of(claim, topic, 2, finished=True), 2)
        work = place.work_of(group)
        assert work is not None and work.waiting
        part = place.channel.take_waiting(place.claimant(topic, group, batch=3))
        assert isinstance(part, Claim) and (offsets(part), [m.attempt for m in part.messages]) == ([3, 4, 5], [1, 1, 1])
        rest = place.channel.take_waiting(place.claimant(topic, group))
        assert isinstance(rest, Claim) and offsets(rest) == [6]
        place.channel.give_back(flush_of(part, topic, part.lo - 1), part.lo - 1)  # nothing of it was started
        again = place.channel.take_waiting(place.claimant(topic, group))
        assert isinstance(again, Claim) and offsets(again) == [3, 4, 5]

    @pytest.mark.parametrize("order", [Order.NONE, Order.PARTITION, Order.KEY])
    def test_suspects_are_left_to_clients_that_take_them(self, place: Place, order: Order) -> None:
        topic, group = place.group(order=order)
        place.send(*range(1, 5))
        claim = place.take(topic, group, batch=2)
        place.channel.give_back(flush_of(claim, topic, 0, finished=True), 0, Isolation.ALONE)
        is_free = order is Order.NONE
        for most in (Isolation.NONE, Isolation.FEW):
            claimant = replace(place.claimant(topic, group), most_isolation=most)
            take = place.channel.take_waiting if is_free else partial(place.channel.take_range, partition=0)
            assert not take(claimant), "in order, nothing passes them"
        claimant = place.claimant(topic, group)
        taken = place.channel.take_waiting(claimant) if is_free else place.channel.take_range(claimant, 0)
        assert isinstance(taken, Claim) and taken.lo == 1

    @pytest.mark.parametrize("order", [Order.NONE, Order.PARTITION, Order.KEY])
    def test_suspects_to_be_retried_are_left_to_clients_that_take_them(self, place: Place, order: Order) -> None:
        topic, group = place.group(order=order)
        place.send("poison", key="k")
        claim = place.take(topic, group)
        failure = replace(failed(1, retry_in_s=DELAY_S), suspect=True)
        place.channel.flush(flush_of(claim, topic, 1, failures=[failure]))
        place.pass_time(DELAY_S * 2)
        take = place.channel.take_retries if order is Order.NONE else partial(place.channel.take_range, partition=0)
        assert take(replace(place.claimant(topic, group), most_isolation=Isolation.FEW)) is NothingClaimed.EMPTY
        again = take(place.claimant(topic, group))
        assert isinstance(again, Claim) and offsets(again) == [1] and again.isolation is Isolation.ALONE

    def test_a_failed_message_is_retried_when_due_and_dead_in_the_end(self, place: Place) -> None:
        topic, group = place.group()
        (receipt,) = place.send("poison")
        claim = place.take(topic, group)
        place.channel.flush(flush_of(claim, topic, 1, failures=[failed(1, retry_in_s=30.0)]))
        assert not place.work_of(group)
        assert place.channel.take_retries(place.claimant(topic, group)) is NothingClaimed.EMPTY
        place.pass_time(31)
        work = place.work_of(group)
        assert work is not None and work.retries
        retry = place.retries(topic, group)
        assert ([m.attempt for m in retry.messages], retry.source) == ([2], ClaimSource.RETRY)
        place.channel.flush(flush_of(retry, topic, 1, failures=[failed(1, 2, dead="used up")]))
        assert not place.work_of(group)
        assert place.broker.cancel(receipt.id, "t") is False

    def test_a_retry_that_ends_well_is_done(self, place: Place) -> None:
        topic, group = place.group()
        place.send("flaky", "fine")
        claim = place.take(topic, group)
        place.channel.flush(flush_of(claim, topic, 2, failures=[failed(1)]))
        place.pass_time(1)
        retry = place.retries(topic, group)
        place.channel.flush(flush_of(retry, topic, 1, done_offsets=[(1, 2, 5)]))
        assert not place.work_of(group)

    def test_a_detached_message_frees_the_rest(self, place: Place) -> None:
        topic, group = place.group("keys", order=Order.KEY)
        place.send("slow", key="a")
        place.send("fast", "next", key="b")
        claim = place.take(topic, group)
        slow = Claim(
            claim.group_id,
            0,
            1,
            1,
            0,
            new_claim_id(),
            ClaimSource.RETRY,
            claim.isolation,
            claim.client_id,
            claim.messages[:1],
            order=Order.KEY,
            keys={1: b"a"},
        )
        place.channel.detach(flush_of(claim, topic, 2, finished=True), slow)
        rest = place.take(topic, group)
        assert (offsets(rest), rest.blocked_keys) == ([3], frozenset())
        place.channel.flush(flush_of(rest, topic, 3))
        place.channel.flush(flush_of(slow, topic, 1, done_offsets=[(1, 1, 5)]))
        assert not place.work_of(group)

    def test_a_failed_message_blocks_its_key_and_no_other(self, place: Place) -> None:
        topic, group = place.group("keys", order=Order.KEY)
        for key in ("a", "a", "b"):
            place.send(key, key=key)
        claim = place.take(topic, group)
        flush = flush_of(claim, topic, 3, failures=[failed(1, retry_in_s=30.0)], blocked=[(2, b"a")])
        place.channel.flush(flush)
        place.send("a", key="a")
        place.send("b", key="b")
        claim = place.take(topic, group)
        assert (offsets(claim), claim.blocked_keys) == ([4, 5], {b"a"})
        place.channel.flush(flush_of(claim, topic, 5, blocked=[(4, b"a")]))
        place.pass_time(31)
        again = place.take(topic, group)
        assert (offsets(again), again.source) == ([1, 2, 4], ClaimSource.RETRY)

    def test_a_partition_in_order_has_one_owner_and_waits_for_a_retry(self, place: Place) -> None:
        topic, group = place.group("strict", order=Order.PARTITION)
        place.send(1, 2, 3)
        claim = place.take(topic, group, batch=2)
        assert place.channel.take_range(place.claimant(topic, group), 0) is NothingClaimed.EMPTY
        place.channel.give_back(flush_of(claim, topic, 1, finished=True, failures=[failed(1, retry_in_s=30.0)]), 1)
        assert not isinstance(place.channel.take_range(place.claimant(topic, group), 0), Claim)
        place.pass_time(31)
        retry = place.take(topic, group)
        assert (offsets(retry), retry.source) == ([1], ClaimSource.RETRY)
        place.channel.flush(flush_of(retry, topic, 1, done_offsets=[(1, 2, 5)]))
        assert offsets(place.take(topic, group, batch=1)) == [2]

    def test_a_cancelled_message_is_not_run(self, place: Place) -> None:
        topic, group = place.group()
        first, second = place.send(1, 2)
        (later,) = place.send(3, countdown=30)
        for _ in range(2):  # again is no error
            assert place.broker.cancel(first.id, "t") and place.broker.cancel(later.id, None)
        assert _bodies(place.take(topic, group).messages) == [2]
        with pytest.raises(UnknownMessage):
            place.broker.cancel(str(uuid.uuid4()), "t")
        with pytest.raises(UnknownMessage):
            place.broker.cancel(second.id, "elsewhere")

    def test_results_are_kept_with_the_ack_and_forgotten_on_request(self, place: Place) -> None:
        topic, group = place.group()
        (receipt,) = place.send(1)
        uid = parse_uid(receipt.id)
        results = place.broker.results(["t"], None)
        assert results.find([uid]) == {}
        claim = place.take(topic, group)
        place.channel.flush(flush_of(claim, topic, 1, results=[ResultRow(uid, b"42", ttl_s=60.0)]))
        assert results.find([uid])[uid].body == b"42"
        results.forget([uid])
        assert results.find([uid]) == {}

    def test_a_key_of_once_is_done_until_its_time_is_over(self, place: Place) -> None:
        keys = place.broker.keys("mysql")
        assert keys is not None and place.broker.keys("paper") is None
        begun = keys.begin(b"effect", 60.0, 10.0)
        assert begun.entry is OnceState.FIRST
        keys.cancel(b"effect", begun.token)
        begun = keys.begin(b"effect", 60.0, 10.0)
        assert begun.entry is OnceState.FIRST and keys.finish(b"effect", begun.token, 60.0)
        assert keys.begin(b"effect", 60.0, 10.0).entry is OnceState.DONE


class TestMemory(Contract):
    """The broker in memory."""

    @pytest.fixture
    def place(self) -> Place:
        return memory_place()


class TestMysql(Contract):
    """The stream in MySQL, on each flavor."""

    @pytest.fixture
    def place(self, stream: Stream) -> Place:
        return mysql_place(stream)


def test_both_are_brokers() -> None:
    brokers: list[Broker] = [
        MemoryBroker(Settings(), lambda name: Settings().new_topic()),
        MysqlBroker(Settings(), lambda name: Settings().new_topic()),
    ]
    for broker in brokers:
        broker.close()
