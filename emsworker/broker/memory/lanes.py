"""Lanes of a fair group: what waits is taken by virtual time, as in :mod:`emsworker.store.groups.fair`.

What is new gets the virtual time after the last one of its key, or that of the message that is next if its key has none
waiting; retries that are due follow the message that is next, those of each key apart.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from emsworker.broker.memory.group import KeptGroup, KeptRetry, Place
from emsworker.broker.memory.log import KeptMessage, MessageLog
from emsworker.core.codec import decode_headers
from emsworker.core.errors import DecodeError

_LONGEST_KEY = 255


def enter_lanes(state: KeptGroup, log: MessageLog, header: str, now: datetime) -> None:
    """Move all new messages into lanes, by the values of a header, and then the retries that are due."""
    _enter_new(state, log, header, now)
    head, places = _head(state), Counter[bytes | None]()
    due = {place: one for place, one in state.retries.items() if one.is_due(now) and one.lane_at is None}
    for place in sorted(due, key=lambda place: (due[place].due_at, place)):
        retry = due[place]
        retry.key = _key_of(log.at(state.group.topic_id, *place), header)
        retry.lane_at = head + places[retry.key]
        places[retry.key] += 1


def next_in_lanes(state: KeptGroup, most_isolation: int) -> Place | None:
    """Return the place of the message that is taken next."""
    waiting = {place: at for place, at in _waiting(state).items() if state.retries[place].isolation <= most_isolation}
    return min(waiting, key=lambda place: (waiting[place], place), default=None)


def _head(state: KeptGroup) -> int:
    return min(_waiting(state).values(), default=state.lanes_end)


def _waiting(state: KeptGroup) -> dict[Place, int]:
    """Return the virtual times of what waits in lanes."""
    retries = state.retries.items()
    return {place: one.lane_at for place, one in retries if one.lane_at is not None and one.claim_id is None}


def _enter_new(state: KeptGroup, log: MessageLog, header: str, now: datetime) -> None:
    """Give all that is new a place, and move the cursors; what the filter excludes is done."""
    topic_id, head = state.group.topic_id, _head(state)
    last = Counter[bytes | None]()
    for one in state.retries.values():
        last[one.key] = max(last[one.key], (one.lane_at or 0) + 1)
    for partition in log.partitions(topic_id):
        first, end = state.cursors.get(partition, 1), log.end(topic_id, partition)
        for kept in (log.at(topic_id, partition, offset) for offset in range(first, end + 1)):
            if kept.cancelled or not state.wants(kept):
                continue
            key = _key_of(kept, header)
            lane_at = max(head, last[key])
            state.retries[partition, kept.offset] = KeptRetry(0, now, key, lane_at=lane_at)
            last[key] = lane_at + 1
            state.lanes_end = max(state.lanes_end, lane_at + 1)
        state.cursors[partition] = end + 1


def _key_of(kept: KeptMessage, header: str) -> bytes:
    try:
        return decode_headers(kept.new.headers).get(header, "").encode()[:_LONGEST_KEY]
    except DecodeError:
        return b""
