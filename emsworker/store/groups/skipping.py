"""Skip policies: skip the unclaimed messages of a group that are too many or too old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.core.durations import format_duration
from emsworker.core.model import Group
from emsworker.core.options import option, seconds, whole
from emsworker.core.partitioner import level_of
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.cursors import Position, find_offset_at, list_positions, skip_to
from emsworker.store.stream.guards import hold_group

_SQL = Statements(__name__)


@dataclass(frozen=True)
class SkipPolicy:
    """Policy of a group for skipping its backlog; a message is skipped if it meets all conditions that are given.

    Args:
        most_waiting: skip the oldest of more unclaimed messages than this in a partition.
        older_s: skip messages older than this many seconds.
        below_priority: skip only in partitions of a lower priority level than this one's.
    """

    most_waiting: int | None = option(None, whole(0))
    older_s: float | None = option(None, seconds(0.001))
    below_priority: int | None = option(None, whole(1, 9))

    def __bool__(self) -> bool:
        return self != SkipPolicy()

    def __str__(self) -> str:
        words = [] if self.most_waiting is None else [f"more than {self.most_waiting} waiting"]
        words += [] if self.older_s is None else [f"older than {format_duration(self.older_s)}"]
        words += [] if self.below_priority is None else [f"below priority {self.below_priority}"]
        return " and ".join(words) or "nothing"

    def concerns(self, positions: Sequence[Position]) -> list[Position]:
        """Return the positions of a group whose priority level is low enough."""
        if self.below_priority is None:
            return list(positions)
        levels = {level_of(one.partition) for one in positions}
        own = max((level for level in levels if level <= self.below_priority), default=0)
        return [one for one in positions if level_of(one.partition) < own]


@dataclass(frozen=True)
class Skip:
    """Offsets that a group skips: from ``cursor`` to the one before ``to``."""

    partition: int
    cursor: int
    to: int

    @property
    def count(self) -> int:
        """Number of offsets."""
        return self.to - self.cursor


def list_policies(session: Session) -> dict[int, tuple[str, SkipPolicy]]:
    """Return the topic's name and the policy of every group that has one, by group id."""
    return {
        group_id: (topic, SkipPolicy(most, None if older_s is None else float(older_s), below))
        for group_id, most, older_s, below, topic in session.rows(_SQL.list_policies)
    }


def set_policy(session: Session, group: Group, policy: SkipPolicy) -> None:
    """Set the policy of a group; an empty one deletes it."""
    older_ms = None if policy.older_s is None else round(policy.older_s * 1000)
    values = {"group_id": group.id, "most_waiting": policy.most_waiting, "older_ms": older_ms}
    values |= {"below_priority": policy.below_priority}

    def work(session: Session) -> None:
        if not policy:
            session.execute(_SQL.delete_policy, values)
        elif hold_group(session, group.id):
            session.execute(_SQL.set_policy, values)

    session.transaction(work)


def plan_skips(session: Session, group: Group, policy: SkipPolicy) -> list[Skip]:
    """Return the offsets that a policy would skip now, for every partition that has any; changes nothing."""
    skips = [
        Skip(position.partition, position.cursor, _target(session, group, policy, position))
        for position in policy.concerns(list_positions(session, group))
    ]
    return [skip for skip in skips if skip.count > 0]


def make_skips(session: Session, group: Group, skips: list[Skip], policy: SkipPolicy) -> list[Skip]:
    """Skip offsets; returns what was skipped, which is less if workers claimed some of them first."""
    made = []
    for skip in skips:
        by = skip_to(session, group, skip.partition, skip.to, f"skip: {policy}")
        made += [Skip(skip.partition, skip.to - by, skip.to)] if by else []
    return made


def _target(session: Session, group: Group, policy: SkipPolicy, position: Position) -> int:
    to = position.end
    if policy.most_waiting is not None:
        to = min(to, position.end - policy.most_waiting)
    if policy.older_s is not None and to > position.cursor:
        to = min(to, _first_young(session, group, policy.older_s, position))
    return max(to, position.cursor)


def _first_young(session: Session, group: Group, older_s: float, position: Position) -> int:
    where: dict[str, Any] = {"topic_id": group.topic_id, "partition": position.partition}
    rows = session.rows(_SQL.is_older, where | {"offset": position.cursor, "older_s": older_s})
    if not rows or not rows[0][0]:
        return position.cursor
    unclaimed = Position(position.partition, position.cursor, position.end, position.cursor)
    return find_offset_at(session, group.topic_id, unclaimed, utc(str(rows[0][1])))
