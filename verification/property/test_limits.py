"""Permits and slots, in any sequence, against a count in plain Python; what runs is never more than the limit."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from emsworker.core.limits import Limit
from emsworker.store.groups import limits
from tests.support.streams import Stream
from verification.property.settings import LONG_S, SETTINGS, rounds

CLIENTS = st.integers(0, 3)
_PERMIT_S = 901  # at 4/h one more permit has come; those that come while the test runs are a few hundredths of one


class LimitMachine(RuleBasedStateMachine):
    """One group and four clients.

    Args:
        stream: a migrated database.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream, self.session = stream, stream.session
        stream.rows("DELETE FROM ems_slot")
        stream.rows("DELETE FROM ems_limit")
        found = stream.rows("SELECT id FROM ems_group")
        self.group_id = int(found[0][0]) if found else stream.group(stream.topic()).id
        self.clients = [stream.client() for _ in range(4)]
        self.good = dict.fromkeys(self.clients, True)
        self.slots: dict[str, int] = {}
        self.limit, self.tokens, self.waited = Limit(), 0, 0

    @rule(who=CLIENTS, wanted=st.integers(1, 5), at_once=st.booleans(), refund=st.integers(-1, 2))
    def acquire(self, who: int, wanted: int, at_once: bool, refund: int) -> None:
        client, most = self.clients[who], self.limit.max_running
        expected = wanted
        if self.limit.rate:
            self.tokens, self.waited = min(1, self.tokens + refund + self.waited), 0
            expected = max(0, min(expected, self.tokens))
        if most is not None:
            free = most - self._running(besides=client)
            expected = max(0, min(expected, free)) if at_once else expected if free > 0 else 0
        permit = limits.acquire(self.session, self.group_id, client, wanted, at_once=at_once, refund=refund)
        assert permit.granted == expected
        assert permit.rated == bool(self.limit.rate)
        self.tokens -= permit.granted if self.limit.rate else 0
        self.slots.pop(client, None)
        if permit.granted and most is not None:
            self.slots[client] = permit.granted if at_once else 1
            assert not self.good[client] or self._running() <= most, "never more than the limit"

    def _running(self, besides: str = "") -> int:
        return sum(weight for client, weight in self.slots.items() if self.good[client] and client != besides)

    @rule(who=CLIENTS)
    def release(self, who: int) -> None:
        limits.release(self.session, self.group_id, self.clients[who])
        self.slots.pop(self.clients[who], None)

    @rule(who=CLIENTS)
    def expire(self, who: int) -> None:
        self.stream.expire(self.clients[who])
        self.good[self.clients[who]] = False

    @rule(who=CLIENTS)
    def replace_client(self, who: int) -> None:
        """The beat has swept the row of one that is gone; another has come."""
        if not self.good[self.clients[who]]:
            self.stream.rows("DELETE FROM ems_client WHERE client_id = %s", self.clients[who])
            self.clients[who] = self.stream.client()
            self.good[self.clients[who]] = True

    @rule()
    def sweep(self) -> None:
        gone = [client for client in self.slots if client not in self.clients]
        assert limits.sweep(self.session, 100) == len(gone)
        for client in gone:
            del self.slots[client]

    @rule(most=st.none() | st.integers(1, 6), rated=st.booleans())
    def set_limit(self, most: int | None, rated: bool) -> None:
        fresh = not self.stream.value("SELECT COUNT(*) FROM ems_limit")
        self.limit = Limit("4/h" if rated else None, most)
        limits.set_limit(self.session, self.group_id, self.limit)
        self.tokens, self.waited = (0, 0) if fresh else (min(1, self.tokens), self.waited)
        assert limits.get_limit(self.session, self.group_id) == self.limit

    @rule()
    def time_passes(self) -> None:
        self.stream.rows("UPDATE ems_limit SET filled_at = filled_at - INTERVAL %s SECOND", _PERMIT_S)
        self.waited += 1  # counted with the next question under a rate

    @invariant()
    def the_table_is_as_it_should_be(self) -> None:
        assert dict(self.stream.rows("SELECT client_id, weight FROM ems_slot")) == self.slots
        assert limits.count_running(self.session, self.group_id) == self._running()


@pytest.mark.timeout(LONG_S * 2 + 300)
def test_any_sequence_keeps_to_the_limits(stream: Stream) -> None:
    for _ in rounds(LONG_S / 5):
        run_state_machine_as_test(lambda: LimitMachine(stream), settings=SETTINGS)
