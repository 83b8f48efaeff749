"""Counts again, in SQL, where every offset is, and holds it against the oracle and the promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emsworker.core.model import Group, Order, Topic
from emsworker.store.engine.session import Session
from verification.property.oracle import Oracle

Rows = tuple[tuple[Any, ...], ...]
_WHERE = "WHERE group_id = %(group_id)s AND `partition` = 0"
_STATEMENTS = {
    "cursor": f"SELECT next_offset, skipped FROM ems_cursor {_WHERE}",
    "partition": "SELECT log_start, trimmed FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = 0",
    "claims": f"SELECT lo, hi, acked_to, state, source, client_id, claim_id, isolation, detached FROM ems_claim {_WHERE} ORDER BY lo",
    "retries": f"SELECT `offset`, attempt, claim_id, isolation, due_at <= NOW(6), due_at > '9999-01-01' FROM ems_retry {_WHERE}",
    "dead": f"SELECT `offset` FROM ems_dead {_WHERE}",
    "attempts": f"SELECT `offset` FROM ems_attempt {_WHERE} AND outcome IN ('done', 'ignored', 'expired', 'cancelled')",
    "skips": f"SELECT lo, hi FROM ems_skip {_WHERE}",
    "messages": "SELECT `offset`, kind, `key` FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = 0",
    "restored": "SELECT `offset` FROM ems_restored WHERE topic_id = %(topic_id)s AND `partition` = 0",
}


def recount(session: Session, topic: Topic, group: Group) -> Tables:
    """One packet, one look."""
    packet = session.packet()
    for statement in _STATEMENTS.values():
        packet.add(statement, {"group_id": group.id, "topic_id": topic.id})
    return Tables(**dict(zip(_STATEMENTS, [result.rows for result in packet.send()], strict=True)))


@dataclass(frozen=True)
class Tables:
    """The rows of each table that tell where the group's messages are."""

    cursor: Rows
    partition: Rows
    claims: Rows
    retries: Rows
    dead: Rows
    attempts: Rows
    skips: Rows
    messages: Rows
    restored: Rows

    def check(self, oracle: Oracle) -> None:
        """First the promises, then every detail."""
        self._check_promises(oracle.order)
        self._check_places(oracle)
        self._check_claims(oracle)
        retries = {row[0]: (row[1], row[2], row[3], bool(row[4]), bool(row[5])) for row in self.retries}
        expected = {o: (r.attempt, r.claim_id, r.isolation, r.due, r.blocked) for o, r in oracle.retries.items()}
        assert retries == expected
        assert {row[0]: row[1] for row in self.messages} == oracle.rows
        assert {row[0] for row in self.restored} == oracle.restored
        assert self.cursor[0][1] == oracle.passed_over, "what is passed over is counted"

    def _claimed(self) -> list[range]:
        return [range(c[2] + 1, c[1] + 1) for c in self.claims if c[3] != "done" and c[4] == "stream"]

    def _check_promises(self, order: Order) -> None:
        cursor, log_start = self.cursor[0][0], self.partition[0][0]
        rows = {row[0]: row[1] for row in self.messages}
        skipped = {offset for lo, hi in self.skips for offset in range(lo, hi + 1)}
        open_ = [offset for offset in range(log_start, cursor) if offset not in rows and offset not in skipped]
        assert not open_, "a cursor never passes what is not resolved, unless it is moved by hand"
        needed = [cursor, *(one.start for one in self._claimed())]
        restored = {row[0] for row in self.restored}
        needed += [row[0] for row in self.retries if row[0] not in restored]
        assert log_start <= min(needed), "the log start offset is never above what is needed"
        assert all(row[0] in rows for row in self.retries), "what is to run again has its body, or was cancelled"
        claims = {c[6] for c in self.claims if c[3] == "start" and c[4] == "retry"}
        assert {row[2] for row in self.retries} - {None} <= claims, "a claimed retry has its claim"
        assert order is Order.NONE or sum(c[3] == "start" and not c[8] for c in self.claims) <= 1, "one owner"
        if order is Order.KEY:
            self._check_turns()

    def _check_turns(self) -> None:
        """Of what waits of a key, and is not claimed, the first has its turn."""
        keys = {row[0]: row[2] for row in self.messages}
        seen = {keys[row[0]] for row in self.retries if row[2] is not None}
        for row in sorted(self.retries):
            if row[2] is None and (key := keys[row[0]]) not in seen:
                assert not row[5], f"{row[0]} waits for an earlier message of its key, but there is none"
                seen |= {key}

    def _check_places(self, oracle: Oracle) -> None:
        """Every offset below the cursor is in exactly one place, those above in none."""
        cursor, log_start = self.cursor[0][0], self.partition[0][0]
        assert (cursor, log_start) == (oracle.cursor, oracle.log_start)
        places: dict[int, list[str]] = {}
        cancelled = {row[0] for row in self.messages if row[1] == "cancelled"}
        nothing_to_run = {row[0] for row in self.messages if row[1] != "message"}
        found = [("claim", offset) for one in self._claimed() for offset in one]
        found += [("retry", row[0]) for row in self.retries]
        found += [("dead", row[0]) for row in self.dead if row[0] not in cancelled]
        for place, offset in found:
            places.setdefault(offset, []).append(place)
        assert all(len(several) == 1 for several in places.values()), f"in several places: {places}"
        over = [range(lo, hi + 1) for lo, hi in self.skips]
        over += [range(c[0], c[2] + 1) for c in self.claims if c[4] == "stream"]
        over += [range(row[0], row[0] + 1) for row in self.attempts]
        for offset in range(log_start, cursor):
            if offset not in places and offset not in nothing_to_run:
                assert any(offset in one for one in over), f"{offset} is in no place"
        live = {
            o: place
            for o, place in oracle.places().items()
            if place != "over" and (o not in cancelled or place != "dead")
        }
        assert {o: several[0] for o, several in places.items()} == live

    def _check_claims(self, oracle: Oracle) -> None:
        mine = {(c.lo, c.hi, c.client, i, c.isolation, c.of_retries, c.detached) for i, c in oracle.live.items()}
        found = [c for c in self.claims if c[3] != "done"]
        assert {(c[0], c[1], c[5], c[6], c[7], c[4] == "retry", bool(c[8])) for c in found if c[3] == "start"} == mine
        assert all(oracle.live[c[6]].acked_to == c[2] for c in found if c[3] == "start" and c[4] == "stream")
        waiting = sorted((c.lo, c.hi, c.isolation) for c in oracle.waiting)
        assert sorted((c[0], c[1], c[7]) for c in found if c[3] == "waiting") == waiting
