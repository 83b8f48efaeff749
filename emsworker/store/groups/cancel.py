"""Cancellation: a message that has not run yet never runs, in any group, and one that runs is interrupted.

A delayed message is deleted. In the stream its row stays and becomes ``cancelled``: everything reads bodies of kind
``message`` only, so a cancelled message costs no more than a tombstone, and its body is deleted with the row.

A client that has read the message finds its place in ``ems_cancel`` when it polls. That it has read it is known by its
claim, which is looked for after the row's change is committed: a claim that is committed later reads the changed row,
since bodies are read after the commit of the claim. So a message that is in no client's hands then is never run. That
those who have it were asked is written down, too: from then on no result waits for claims that come later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from emsworker.core.model import Topic
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups import blocking
from emsworker.store.stream.dedup import is_unfinished

_SQL = Statements(__name__)
_CHUNK = 1000
_KEPT_S = 86_400  # for which whoever waits for the result can be told
_CANCELLED, _ASKED = 0, (1 << 32) - 1  # in place of the group of a result

Progress = Callable[[int], None]


class StateAtCancel(StrEnum):
    """The state of a message when it was cancelled."""

    DELAYED = "delayed"
    WAITING = "waiting"
    RUNNING = "running"
    BEFORE = "cancelled before"
    FINISHED = "finished"


@dataclass(frozen=True)
class Purged:
    """Numbers of messages of each kind that a purge removed, or would remove."""

    messages: int
    delayed: int
    retries: int


def cancel(session: Session, topic_id: int, uid: bytes) -> StateAtCancel | None:
    """Cancel a message of a topic; return ``None`` if it does not exist.

    A message that every group has finished stays as it is. One that a client has is ``RUNNING``: it may run until that
    client has ended it. Again is no error, for a day: after a crash in between it asks the client that has the message.
    """
    place: dict[str, Any] = {"topic_id": topic_id}

    def work(session: Session) -> StateAtCancel | None:
        args: dict[str, Any] = {"topic_id": topic_id, "uid": uid, "group_id": _CANCELLED, "kept_s": _KEPT_S}
        if session.execute(_SQL.delete_outbox, args).affected:
            session.execute(_SQL.insert_result, args)
            return StateAtCancel.DELAYED
        rows = session.rows(_SQL.lock_message, args)
        if not rows:  # one that was delayed left no row; who hears nothing of the commit asks again
            return StateAtCancel.BEFORE if session.rows(_SQL.find_cancelled, args) else None
        partition, offset, kind, key = rows[0]
        place.update(partition=partition, offset=offset)
        if kind == "cancelled":
            return StateAtCancel.BEFORE
        if not is_unfinished(session, topic_id, uid):
            return StateAtCancel.FINISHED
        session.execute(_SQL.cancel_message, place)
        session.execute(_SQL.insert_result, args)
        _drop_retries(session, place, key)
        return StateAtCancel.WAITING

    was = session.transaction(work)
    if was not in (StateAtCancel.WAITING, StateAtCancel.BEFORE) or "partition" not in place:
        return was
    place["uid"] = uid
    return StateAtCancel.RUNNING if session.transaction(lambda session: _ask_holders(session, place)) else was


def _ask_holders(session: Session, place: dict[str, Any]) -> bool:
    """Ask the clients that have a cancelled message to end it; return false if there is none."""
    place = place | {"group_id": _ASKED, "kept_s": _KEPT_S}
    groups = session.rows(_SQL.list_holders, place)
    packet = session.packet()
    if groups:
        packet.insert_many(_SQL.insert_cancel, _SQL.cancel_row, (place | {"group_id": id_} for (id_,) in groups))
    packet.add(_SQL.insert_result, place)
    packet.send()
    return bool(groups)


def sweep(session: Session, limit: int) -> int:
    """Delete requests for messages that no client has any more, at most ``limit``; return how many."""
    left = session.rows(_SQL.list_left, {"limit": limit})
    for group_id, partition, offset in left:
        session.execute(_SQL.delete_cancel, {"group_id": group_id, "partition": partition, "offset": offset})
    return len(left)


def _drop_retries(session: Session, place: dict[str, Any], key: bytes | None) -> None:
    """Delete a message's waiting retries in all groups; where keys run in order, promote the next one of its key."""
    keyed = session.rows(_SQL.list_keyed_groups, place) if key is not None else ()
    packet = session.packet()
    for (group_id,) in keyed:
        blocking.lock_turn_of(packet, group_id, place["partition"])
    packet.add(_SQL.drop_waiting_retries, place)
    for (group_id,) in keyed:
        assert key is not None
        blocking.promote_of(packet, group_id, place["partition"], key)
    packet.send()


