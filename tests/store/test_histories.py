"""Random histories, played on the broker in memory and on the stream in MySQL: whatever is asked, both answer the same.

The one in memory is the specification. A history is chosen by what that one has answered, so a seed is all that a
failure needs to be played again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from emsworker.core.errors import EmsError
from emsworker.core.flush import Flush
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Failure, Group, Isolation, Message, Order, Topic
from emsworker.core.partitioner import partition_number
from tests.support.brokers import Place, memory_place, mysql_place
from tests.support.streams import Stream, failed, flush_of

STEPS, CLIENTS, MAX_ATTEMPTS, LATER_S = 120, 3, 3, 3600.0
PARTITIONS = (0, partition_number(5, 0))
KEYS, SUBJECTS = (None, "a", "b", "c"), (None, None, None, "x", "y")


@dataclass(frozen=True)
class Take:
    """An attempt to claim, by one of the clients."""

    number: int
    who: int
    batch: int
    kind: str
    partition: int
    most: Isolation


@dataclass
class Side:
    """One of the two brokers, its group, and the claims of its clients; both sides number them alike."""

    place: Place
    topic: Topic
    group: Group
    clients: list[str]
    held: dict[int, Claim] = field(default_factory=dict)
    ended: list[Claim] = field(default_factory=list)

    @classmethod
    def of(cls, place: Place, order: Order) -> Side:
        return cls(place, *place.group(order=order), [place.client() for _ in range(CLIENTS)])

    def seen(self, call: Callable[[Side], Any]) -> Any:
        """Return what a call returns, or which error it ends with."""
        try:
            return call(self)
        except EmsError as error:
            return type(error).__name__

    def take(self, one: Take, before: tuple[int, Ends] | None) -> Any:
        """Claim, and end an earlier claim in the same packet."""
        claimant = self.place.claimant(self.topic, self.group, one.batch, self.clients[one.who])
        claimant = replace(claimant, most_isolation=one.most)
        flushes = [] if before is None else [before[1].flush(self, before[0])]
        channel = self.place.channel
        if one.kind == "range":
            claim = channel.take_range(claimant, one.partition, flushes, wait=True)
        elif one.kind == "waiting":
            claim = channel.take_waiting(claimant, flushes, from_partition=one.partition)
        else:
            claim = channel.take_retries(claimant, flushes)
        if not isinstance(claim, Claim):
            return None  # a server that skips locked rows cannot always tell "busy" from "empty"
        self.held[one.number] = claim
        return _read(claim)

    def drop(self, number: int) -> None:
        self.ended.append(self.held.pop(number))

    def work(self) -> Any:
        work = self.place.work_of(self.group)
        return None if not work else (work.waiting, work.retries, sorted(work.partitions))


def _read(claim: Claim) -> Any:
    messages = [(one.offset, one.body, one.key, one.attempt) for one in claim.messages]
    return claim.source, claim.partition, messages, claim.gone, claim.isolation, sorted(claim.blocked_keys)


@dataclass
class Ends:
    """What became of the messages of a claim: of all of them, or of the first."""

    acked_to: int
    done: list[tuple[int, int, int]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    blocked: list[tuple[int, bytes | None]] = field(default_factory=list)
    whole: bool = True

    def flush(self, side: Side, number: int, **more: Any) -> Flush:
        claim = side.held[number]
        done = self.done if claim.source is ClaimSource.RETRY else []
        return flush_of(
            claim,
            side.topic,
            self.acked_to,
            **{"finished": self.whole, "done_offsets": done, "failures": self.failures, "blocked": self.blocked} | more,
        )


class History:
    """What happens, chosen step by step."""

    def __init__(self, seed: int, order: Order, memory: Side, mysql: Side) -> None:
        self.random, self.order = Random(seed), order
        self.memory, self.mysql = memory, mysql
        self.sent: list[str] = []  # ids
        self.direct: list[str] = []  # those of them that did not go through the outbox
        self.numbers = 0
        self.told: list[str] = []

    def both(self, what: str, call: Callable[[Side], Any]) -> Any:
        """Do the same on both sides, and return the answer, which is the same."""
        answer = self.memory.seen(call)
        self.told.append(f"{what}: {answer}")
        assert self.mysql.seen(call) == answer, "\n".join(self.told)
        return answer

    def step(self) -> None:
        choices: list[Callable[[], None]] = [self.send, self.take, self.take, self.end, self.end, self.give_back]
        rare: list[Callable[[], None]] = [self.cancel, self.pass_time, self.end_again, self.detach]
        self.random.choice(choices * 2 + rare)()
        self.both("work", lambda side: side.work())

    # -- the way in ----------------------------------------------------------------------------------------------------

    def send(self) -> None:
        r = self.random
        options: dict[str, Any] = {"key": r.choice(KEYS), "dedup_key": r.choice(SUBJECTS), "dedup_window": "30d"}
        options["priority"] = r.choice((None, None, 5))
        if r.random() < 0.1:
            options["countdown"] = LATER_S
        if self.direct and r.random() < 0.1:  # through the outbox a server cannot say if a uid was known
            options = {"uid": r.choice(self.direct)}
        ids = [str(uuid.UUID(int=r.getrandbits(128), version=4)) for _ in range(r.randint(1, 4))]
        for uid in ids:
            self.numbers += 1
            body, one = self.numbers, {"uid": uid} | options
            (told,) = self.both(
                f"send {body} {one}",
                lambda side, body=body, one=one: [
                    (receipt.id, receipt.created, receipt.partition, receipt.offset)
                    for receipt in side.place.send(body, **one)
                ],
            )
            self.sent.append(told[0])
            if told[3] is not None:
                self.direct.append(told[0])

    def cancel(self) -> None:
        if self.sent:
            uid = self.random.choice(self.sent)
            self.both(f"cancel {uid}", lambda side: side.place.broker.cancel(uid, "t"))

    def pass_time(self) -> None:
        seconds = self.random.choice((1.0, LATER_S + 1.0))
        self.told.append(f"{seconds} s pass")
        for side in (self.memory, self.mysql):
            side.place.pass_time(seconds)

    # -- the way out ---------------------------------------------------------------------------------------------------

    def take(self) -> None:
        r = self.random
        self.numbers += 1
        kind = "range" if self.order is not Order.NONE else r.choice(("range", "range", "waiting", "retries"))
        most = r.choice((Isolation.NONE, Isolation.LAST, Isolation.LAST))
        one = Take(self.numbers, r.randrange(CLIENTS), r.choice((1, 2, 5, 100)), kind, r.choice(PARTITIONS), most)
        before = None
        if self.memory.held and r.random() < 0.3:
            number = r.choice(sorted(self.memory.held))
            ends = self._run(self.memory.held[number], len(self.memory.held[number].messages))
            before = (number, ends) if ends.whole else None
        self.both(f"{one} after {before}", lambda side: side.take(one, before))
        if before is not None:
            self._drop(before[0])

    def end(self) -> None:
        if self.memory.held:
            number = self.random.choice(sorted(self.memory.held))
            ends = self._run(self.memory.held[number], len(self.memory.held[number].messages))
            if not ends.whole:
                self._give_back(number, ends, Isolation.NONE)
                return
            self.both(f"end {number} {ends}", lambda side: side.place.channel.flush(ends.flush(side, number)))
            self._drop(number)

    def give_back(self) -> None:
        if self.memory.held:
            number = self.random.choice(sorted(self.memory.held))
            claim = self.memory.held[number]
            ends = self._run(claim, self.random.randint(0, len(claim.messages)))
            self._give_back(number, ends, self.random.choice((Isolation.NONE, Isolation.NONE, Isolation.ALONE)))

    def _give_back(self, number: int, ends: Ends, isolation: Isolation) -> None:
        self.both(
            f"give back {number} {ends} {isolation!r}",
            lambda side: side.place.channel.give_back(
                ends.flush(side, number, finished=ends.acked_to >= side.held[number].lo), ends.acked_to, isolation
            ),
        )
        self._drop(number)

    def detach(self) -> None:
        """The first message of a claim runs long: it goes on beside the stream, and others of its key wait."""
        fresh = [
            number for number, one in self.memory.held.items() if one.source is ClaimSource.STREAM and one.messages
        ]
        if self.order is not Order.KEY or not fresh:
            return
        number, token = self.random.choice(sorted(fresh)), new_claim_id()
        claim = self.memory.held[number]
        slow = claim.messages[0]
        if claim.isolation or slow.key_bytes in claim.blocked_keys:
            return
        blocked = [(one.offset, one.key_bytes) for one in claim.messages[1:]]
        ends = Ends(claim.hi, blocked=blocked)

        def detach(side: Side) -> None:
            span = {"lo": slow.offset, "hi": slow.offset, "acked_to": slow.offset - 1, "claim_id": token}
            kept = {"source": ClaimSource.RETRY, "keys": {slow.offset: slow.key_bytes}, "blocked_keys": frozenset()}
            rest = replace(side.held[number], messages=side.held[number].messages[:1], **span, **kept)
            side.place.channel.detach(ends.flush(side, number), rest)
            side.ended.append(side.held[number])
            side.held[number] = rest

        self.both(f"detach {slow.offset} of {number}", detach)

    def _drop(self, number: int) -> None:
        for side in (self.memory, self.mysql):
            side.drop(number)

    def end_again(self) -> None:
        """What has ended has no owner any more."""
        if self.memory.ended:
            number = self.random.randrange(len(self.memory.ended))

            def flush(side: Side) -> None:
                claim = replace(side.ended[number], claim_id=new_claim_id())
                side.place.channel.flush(flush_of(claim, side.topic, claim.hi))

            assert self.both(f"end {number} again", flush) == "FenceLost"

    def _run(self, claim: Claim, count: int) -> Ends:
        """Run the first messages of a claim, in the order that its group asks for."""
        ends = Ends(claim.lo - 1, failures=[Failure.gone(*one) for one in claim.gone])
        keys = set(claim.blocked_keys)
        for message in claim.messages[:count]:
            ends.acked_to = message.offset
            if self.order is Order.KEY and message.key_bytes in keys:
                ends.blocked.append((message.offset, message.key_bytes))
                continue
            failure = self._outcome(message)
            if failure is None:
                ends.done.append((message.offset, message.attempt, 5))
                continue
            ends.failures.append(failure)
            if failure.retry_in_s is not None and self.order is Order.PARTITION:
                ends.whole = message is claim.messages[-1]
                break
            if failure.retry_in_s is not None and message.key_bytes is not None:
                keys.add(message.key_bytes)
        else:
            ends.whole = count == len(claim.messages)
        if ends.whole:
            ends.acked_to = claim.hi
        return ends

    def _outcome(self, message: Message) -> Failure | None:
        outcome = self.random.choice(("done", "done", "now", "later", "suspect", "dead"))
        if outcome == "done":
            return None
        if outcome == "dead" or message.attempt >= MAX_ATTEMPTS:
            return failed(message.offset, message.attempt, dead="used up")
        failure = failed(message.offset, message.attempt, LATER_S if outcome == "later" else 0.0)
        return replace(failure, suspect=outcome == "suspect")


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("seed", range(6))
def test_both_brokers_answer_the_same(stream: Stream, seed: int, order: Order) -> None:
    history = History(seed, order, Side.of(memory_place(), order), Side.of(mysql_place(stream), order))
    for _ in range(STEPS):
        history.step()
    taken = [line for line in history.told if line.startswith("Take") and "ClaimSource" in line]
    assert len(taken) > 2, "claims are what it is about"
