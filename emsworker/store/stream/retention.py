"""Retention: delete messages that no group needs any more, in batches that hold no lock for long.

First the log start offset of a partition is raised and committed, then the rows below it are deleted. The log start
offset never passes an offset that a group has yet to run, or that a reader holds; nor, unless age wins, a call for a
group that is yet to be created. A topic may let age win over messages that are not *claimed* yet, but not over a hold,
and the body of a message that is claimed or waits for a retry is never removed. The cursors of groups that are
overtaken move with the log start offset. A crash between the two steps leaves rows below the log start offset, which
the next round deletes. ``trimmed`` records how far the deletion has come, so that each round begins where the last one
ended and does not scan rows that the server's purge has not removed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emsworker.core.model import GROUP_HEADER
from emsworker.core.offsets import OffsetRange
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
# What is marked for no time is passed at once; when another mark is reached, the next one is set.
_OVER_DONE = (_SQL.lock_partition, _SQL.find_needed, _SQL.mark_done, _SQL.raise_over_done, _SQL.mark_done)
_OVER_OLD = (_SQL.lock_cursors, _SQL.lock_partition, _SQL.find_needed, _SQL.raise_log_start, _SQL.read_log_start)
_OF_GROUP = f'"{GROUP_HEADER}":"'.encode()  # as encode_headers writes it; a quote within a value is escaped
_NO_GROUP = [0]  # no group has the id 0


@dataclass(frozen=True)
class Kept:
    """A partition of a topic with a retention.

    Attributes:
        retention_s: seconds for which a message is kept, or ``None`` for ever.
        keep_done_s: seconds for which a message is kept after every group is done with it, or ``None``.
        age_wins: delete a message that is too old even if a group has not claimed it.
        archive_first: only the job that archives the topic raises the log start offset and deletes.
        log_start: offsets below it are never read again; trimmed: offsets below it have been deleted.
        groups: number of groups of the topic.
    """

    topic_id: int
    topic: str
    partition: int
    retention_s: int | None
    keep_done_s: int | None
    age_wins: bool
    archive_first: bool
    log_start: int
    trimmed: int
    groups: int

    @property
    def where(self) -> dict[str, int]:
        """The partition, as parameters."""
        return {"topic_id": self.topic_id, "partition": self.partition}


def list_kept(session: Session) -> list[Kept]:
    """List every partition from which messages may have to be deleted."""
    return [_kept(row) for row in session.rows(_SQL.list_kept_for_a_time)]


def list_due(session: Session) -> list[Kept]:
    """List the partitions from which messages may be deleted now, without those that are archived first."""
    return [_kept(row) for row in session.rows(_SQL.list_due)]


def list_topics_with_restored(session: Session) -> list[int]:
    """List the topics of :func:`list_due`, due or not, that have rows which were put back for a dead letter."""
    return [int(topic_id) for (topic_id,) in session.rows(_SQL.list_topics_with_restored)]


def list_endless(session: Session) -> list[tuple[str, int]]:
    """List the topics that keep every message for ever, the longest first, with the number of their offsets."""
    return [(name, int(count)) for name, count in session.rows(_SQL.list_endless)]


def list_unheard(session: Session) -> list[tuple[str, str]]:
    """List topics and groups that do not exist, for whose calls nothing more of the topic can be deleted."""
    rows = session.rows(_SQL.list_unheard, {"of_group": _OF_GROUP})
    return [(topic, bytes(group).decode(errors="replace")) for topic, group in rows]


def _kept(row: Sequence[Any]) -> Kept:
    return Kept(*row[:5], *map(bool, row[5:7]), *row[7:])


def raise_log_start(session: Session, kept: Kept, limit: int, tell: Callable[[str, int], None] | None = None) -> int:
    """Raise the log start offset over messages that need not be kept, at most ``limit`` of them.

    What is done is passed up to a mark: the offset below which everything was done when it was last looked, and the
    time of that. It is passed once the mark is old enough, and then the next mark is set, so messages go after one to
    two times ``keep_done_s``, and no message needs a time of its own.

    Args:
        tell: called with the name of each group that age has overtaken, and the number of messages that it skips.

    Returns:
        the log start offset.
    """
    log_start = kept.log_start
    if (done := _done(session, kept, limit)) is not None:
        log_start = _raise_over_done(session, kept, done)
    rest = replace(kept, log_start=log_start)
    if (old := _old(session, rest, limit + kept.log_start - log_start)) is not None:
        log_start = _raise_over_old(session, rest, old, tell)
    return log_start


def plan_log_start(session: Session, kept: Kept, limit: int) -> int:
    """Return the log start offset that :func:`raise_log_start` would set now; changes nothing."""
    planned = kept.log_start
    plans = ((_done(session, kept, limit), _SQL.plan_over_done), (_old(session, kept, limit), _SQL.plan_log_start))
    for target, plan in plans:
        if target is not None:
            packet = session.packet()
            packet.add(_SQL.find_needed, target)
            packet.add(plan, target)
            planned = max(planned, *(int(offset) for (offset,) in packet.send()[-1].rows if offset is not None), 0)
    return planned


def _raise_over_done(session: Session, kept: Kept, target: dict[str, Any]) -> int:
    def attempt() -> int:
        packet = session.packet()
        packet.begin()
        for statement in _OVER_DONE:
            packet.add(statement, target)
        packet.commit()
        packet.add(_SQL.get_log_start, kept.where)
        log_start = packet.send()[-1].rows
        return int(log_start[0][0]) if log_start else kept.log_start

    return session.retry_on_conflict(attempt)


def _raise_over_old(
    session: Session, kept: Kept, target: dict[str, Any], tell: Callable[[str, int], None] | None
) -> int:
    """Raise the log start offset over what is old.

    If age wins, the cursors of groups that have not claimed so far move along, and the skipped offsets are recorded. It
    is the same transaction, because offsets below the log start offset must not be claimed.
    """

    def attempt() -> tuple[int, list[tuple[str, int]]]:
        packet = session.packet()
        packet.begin()
        for statement in _OVER_OLD:
            packet.add(statement, target)
        overtaken = packet.add(_SQL.list_overtaken, target)
        packet.add(_SQL.add_skips, target)
        packet.add(_SQL.skip_cursors, target)
        packet.commit()
        packet.add(_SQL.get_log_start, kept.where)
        results = packet.send()
        log_start = results[-1].rows
        passed = [(name or "(deleted since)", int(count)) for name, count in results[overtaken].rows]
        return int(log_start[0][0]) if log_start else kept.log_start, passed

    log_start, passed = session.retry_on_conflict(attempt)
    for name, count in passed:
        if tell is not None:
            tell(name, count)
    return log_start


def _done(session: Session, kept: Kept, limit: int) -> dict[str, Any] | None:
    """Return how far the log start offset may rise over what is done, as parameters; ``None`` if not at all."""
    if kept.keep_done_s is None or kept.groups == 0:  # without a group no message is done
        return None
    target = _target(session, replace(kept, retention_s=0, age_wins=False), limit)
    return None if target is None else target | {"keep_done_s": kept.keep_done_s}


def _old(session: Session, kept: Kept, limit: int) -> dict[str, Any] | None:
    """Return how far age alone lets the log start offset rise, as parameters; ``None`` if not at all."""
    return None if kept.retention_s is None or limit <= 0 else _target(session, kept, limit)


def _target(session: Session, kept: Kept, limit: int) -> dict[str, Any] | None:
    args: dict[str, Any] = kept.where | {"log_start": kept.log_start, "limit": limit}
    names = [name.encode() for (name,) in session.rows(_SQL.list_group_names, kept.where)]
    args |= {"retention_s": kept.retention_s, "age_wins": int(kept.age_wins)}
    args |= {"of_group": _OF_GROUP, "names": names or [b""]}
    end = session.rows(_SQL.find_end_of_old, args)[0][0]
    if end is None or end <= kept.log_start:
        return None
    groups = [group_id for (group_id,) in session.rows(_SQL.list_cursors, kept.where)] if kept.age_wins else []
    return kept.where | {"log_start": int(end), "overtaken": groups or _NO_GROUP}


def delete_below(session: Session, kept: Kept, log_start: int, limit: int) -> int:
    """Delete at most ``limit`` offsets below the log start offset, with their log; returns the new ``trimmed``."""
    hi = min(log_start, kept.trimmed + limit)
    if hi <= kept.trimmed:
        return kept.trimmed
    offsets = OffsetRange(kept.topic_id, kept.partition, kept.trimmed, hi)
    # The log is deleted first: offsets below `trimmed` are never visited again.
    for (group_id,) in session.rows(_SQL.list_groups, kept.where):
        of_group = offsets.args | {"group_id": group_id}
        session.change(_SQL.delete_attempts, of_group)
        session.change(_SQL.delete_claims, of_group)
    delete_messages(session, offsets)
    return hi


def delete_messages(session: Session, offsets: OffsetRange) -> None:
    """Delete the messages of a range, which begins where the last batch ended, and set ``trimmed``."""

    def work(session: Session) -> None:
        packet = session.packet()
        packet.add(_SQL.lock_partition, offsets.args)
        packet.add(_SQL.delete_messages, offsets.args)
        packet.add(_SQL.set_trimmed, offsets.args)
        packet.send()

    session.transaction(work)


def list_restored(session: Session, topic_id: int) -> list[tuple[int, int]]:
    """List partition and offset of some messages kept below the log start offset that no group has to run any more."""
    return [
        (int(partition), int(offset)) for partition, offset in session.rows(_SQL.list_restored, {"topic_id": topic_id})
    ]


def delete_restored(
    session: Session, topic_id: int, places: Sequence[tuple[int, int]], *, archived: bool = False
) -> int:
    """Delete messages kept below the log start offset for a dead letter that no longer exists, and their attempts.

    Args:
        places: from :func:`list_restored`; a place whose message has a retry by now is skipped.
        archived: their attempts have been copied and deleted; a place that has other attempts by now is skipped.

    Returns:
        how many were deleted.
    """
    groups = [group_id for (group_id,) in session.rows(_SQL.list_groups, {"topic_id": topic_id})]
    count = 0
    for partition, offset in places:
        place = {"topic_id": topic_id, "partition": partition, "offset": offset, "group_ids": groups or [0]}

        def work(session: Session, place: dict[str, Any] = place) -> bool:
            # A requeue inserts the place first: it waits for our lock and restores the message, or we see its retry.
            if not session.rows(_SQL.lock_restored, place) or session.rows(_SQL.find_retry_at, place):
                return False
            if archived and session.rows(_SQL.find_attempts_at, place):
                return False
            for statement in (_SQL.delete_attempts_at, _SQL.delete_message, _SQL.delete_restored):
                session.execute(statement, place)
            return True

        count += session.transaction(work)
    return count
