"""Retention: delete messages that no group needs any more, in batches that hold no lock for long.

First the log start offset of a partition is raised and committed, then the rows below it are deleted. The log start
offset never passes an offset that a group has yet to run, or that a reader holds. A topic may let age win over messages
that are not *claimed* yet, but not over a hold, and the body of a message that is claimed or waits for a retry is never
removed. The cursors of groups that are overtaken move with the log start offset. A crash between the two steps leaves
rows below the log start offset, which the next round deletes. ``trimmed`` records how far the deletion has come, so
that each round begins where the last one ended and does not scan rows that the server's purge has not removed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.core.offsets import OffsetRange
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
_RAISE = (_SQL.lock_cursors, _SQL.lock_partition, _SQL.find_needed, _SQL.raise_log_start, _SQL.read_log_start)


@dataclass(frozen=True)
class Kept:
    """A partition of a topic with a retention.

    Attributes:
        retention_s: seconds for which a message is kept, or ``None`` for ever.
        trim_done: delete a message as soon as every group is done with it.
        age_wins: delete a message that is too old even if a group has not claimed it.
        archive_first: only the job that archives the topic raises the log start offset and deletes.
        log_start: offsets below it are never read again; trimmed: offsets below it have been deleted.
        groups: number of groups of the topic.
    """

    topic_id: int
    topic: str
    partition: int
    retention_s: int | None
    trim_done: bool
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


def _kept(row: Sequence[Any]) -> Kept:
    return Kept(*row[:4], *map(bool, row[4:7]), *row[7:])


def raise_log_start(session: Session, kept: Kept, limit: int, tell: Callable[[int, int], None] | None = None) -> int:
    """Raise the log start offset over messages that need not be kept, at most ``limit`` of them.

    If age wins, the cursors of groups that have not claimed so far move along, and the skipped offsets are recorded. It
    is the same transaction, because offsets below the log start offset must not be claimed.

    Args:
        tell: called with each such group and the number of messages that it skips.

    Returns:
        the log start offset.
    """
    target = _target(session, kept, limit)
    if target is None:
        return kept.log_start

    def attempt() -> tuple[int, list[tuple[int, int]]]:
        packet = session.packet()
        packet.begin()
        for statement in _RAISE:
            packet.add(statement, target)
        overtaken = packet.add(_SQL.list_overtaken, target)
        packet.add(_SQL.add_skips, target)
        packet.add(_SQL.skip_cursors, target)
        packet.commit()
        packet.add(_SQL.get_log_start, kept.where)
        results = packet.send()
        log_start = results[-1].rows
        passed = [(int(group_id), int(count)) for group_id, count in results[overtaken].rows]
        return int(log_start[0][0]) if log_start else kept.log_start, passed

    log_start, passed = session.retry_on_conflict(attempt)
    for group_id, count in passed:
        if tell is not None:
            tell(group_id, count)
    return log_start


def plan_log_start(session: Session, kept: Kept, limit: int) -> int:
    """Return the log start offset that :func:`raise_log_start` would set now; changes nothing."""
    target = _target(session, kept, limit)
    if target is None:
        return kept.log_start
    packet = session.packet()
    packet.add(_SQL.find_needed, target)
    packet.add(_SQL.plan_log_start, target)
    return max(kept.log_start, int(packet.send()[-1].rows[0][0]))


def _target(session: Session, kept: Kept, limit: int) -> dict[str, Any] | None:
    """Return how far age and settings alone let the log start offset rise, as parameters; ``None`` if not at all."""
    early = kept.trim_done and kept.groups > 0  # without a group no message is done
    if not early and kept.retention_s is None:
        return None
    age_s = 0 if early else kept.retention_s
    args = kept.where | {"log_start": kept.log_start, "limit": limit, "retention_s": age_s}
    end = session.rows(_SQL.find_end_of_old, args)[0][0]
    if end is None or end <= kept.log_start:
        return None
    yields = kept.age_wins and not early
    groups = [group_id for (group_id,) in session.rows(_SQL.list_cursors, kept.where)] if yields else []
    return kept.where | {"log_start": int(end), "overtaken": groups or [0]}  # no group has the id 0


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
