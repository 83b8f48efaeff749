"""Reset of a group's cursor: the plan and its execution."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.model import Group
from emsworker.core.options import raise_problems, text
from emsworker.core.selection.parser import parse_time
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import cursors as store
from emsworker.store.groups.cursors import Position


@dataclass(frozen=True)
class Move:
    """Move of a cursor in one partition: forward, which skips offsets, or back, which runs them again."""

    partition: int
    cursor: int
    to: int

    @property
    def skipped(self) -> int:
        """Number of offsets that the group will not run."""
        return max(self.to - self.cursor, 0)

    @property
    def again(self) -> int:
        """Number of offsets that will be delivered to the group again."""
        return max(self.cursor - self.to, 0)


def plan(database: Database, group: Group, to: str, partition: int | None = None) -> list[Move]:
    """Return the moves that a reset would make; change nothing.

    Args:
        to: ``earliest``, ``latest``, an offset, ``-n`` for the last n messages, or a time in ISO 8601 (UTC if it names
            no zone): the first message written then or later.
        partition: only this partition.

    Raises:
        ConfigError: ``to`` is none of these, or there is no such offset or partition.
    """
    raise_problems(text().problems("to", to))

    def work(session: Session) -> list[Move]:
        positions = store.list_positions(session, group)
        if partition is not None:
            positions = [position for position in positions if position.partition == partition]
            if not positions:
                raise ConfigError([Problem("partition", str(partition), "the topic has no such partition")])
        return [Move(one.partition, one.cursor, _target(session, group, one, to)) for one in positions]

    return database.call(work)


def reset(database: Database, group: Group, moves: list[Move], reason: str = "reset") -> list[Move]:
    """Make these moves, each in one transaction; return those made, which differ if workers have moved a cursor."""
    made = []
    for move in moves:
        by = database.call(lambda session, one=move: store.reset(session, group, one.partition, one.to, reason))  # type: ignore[misc]
        made.append(Move(move.partition, move.to - by, move.to))
    return made


def _target(session: Session, group: Group, position: Position, to: str) -> int:
    if to == "earliest":
        return position.log_start
    if to == "latest":
        return position.end
    if re.fullmatch(r"-\d{1,20}", to):
        return max(position.end + int(to), position.log_start)
    if re.fullmatch(r"\d{1,20}", to):
        if not position.log_start <= int(to) <= position.end:
            kept = f"partition {position.partition} has {position.log_start} to {position.end}"
            raise ConfigError([Problem("to", to, f"no such offset is kept: {kept}")])
        return int(to)
    return store.find_offset_at(session, group.topic_id, position, read_time(to))


def read_time(text: str, name: str = "to") -> datetime:
    """Parse a time in ISO 8601 that is given as a position.

    Args:
        name: the name of the setting, for the error message.

    Raises:
        ConfigError: not an ISO 8601 time.
    """
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        fix = "must be earliest, latest, an offset, -n for the last n, or a time like 2026-01-31T12:00"
        raise ConfigError([Problem(name, text, fix)]) from None
