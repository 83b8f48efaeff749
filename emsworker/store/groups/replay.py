"""Replay: run messages of a group again without publishing them again.

The chosen messages become waiting claims (ranges) or retries with no attempt charged (single messages). Any worker of
the group takes them in its normal course, and retention keeps the messages that they need. Each part is one
transaction that holds the group's cursor: meanwhile no new messages are claimed, no other replay, reset or requeue
runs, and the log start offset does not move. Only messages below the cursor that are in no live claim and in no retry
are taken, so that no message is in two places. The rows of live claims are not locked: live messages may end meanwhile,
but finished messages stay finished.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.core.errors import UnknownGroup
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Group
from emsworker.core.offsets import OffsetRange
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups import cursors

_SQL = Statements(__name__)
Run = tuple[int, int]
"""First and last offset, as in a row of a claim."""


@dataclass(frozen=True)
class ReplayPart:
    """Messages of a range that are to be run again.

    Args:
        chosen: the chosen messages, in order.
        wanted: all messages of the range that pass the group's filter, in order, to run uninterrupted runs of chosen
            messages as ranges; ``None`` to run each message by itself.
    """

    offsets: OffsetRange
    chosen: Sequence[int]
    wanted: Sequence[int] | None


@dataclass(frozen=True)
class Replayed:
    """Counts of the chosen messages in a part of a partition.

    Attributes:
        offsets: the offsets that were read.
        chosen: messages that were selected and pass the group's filter.
        again: chosen messages that are run again.
        live: chosen messages that were running or waiting to be run anyway.
        unclaimed: chosen messages that the group has not claimed yet.
        unreadable: messages that the predicate could not evaluate.
    """

    offsets: OffsetRange
    chosen: int = 0
    again: int = 0
    live: int = 0
    unclaimed: int = 0
    unreadable: int = 0

    @property
    def last(self) -> tuple[int, int]:
        """Partition and offset of the last place that was read; an interrupted replay continues after it."""
        return self.offsets.partition, self.offsets.end - 1


def plan(session: Session, group: Group, part: ReplayPart) -> Replayed:
    """Return what :func:`replay` would do now; changes nothing."""
    where = part.offsets.args | {"group_id": group.id}
    rows = session.rows(_SQL.get_cursor, where)
    return _judge(part, int(rows[0][0]) if rows else 0, 1, _taken(session, where))[0]


def replay(session: Session, group: Group, part: ReplayPart) -> Replayed:
    """Replay messages in one transaction; deletes the dead letters of those that are run again.

    Raises:
        UnknownGroup: the group was deleted meanwhile.
    """
    where = part.offsets.args | {"group_id": group.id}

    def work(session: Session) -> Replayed:
        held = cursors.hold(session, group, part.offsets.partition)
        if held is None:
            raise UnknownGroup(f"group {group.name!r} was deleted meanwhile")
        taken = _taken(session, where)
        judged, again = _judge(part, held.cursor, held.log_start, taken)
        if again and part.wanted is not None:
            _add_claims(session, where, list(_runs(part.wanted, set(again), taken)))
        elif again:
            packet = session.packet()
            packet.insert_many(_SQL.add_retries, _SQL.retry_row, (where | {"offset": offset} for offset in again))
            packet.send()
        dead = {row[0] for row in session.rows(_SQL.list_dead, where)}
        if revived := sorted(dead.intersection(again)):
            session.execute(_SQL.delete_dead, where | {"offsets": revived})
        return judged

    return session.transaction(work)


def _taken(session: Session, where: dict[str, Any]) -> list[Run]:
    """Return live offsets as ranges that do not overlap; a blocked or detached message may also be in a claim."""
    found: list[Run] = []
    for lo, hi in sorted((int(lo), int(hi)) for lo, hi in session.rows(_SQL.list_taken, where)):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], hi))
        elif lo <= hi:
            found.append((lo, hi))
    return found


def _judge(part: ReplayPart, cursor: int, log_start: int, taken: list[Run]) -> tuple[Replayed, list[int]]:
    below = [offset for offset in part.chosen if log_start <= offset < cursor]
    again = [offset for offset in below if not _covers(taken, offset)]
    unclaimed = sum(offset >= cursor for offset in part.chosen)
    return Replayed(part.offsets, len(part.chosen), len(again), len(below) - len(again), unclaimed), again


def _covers(runs: list[Run], offset: int) -> bool:
    place = bisect_right(runs, (offset, 1 << 64))
    return place > 0 and runs[place - 1][1] >= offset


def _runs(wanted: Sequence[int], again: set[int], taken: list[Run]) -> Iterator[Run]:
    """Yield ranges that hold these messages and no other message that the group wants or that is live."""
    first = last = None
    for offset in wanted:
        joins = offset in again and (last is None or not _between(taken, last, offset))
        if not joins and first is not None and last is not None:
            yield first, last
            first = last = None
        if offset in again:
            first, last = offset if first is None else first, offset
    if first is not None and last is not None:
        yield first, last


def _between(runs: list[Run], left: int, right: int) -> bool:
    place = bisect_right(runs, (left, 1 << 64))
    return place < len(runs) and runs[place][0] < right


def _add_claims(session: Session, where: dict[str, Any], runs: list[Run]) -> None:
    rows = (where | {"lo": lo, "hi": hi, "claim_id": new_claim_id()} for lo, hi in runs)
    packet = session.packet()
    packet.insert_many(_SQL.add_waiting, _SQL.waiting_row, rows)
    packet.send()
