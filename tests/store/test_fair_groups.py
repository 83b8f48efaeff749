"""Fair groups: what waits is taken in turn by key, and nothing is lost or taken twice on the way through the lanes."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from emsworker import Filter, Outgoing
from emsworker.core.model import Claim, ClaimSource, Group, Isolation, Message, Topic
from emsworker.core.work import Claimant, NothingClaimed
from emsworker.store.groups import fair, progress
from tests.support.streams import Stream, failed, flush_of, wait_until


class Lanes:
    """A fair group, and a client that takes from it."""

    def __init__(self, stream: Stream, partitions: int = 1, **settings: object) -> None:
        self.stream = stream
        self.topic: Topic = stream.topic(partitions=partitions)
        self.group: Group = stream.group(self.topic, **settings)
        self.app = stream.app()
        self.client_id = stream.client()

    def send(self, *keys: str, partition: int | None = None) -> None:
        """Send one message for each of these keys, with the key as its body."""
        messages = [Outgoing("t", key, headers={"tenant": key} if key else {}, partition=partition) for key in keys]
        self.app.send_many("t", messages)

    def claimant(self, batch: int) -> Claimant:
        """Who takes work, with a new claim id."""
        return replace(self.stream.claimant(self.topic, self.group, self.client_id, batch), fair="tenant")

    def take(self, batch: int = 1, partition: int = 0) -> Claim | NothingClaimed:
        """Move what is new in a partition, and claim."""
        return fair.take_new(self.stream.session, self.claimant(batch), partition, wait=True)

    def finish(self, claim: Claim, *failing: int, retry_in_s: float = 0.0) -> None:
        """End all messages of a claim: these offsets fail, the others are done."""
        done = [(one.offset, one.attempt, 1) for one in claim.messages if one.offset not in failing]
        failures = [failed(one.offset, one.attempt, retry_in_s) for one in claim.messages if one.offset in failing]
        progress.flush(self.stream.session, flush_of(claim, self.topic, claim.hi, done_offsets=done, failures=failures))

    def run(self, batch: int = 1, partition: int = 0) -> list[str]:
        """Claim and finish; return the keys."""
        claim = self.take(batch, partition)
        if not isinstance(claim, Claim):
            return []
        self.finish(claim)
        return [_key(one) for one in claim.messages]

    def move(self, partition: int) -> None:
        """Move what is new in a partition, and claim nothing."""
        claimant = replace(self.claimant(1), most_isolation=-1)
        assert fair.take_new(self.stream.session, claimant, partition, wait=True) is NothingClaimed.EMPTY

    def left(self) -> tuple[int, int]:
        """Waiting messages, and claims that are not done."""
        open_claims = self.stream.value("SELECT COUNT(*) FROM ems_claim WHERE state <> 'done'")
        return self.stream.value("SELECT COUNT(*) FROM ems_retry"), open_claims


def _key(message: Message) -> str:
    return str(message.body)


def test_a_key_that_comes_new_is_next_whatever_flood_waits(stream: Stream) -> None:
    lanes = Lanes(stream)
    lanes.send(*["flood"] * 4500)
    served = lanes.run()
    lanes.send("small")
    served += [*lanes.run(), *lanes.run()]
    assert served == ["flood", "flood", "small"], "one message of the flood was first before it came"
    lanes.send(*["small"] * 3, *["other"] * 3)
    order = [key for _ in range(12) for key in lanes.run()]
    assert Counter(order[:9]) == {"flood": 3, "small": 3, "other": 3}, order
    assert order[9:] == ["flood"] * 3
    for _ in range(12):
        order += lanes.run(400)
    assert Counter(served + order) == {"flood": 4500, "small": 4, "other": 3}
    assert lanes.left() == (0, 0)


def test_two_claims_after_it_was_sent_a_message_runs_whichever_lanes_a_thread_looks_at(stream: Stream) -> None:
    lanes = Lanes(stream, partitions=3)
    for partition in range(3):
        lanes.send(*["flood"] * 300, partition=partition)
        lanes.move(partition)
    for number in range(12):
        lanes.send("small", partition=number % 3)
        served = []
        for _ in range(2):
            claim = fair.take_waiting(stream.session, lanes.claimant(1))
            assert isinstance(claim, Claim)
            served += map(_key, claim.messages)
            lanes.finish(claim)
        assert "small" in served, "each claim looks for what is new, and a new key has the first place, or the second"
    lanes.send(*["flood"] * 3, partition=1)
    with stream.other() as holder, holder.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_cursor FOR UPDATE")
        assert isinstance(fair.take_waiting(stream.session, lanes.claimant(1)), Claim), "who moves holds up nobody"
        holder.rollback()
        cursor.execute("SELECT `offset` FROM ems_retry FORCE INDEX (due) WHERE claim_id IS NULL LIMIT 1 FOR UPDATE")
        for size in (1, 4):
            claim = fair.take_waiting(stream.session, lanes.claimant(size))
            assert isinstance(claim, Claim) and len(claim.messages) == size, "nor does who is just claiming"
        holder.rollback()


def _mine(waiting: dict[str, int], claim: Claim) -> None:
    for one in claim.messages:
        waiting[_key(one)] += 1


@pytest.mark.parametrize("accidents", [False, True])
def test_lanes_are_fair_and_lose_nothing_whatever_is_done(stream: Stream, accidents: bool) -> None:
    """Random deeds beside a model: of the keys that wait none gets more than its share, and each message runs once."""
    rng = random.Random(7)
    lanes = Lanes(stream, partitions=2, max_attempts=999)
    waiting: Counter[str] = Counter()
    served: Counter[str] = Counter()  # of each key, since the last one came
    held: list[Claim] = []
    sent = 0
    for _ in range(200):
        deed = rng.random()
        if deed < 0.2:
            keys = [rng.choice("abcdef")] * rng.choice((1, 1, 3, 40))
            lanes.send(*keys, partition=rng.randrange(2))
            waiting[keys[0]] += len(keys)
            sent += len(keys)
            served.clear()
        elif deed < 0.3 and held and accidents:
            if rng.random() < 0.5:
                claim = held.pop(rng.randrange(len(held)))
                back = flush_of(claim, lanes.topic, claim.lo - 1, finished=True)
                progress.give_back(stream.session, back, claim.lo - 1)
                _mine(waiting, claim)
                continue
            stream.expire(lanes.client_id)  # its owner dies
            lanes.client_id = stream.client()
            stream.recover()
            stream.rows("UPDATE ems_retry SET due_at = NOW(6) WHERE due_at > NOW(6)")
            for claim in held:
                _mine(waiting, claim)
            held.clear()
        else:
            lanes.move(0)
            claim = lanes.take(1, 1)
            if not isinstance(claim, Claim):
                assert not +waiting
                continue
            (message,) = claim.messages
            key = _key(message)
            waiting[key] -= 1
            served[key] += 1
            others = [one for one in +waiting if one != key]
            assert accidents or all(served[key] <= served[one] + 2 for one in others), (key, served, waiting)
            if rng.random() < 0.3:
                held.append(claim)
            else:
                lanes.finish(claim)
    for claim in held:
        lanes.finish(claim)
    lanes.move(0)
    while lanes.run(20, 1):
        pass
    runs = stream.rows("SELECT `partition`, `offset`, COUNT(*) FROM ems_attempt WHERE outcome = 'done' GROUP BY 1, 2")
    assert len(runs) == sent and {count for *_, count in runs} == {1}
    assert lanes.left() == (0, 0)


def test_a_retry_comes_back_among_its_key_and_a_flood_of_retries_holds_up_nobody(stream: Stream) -> None:
    lanes = Lanes(stream, max_attempts=9)
    lanes.send(*["bad"] * 300, *["good"] * 20)
    claim = lanes.take(250)
    assert isinstance(claim, Claim) and claim.source is ClaimSource.RETRY
    assert Counter(map(_key, claim.messages)) == {"bad": 230, "good": 20}, "as many of each as there are"
    lanes.finish(claim, *(one.offset for one in claim.messages))
    wait_until(lambda: stream.value("SELECT COUNT(*) FROM ems_retry WHERE due_at <= NOW(6)") == 320, 5)
    lanes.send("new")
    taken = [key for _ in range(6) for key in lanes.run()]
    assert {"new", "good", "bad"} <= set(taken), taken
    attempts = {one.attempt for _ in range(40) if isinstance(claim := lanes.take(), Claim) for one in claim.messages}
    assert attempts == {1, 2}, "neither retries nor what never ran wait for all of the others"


def test_what_the_group_does_not_want_and_what_is_damaged(stream: Stream) -> None:
    lanes = Lanes(stream, filter=Filter(tags=["new"]))
    lanes.app.send("t", "no", headers={"tenant": "x"})
    lanes.app.send("t", "long", headers={"tenant": "ü" * 400}, tag="new")
    lanes.app.send("t", "none", tag="new")
    cancelled = lanes.app.send("t", "cancelled", headers={"tenant": "x"}, tag="new")
    assert lanes.app.cancel(cancelled)
    lanes.app.send("t", "late", headers={"tenant": "x"}, tag="new")
    damaged = lanes.app.send("t", "damaged", headers={"tenant": "x"}, tag="new")
    stream.rows("UPDATE ems_message SET headers = X'7B22FF' WHERE `offset` = %s", damaged.offset)
    assert lanes.take(1) is not NothingClaimed.BUSY
    assert stream.cursor(lanes.group) == 7
    keys = sorted(row[0] for row in stream.rows("SELECT `key` FROM ems_retry"))
    assert keys == [b"", b"", b"x", ("ü" * 400).encode()[:255]], "what names no key has one in common"


def test_a_busy_cursor_is_no_reason_to_wait_while_lanes_have_messages(stream: Stream) -> None:
    lanes = Lanes(stream)
    lanes.send("a", "b", "c")
    assert lanes.run() == ["a"]
    with stream.other() as holder, holder.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_cursor FOR UPDATE")
        claimant = lanes.claimant(2)
        claim = fair.take_new(stream.session, claimant, 0)
        assert isinstance(claim, Claim) and [*map(_key, claim.messages)] == ["b", "c"]
        lanes.finish(claim)
        assert fair.take_new(stream.session, lanes.claimant(1), 0) is NothingClaimed.EMPTY
        lanes.send("d")
        assert fair.take_new(stream.session, lanes.claimant(1), 0) is NothingClaimed.BUSY
        holder.rollback()
    assert lanes.run() == ["d"]
    assert claim.isolation is Isolation.NONE


def test_a_claim_costs_the_same_whatever_waits(stream: Stream) -> None:
    """Rows that the server reads for a claim, with ten keys and a hundred messages, and with far more of both."""

    def reads() -> int:
        found = stream.session.rows("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(value) for _, value in found)

    def cost(lanes: Lanes) -> float:
        lanes.take(1)
        before = reads()
        for _ in range(20):
            fair.take_waiting(stream.session, lanes.claimant(1))
        return (reads() - before) / 20

    lanes = Lanes(stream)
    lanes.send(*(f"few-{n % 10}" for n in range(100)))
    few = cost(lanes)
    lanes.send(*["large"] * 3000, *(f"many-{n % 1500}" for n in range(3000)))
    before = reads()
    lanes.take()
    assert reads() - before <= 60 * 6000, "moving costs the same for each message"
    assert cost(lanes) <= few * 1.5 + 20, "nothing is counted, and no key is looked at in vain"
