"""Pauses of single tasks of a group: their messages are put aside as retries, with no attempt charged.

A worker that claims messages of a group with paused tasks reads which they are, and puts their messages back in the
transaction in which it records the ends of others. They are due in an hour, so that they cost next to nothing
meanwhile, and at once when the task is resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from emsworker.core.counted import AtLeast
from emsworker.core.errors import UnknownGroup
from emsworker.core.flush import storable
from emsworker.core.model import Claim, Failure, Group, Order, held_text
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.due_times import make_due
from emsworker.store.stream.guards import hold_group

_SQL = Statements(__name__)
_HELD_S = 3600
_CHUNK = 1000
_FIRST = "1970-01-01"


def pause(session: Session, group: Group, task: str) -> None:
    """Pause a task of a group; again is no error.

    Raises:
        UnknownGroup: the group was deleted meanwhile.
    """
    _set(session, group, {"group_id": group.id, "task": task}, paused=True)


def resume(session: Session, group: Group, task: str) -> int:
    """Resume a task of a group, and make the messages that were put aside due; return how many. Again is no error.

    Raises:
        UnknownGroup: the group was deleted meanwhile.
    """
    _set(session, group, {"group_id": group.id, "task": task}, paused=False)
    args: dict[str, Any] = {"group_id": group.id, "error": storable(held_text(task)), "limit": _CHUNK, "after": _FIRST}
    total = 0
    while rows := session.rows(_SQL.list_held, args):
        total += make_due(session, group, [(int(partition), int(offset)) for partition, offset, _ in rows])
        args["after"] = rows[-1][2]
        if len(rows) < _CHUNK:
            break
    return total


def _set(session: Session, group: Group, args: dict[str, Any], *, paused: bool) -> None:
    def work(session: Session) -> int:
        if not hold_group(session, group.id):
            raise UnknownGroup(f"group {group.name!r} was deleted meanwhile; nothing was changed")
        changed = session.execute(_SQL.insert_pause if paused else _SQL.delete_pause, args).affected
        session.execute(_SQL.mark_group, args)
        return changed

    session.transaction(work)


def list_pauses(session: Session, group_ids: Collection[int]) -> set[tuple[int, str]]:
    """Return the paused tasks of some groups, with the ids of their groups."""
    if not group_ids:
        return set()
    rows = session.rows(_SQL.list_pauses, {"group_ids": sorted(group_ids)})
    return {(group_id, task) for group_id, task, _ in rows}


def add_paused(packet: Packet, group_id: int) -> None:
    """Append the statement that reads the paused tasks of a group."""
    packet.add(_SQL.list_paused, {"group_id": group_id})


def count_held(session: Session, group_id: int, tasks: Sequence[str], limit: int) -> dict[str, int]:
    """Count the messages of paused tasks that were put aside, among a number of retries of their group."""
    texts = {storable(held_text(task)): task for task in tasks}
    rows = session.rows(_SQL.count_held, {"group_id": group_id, "errors": sorted(texts), "limit": limit})
    whole = sum(int(count) for _, count in rows) < limit
    return {texts[text]: int(count) if whole else AtLeast(count) for text, count in rows if text in texts}


def add_held(packet: Packet, claim: Claim, topic_id: int, held: Sequence[Failure]) -> None:
    """Append the putting aside of messages of paused tasks to the transaction of a flush."""
    row = _SQL.keyed_held_row if claim.order is Order.KEY else _SQL.held_row
    where = {"group_id": claim.group_id, "topic_id": topic_id, "partition": claim.partition, "held_s": _HELD_S}
    for task, members in groupby(sorted(held, key=lambda one: (one.held, one.offset)), key=lambda one: one.held):
        packet.add(_SQL.reset_held)
        packet.add(_SQL.hold_pause, {"group_id": claim.group_id, "task": task})
        rows = (where | {"offset": one.offset, "attempt": one.attempt, "error": storable(one.error)} for one in members)
        packet.insert_many(_SQL.upsert_held, row, rows, _SQL.upsert_held_end)


def delete(session: Session, group_id: int) -> None:
    """Delete the pauses of a group's tasks, inside the transaction that deletes the group."""
    session.execute(_SQL.delete_pauses, {"group_id": group_id})
