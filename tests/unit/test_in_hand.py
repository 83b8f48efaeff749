"""A consumer's suspect messages: each has the process to itself for the time of its isolation."""

import pytest

from emsworker.consume import in_hand as module
from emsworker.consume.claim_progress import ClaimWrite, Ended
from emsworker.consume.in_hand import InHand, PulledClaim, PulledRun
from emsworker.core.codec import Decoder
from emsworker.core.model import Claim, ClaimSource, Isolation, Message

ROOM_S = Isolation.ALONE.room_s
MOST = 10


class Consumer:
    """A consumer whose claims are of one message each."""

    def __init__(self) -> None:
        self.in_hand = InHand()

    def claim(self, offset: int, isolation: Isolation = Isolation.NONE) -> PulledClaim:
        message = Message("t", 0, (offset, bytes(16), None, None, b"", b"1", "2026-01-01"), Decoder())
        claim = Claim(1, 0, offset, offset, offset - 1, offset, ClaimSource.STREAM, isolation, "c", [message])
        pulled = PulledClaim(claim, 1, 60, (0, 0), self.in_hand.lock, 60)
        self.in_hand.add(pulled)
        return pulled

    def deliver(self) -> tuple[list[Message], PulledClaim | None]:
        taken: list[Message] = []
        named = self.in_hand.deliver(MOST, MOST, taken)
        return taken, named

    def settle(self, *messages: Message) -> None:
        ends = [message.run for message in messages]
        self.in_hand.settle([(run, Ended(run.message)) for run in ends if isinstance(run, PulledRun)])


def name(pulled: PulledClaim | None) -> int | None:
    """Write down what a delivery has asked for; return the message that a crash would charge."""
    assert pulled is not None
    write = pulled.announce()
    assert write is not None
    pulled.confirm(write)
    return write.flush.running


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr(module, "ticks", lambda: clock[0])
    return clock


@pytest.fixture
def consumer(now: list[float]) -> Consumer:
    return Consumer()


def test_nothing_is_delivered_beside_a_suspect_until_it_is_settled(consumer: Consumer) -> None:
    consumer.claim(1, Isolation.ALONE)
    consumer.claim(2)
    (suspect,), named = consumer.deliver()
    assert (suspect.offset, name(named)) == (1, 1)
    assert consumer.deliver() == ([], None)
    consumer.settle(suspect)
    (other,), named = consumer.deliver()
    assert other.offset == 2 and name(named) is None, "its end is written down first"
    assert named is not None and named.closed


def test_a_suspect_waits_until_the_others_are_settled_and_nothing_more_is_delivered(consumer: Consumer) -> None:
    consumer.claim(1)
    (other,), _ = consumer.deliver()
    consumer.claim(2, Isolation.ALONE)
    consumer.claim(3)
    assert consumer.deliver() == ([], None)
    consumer.settle(other)
    (suspect,), named = consumer.deliver()
    assert (suspect.offset, name(named)) == (2, 2)


def test_one_that_waited_for_its_room_has_company_and_is_not_named(consumer: Consumer, now: list[float]) -> None:
    consumer.claim(1)
    consumer.deliver()
    suspect = consumer.claim(2, Isolation.ALONE)
    consumer.claim(3)
    assert consumer.deliver() == ([], None)
    now[0] += ROOM_S - 0.1
    assert consumer.deliver() == ([], None)
    assert suspect.plan(0.1) is None, "it is not given back meanwhile as a hoard"
    now[0] += 0.2
    taken, named = consumer.deliver()
    assert ([message.offset for message in taken], named) == ([2, 3], None)
    assert suspect.plan(0.1, at_once=True) is None, "nothing is to be written"


def test_after_its_room_others_come_and_its_name_is_removed_first(consumer: Consumer, now: list[float]) -> None:
    consumer.claim(1, Isolation.LONGER)
    (suspect,), named = consumer.deliver()
    assert name(named) == 1
    consumer.claim(2)
    now[0] += Isolation.LONGER.room_s - 0.1
    assert consumer.deliver() == ([], None)
    now[0] += 0.2
    (other,), named = consumer.deliver()
    assert (other.offset, name(named)) == (2, None)
    assert consumer.deliver() == ([], None), "nothing is left"
    consumer.settle(suspect, other)


def test_if_the_name_cannot_be_removed_the_others_go_on_waiting(consumer: Consumer, now: list[float]) -> None:
    suspect = consumer.claim(1, Isolation.ALONE)
    assert name(consumer.deliver()[1]) == 1
    consumer.claim(2)
    now[0] += ROOM_S + 0.1
    write = suspect.progress.write = ClaimWrite(suspect.progress.flush(1.0))  # one is under way
    others, named = consumer.deliver()
    assert named is suspect and suspect.announce() is None
    consumer.in_hand.put_back(others)
    suspect.confirm(write)
    (_,), named = consumer.deliver()
    assert name(named) is None


def test_if_it_is_not_known_whether_the_name_was_removed_the_others_go_on_waiting(
    consumer: Consumer, now: list[float]
) -> None:
    suspect = consumer.claim(1, Isolation.ALONE)
    assert name(consumer.deliver()[1]) == 1
    consumer.claim(2)
    now[0] += ROOM_S + 0.1
    others, named = consumer.deliver()
    assert named is suspect and suspect.announce() is not None, "it is sent, and the answer is lost"
    for _ in range(2):
        consumer.in_hand.put_back(others)
        others, named = consumer.deliver()
        assert named is suspect and suspect.announce() is None
    consumer.in_hand.put_back(others)
    assert suspect.write is not None
    suspect.confirm(suspect.write)
    (_,), named = consumer.deliver()
    assert named is None


def test_a_suspect_that_did_not_reach_the_program_is_unnamed_before_others_do(consumer: Consumer) -> None:
    suspect = consumer.claim(1, Isolation.ALONE)
    taken, named = consumer.deliver()
    assert name(named) == 1
    consumer.in_hand.put_back(taken)
    suspect.unwanted = True
    consumer.claim(2)
    (_,), named = consumer.deliver()
    assert name(named) is None


def test_what_is_asked_for_of_one_group_waits_for_suspects_of_all(consumer: Consumer, now: list[float]) -> None:
    consumer.claim(1)
    (other,) = consumer.deliver()[0]
    suspect = consumer.claim(2, Isolation.ALONE)
    suspect.claim.group_id = 2
    consumer.claim(3)
    taken: list[Message] = []
    assert consumer.in_hand.deliver(1, MOST, taken, 1) is None
    assert (taken, consumer.in_hand.may_claim()) == ([], False)
    consumer.settle(other)
    assert name(consumer.in_hand.deliver(1, MOST, taken, 2)) == 2
    assert not consumer.in_hand.may_claim()
    consumer.settle(*taken)
    taken.clear()
    assert consumer.in_hand.may_claim()
    assert name(consumer.in_hand.deliver(1, MOST, taken, 1)) is None
    assert [message.offset for message in taken] == [3]


def test_at_the_last_level_it_is_alone_for_as_long_as_it_takes(consumer: Consumer, now: list[float]) -> None:
    consumer.claim(1)
    (other,), _ = consumer.deliver()
    consumer.claim(2, Isolation.LAST)
    consumer.deliver()
    now[0] += 1e6
    assert consumer.deliver() == ([], None)
    consumer.settle(other)
    (_,), named = consumer.deliver()
    assert name(named) == 2
    consumer.claim(3)
    now[0] += 1e6
    assert consumer.deliver() == ([], None)
