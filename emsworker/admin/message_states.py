"""States of the messages of a list, over the groups of their topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from emsworker.admin.monitoring import TraceState
from emsworker.admin.selection import Place
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.inspect.states import Whereabouts, find_whereabouts
from emsworker.store.topics import get_topic, list_groups

MOST_GROUPS = 20
_WORST_FIRST = (TraceState.DEAD, TraceState.RETRY, TraceState.CLAIMED, TraceState.UNCLAIMED, TraceState.DONE)


def list_states(database: Database, topic: str, places: Iterable[Place]) -> dict[Place, str]:
    """Return the state of each message, as text: ``1 dead, 2 done`` in three groups, ``done`` if it is so in all.

    Args:
        places: partition and offset of messages that were not cancelled.

    Returns:
        nothing if the topic has no group, or more than ``MOST_GROUPS``.
    """
    by_partition: dict[int, list[int]] = {}
    for partition, offset in places:
        by_partition.setdefault(partition, []).append(offset)

    def work(session: Session) -> dict[Place, str]:
        found = get_topic(session, topic)
        ids = [] if found is None else [group.id for group in list_groups(session, topic_id=found.id)]
        if not 0 < len(ids) <= MOST_GROUPS:
            return {}
        states: dict[Place, str] = {}
        for partition, offsets in by_partition.items():
            known = find_whereabouts(session, ids, partition, offsets)
            states |= {
                (partition, offset): _text(Counter(_state(known, one, offset) for one in ids)) for offset in offsets
            }
        return states

    return database.call(work)


def _state(known: Whereabouts, group_id: int, offset: int) -> TraceState:
    if (group_id, offset) in known.dead:
        return TraceState.DEAD
    if (group_id, offset) in known.retries:
        return TraceState.RETRY
    if offset >= known.cursors.get(group_id, 0):
        return TraceState.UNCLAIMED
    claimed = any(owner == group_id and acked_to < offset <= hi for owner, acked_to, hi in known.claims)
    return TraceState.CLAIMED if claimed else TraceState.DONE


def _text(counts: Counter[TraceState]) -> str:
    if len(counts) == 1:
        return next(iter(counts)).value
    return ", ".join(f"{counts[state]} {state.value}" for state in _WORST_FIRST if counts[state])
