"""Fair groups that limit how many messages of each key run at once: never more, nothing lost, and no lane stops."""

import random
from dataclasses import replace

from emsworker.beat.lanes import restart_lanes
from emsworker.beat.services import LedStream, leader_services
from emsworker.core.config import Settings
from emsworker.core.limits import Limit
from emsworker.core.model import Claim
from emsworker.core.work import Claimant
from emsworker.store.groups import fair, limits, progress
from tests.store.test_fair_groups import Lanes
from tests.support.streams import Stream, flush_of, in_threads


class Limited(Lanes):
    """A fair group with a limit for each key, and the claims that are held of it."""

    def __init__(self, stream: Stream, most: int, partitions: int = 1) -> None:
        super().__init__(stream, partitions, max_attempts=999)
        limits.set_limit(stream.session, self.group.id, Limit(max_running_per_key=most))
        self.held: list[Claim] = []

    def claimant(self, batch: int) -> Claimant:
        return replace(super().claimant(batch), per_key=True)

    def claim(self) -> str | None:
        """Claim one message and hold it; return its key."""
        claim = fair.take_waiting(self.stream.session, self.claimant(9))
        if not isinstance(claim, Claim):
            return None
        self.held.append(claim)
        (message,) = claim.messages
        return str(message.body)

    def claims(self, most: int) -> list[str]:
        """Claim this many, or all that may be claimed; return their keys, sorted."""
        return sorted(filter(None, (self.claim() for _ in range(most))))

    def running(self, key: str) -> list[Claim]:
        """The held claims of a key."""
        return [one for one in self.held if one.messages[0].body == key]

    def end(self, claim: Claim, *, fails: bool = False) -> None:
        """End a held claim."""
        self.held.remove(claim)
        self.finish(claim, *([claim.lo] if fails else []))

    def die(self) -> None:
        """Let the client die, recover what it held, and let the time pass until all of that is due."""
        self.stream.expire(self.client_id)
        self.client_id = self.stream.client()
        self.stream.recover()
        self.stream.rows("UPDATE ems_retry SET due_at = NOW(6) WHERE due_at BETWEEN NOW(6) AND '9000-01-01'")
        self.held.clear()


def test_a_key_never_holds_more_and_the_others_pass_a_flood_that_waits_for_room(stream: Stream) -> None:
    lanes = Limited(stream, 2)
    lanes.send(*["flood"] * 300)
    assert lanes.claims(3) == ["flood", "flood"]
    lanes.send("small", "other", "small", "small")
    assert lanes.claims(9) == ["other", "small", "small"]
    lanes.end(lanes.running("flood")[0])
    assert lanes.claims(2) == ["flood"], "its place is free as soon as one has ended"
    lanes.die()
    assert lanes.claims(9) == ["flood", "flood", "other", "small", "small"]
    limits.set_limit(stream.session, lanes.group.id, Limit(max_running_per_key=5))
    assert lanes.claims(9) == ["flood", "flood", "flood", "small"]
    limits.set_limit(stream.session, lanes.group.id, Limit())
    assert lanes.claims(20) == ["flood"] * 20, "without a limit it goes on as a fair group"


def test_whatever_is_done_no_key_exceeds_its_limit_and_every_message_runs(stream: Stream) -> None:
    rng = random.Random(11)
    lanes = Limited(stream, 2, partitions=2)
    sent = 0
    for _ in range(150):
        deed = rng.random()
        if deed < 0.2:
            count = rng.choice((1, 1, 3, 30))
            lanes.send(*[rng.choice("abcd")] * count, partition=rng.randrange(2))
            sent += count
        elif deed < 0.5 and lanes.held:
            lanes.end(rng.choice(lanes.held), fails=rng.random() < 0.2)
        elif deed < 0.55 and lanes.held:
            claim = lanes.held.pop(rng.randrange(len(lanes.held)))
            progress.give_back(stream.session, flush_of(claim, lanes.topic, claim.lo - 1, finished=True), claim.lo - 1)
        elif deed < 0.58:
            lanes.die()
        else:
            lanes.claim()
        assert all(len(lanes.running(key)) <= 2 for key in "abcd")
    lanes.die()
    while lanes.claim():
        lanes.end(lanes.held[0])
    runs = stream.rows("SELECT `partition`, `offset`, COUNT(*) FROM ems_attempt WHERE outcome = 'done' GROUP BY 1, 2")
    assert len(runs) == sent and {count for *_, count in runs} == {1}
    assert lanes.left() == (0, 0)
    assert fair.restart_lanes(stream.session) == 0, "nothing was left to the beat"


def test_a_lane_whose_first_message_is_cancelled_goes_on(stream: Stream) -> None:
    lanes = Limited(stream, 1)
    second = [lanes.app.send("t", "a", headers={"tenant": "a"}) for _ in range(5)][1]
    lanes.send("b")
    assert lanes.claims(9) == ["a", "b"]
    assert lanes.app.cancel(second)
    lanes.end(lanes.running("a")[0])
    assert lanes.claims(9) == []
    assert restart_lanes in leader_services(LedStream())
    assert restart_lanes(stream.session, Settings(beat_s=2.0)) == 2.0
    for _ in range(3):
        assert lanes.claims(9) == ["a"]
        lanes.end(lanes.running("a")[0])
    assert lanes.claims(9) == [] and fair.restart_lanes(stream.session) == 0


def test_keys_without_room_cost_a_row_each_however_many_of_their_messages_wait(stream: Stream) -> None:
    def reads() -> int:
        found = stream.session.rows("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(value) for _, value in found)

    def cost() -> int:
        before = reads()
        assert lanes.claim() == "quick"
        taken = reads() - before
        lanes.end(lanes.running("quick")[0])
        return taken

    lanes = Limited(stream, 2)
    lanes.send(*["slow"] * 10, *["quick"] * 10)
    assert lanes.claims(9) == ["quick", "quick", "slow", "slow"]
    for claim in lanes.running("quick"):
        lanes.end(claim)
    few = cost()
    lanes.send(*["slow"] * 3000, *["quick"] * 3000)
    cost()
    assert max(cost() for _ in range(20)) <= few * 1.5 + 20


def test_clients_that_claim_at_once_do_not_exceed_it_together(stream: Stream) -> None:
    lanes = Limited(stream, 3)
    lanes.send(*["a"] * 50)
    sessions = [stream.new_session() for _ in range(6)]

    def claim(number: int) -> int:
        claimant = replace(lanes.claimant(1), client_id=clients[number])
        return isinstance(fair.take_waiting(sessions[number], claimant), Claim)

    for _ in range(5):
        clients = [stream.client() for _ in sessions]
        assert sum(in_threads(6, claim)) == 3
        for client in clients:
            stream.expire(client)
        stream.recover()
        stream.rows("UPDATE ems_retry SET due_at = NOW(6) WHERE due_at BETWEEN NOW(6) AND '9000-01-01'")
    for session in sessions:
        session.close()