def purge(session: Session, topic: Topic, group_ids: Sequence[int], progress: Progress, *, dry_run: bool) -> Purged:
    """Cancel all messages of a topic that some group has not finished, in chunks; messages sent meanwhile stay.

    Args:
        group_ids: the topic's groups.
        progress: called with the number of rows of each chunk.
        dry_run: only count.
    """
    messages = sum(_purge_partition(session, topic.id, n, progress, dry_run) for n in topic.partition_numbers())
    return Purged(
        messages,
        _purge_outbox(session, topic.id, progress, dry_run),
        sum(_purge_retries(session, topic.id, group_id, progress, dry_run) for group_id in group_ids),
    )


def _purge_partition(session: Session, topic_id: int, partition: int, progress: Progress, dry_run: bool) -> int:
    where = {"topic_id": topic_id, "partition": partition}
    bounds = session.rows(_SQL.find_unfinished_from, where)
    if not bounds or bounds[0][1] is None:
        return 0
    first, last = int(bounds[0][0]), int(bounds[0][1])
    total = 0
    for lo in range(first, last + 1, _CHUNK):
        args = where | {"lo": lo, "hi": min(lo + _CHUNK - 1, last)}
        if dry_run:
            total += int(session.rows(_SQL.count_range, args)[0][0])
            continue
        done = session.change(_SQL.cancel_range, args)
        progress(done)
        total += done
    return total


def _purge_outbox(session: Session, topic_id: int, progress: Progress, dry_run: bool) -> int:
    args: dict[str, Any] = {"topic_id": topic_id, "limit": _CHUNK}
    left = int(session.rows(_SQL.count_outbox, args)[0][0])
    if dry_run:
        return left
    total = 0
    # At most as many as there were at first: messages sent meanwhile stay, or are deleted as part of that number.
    while left > 0 and (rows := session.rows(_SQL.list_outbox, args)):
        uids = {"uids": [row[0] for row in rows[:left]]}
        done = session.change(_SQL.delete_some_outbox, args | uids)
        progress(done)
        total += done
        left -= len(rows)
    return total


def _purge_retries(session: Session, topic_id: int, group_id: int, progress: Progress, dry_run: bool) -> int:
    where = {"topic_id": topic_id, "group_id": group_id, "limit": _CHUNK}
    if dry_run:
        return int(session.rows(_SQL.count_retries, where)[0][0])
    total, step = 0, _CHUNK
    while step == _CHUNK:
        step = session.transaction(lambda s: _cancel_retries(s, where))
        progress(step)
        total += step
    return total


def _cancel_retries(session: Session, where: dict[str, Any]) -> int:
    """Delete retries that no client runs, and cancel their messages, which the group has claimed before."""
    found = session.rows(_SQL.lock_some_retries, where)
    for partition, members in groupby(sorted(found), key=lambda row: row[0]):
        place = where | {"partition": partition, "offsets": [offset for _, offset in members]}
        session.execute(_SQL.cancel_offsets, place)
        session.execute(_SQL.delete_retries, place)
    return len(found)


def list_stale_retries(session: Session, topic_id: int, limit: int) -> list[dict[str, Any]]:
    """Retries of a topic whose message is gone; the next worker that takes one drops it."""
    rows = session.rows(_SQL.list_stale_retries, {"topic_id": topic_id, "limit": limit})
    return [
        {"group": group, "partition": partition, "offset": offset, "attempt": attempt, "due_at": utc(due_at)}
        for group, partition, offset, attempt, due_at in rows
    ]
