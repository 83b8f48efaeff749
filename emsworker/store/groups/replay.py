"""Replay: run messages of a group again without publishing them again.

The chosen messages become waiting claims (ranges) or retries with no attempt charged (single messages). Any worker of
the group takes them in its normal course, and retention keeps the messages that they need. Each piece is one
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
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups import cursors
from emsworker.store.stream.search import SearchWindow

_SQL = Statements(__name__)
Range = tuple[int, int]


@dataclass(frozen=True)
class ReplayPiece:
    """Messages of one window that are to be run again.

    Args:
        offsets: the chosen messages, in order.
        wanted: all messages of the window that pass the group's filter, in order, to run uninterrupted runs of chosen
            messages as ranges; ``None`` to run each message by itself.
    """

    window: SearchWindow
    offsets: Sequence[int]
    wanted: Sequence[int] | None


@dataclass(frozen=True)
class Replayed:
    """Counts of the chosen messages in a part of a partition.

    Attributes:
        partition, lo, hi: the offsets that were read.
        chosen: messages that were selected and pass the group's filter.
        again: chosen messages that are run again.
        live: chosen messages that were running or waiting to be run anyway.
        unclaimed: chosen messages that the group has not claimed yet.
        unreadable: messages that the predicate could not evaluate.
    """

    partition: int
    lo: int
    hi: int
    chosen: int = 0
    again: int = 0
    live: int = 0
    unclaimed: int = 0
    unreadable: int = 0


def plan_piece(session: Session, group: Group, piece: ReplayPiece) -> Replayed:
    """Return what :func:`replay_piece` would do now; changes nothing."""
    where = _where(group, piece)
    rows = session.rows(_SQL.get_cursor, where)
    return _judge(piece, int(rows[0][0]) if rows else 0, 1, _taken(session, where))[0]


def replay_piece(session: Session, group: Group, piece: ReplayPiece) -> Replayed:
    """Replay the messages of a piece in one transaction; deletes the dead letters of those that are run again.

    Raises:
        UnknownGroup: the group was deleted meanwhile.
    """
    where = _where(group, piece)

    def work(session: Session) -> Replayed:
        held = cursors.hold(session, group, piece.window.partition)
        if held is None:
            raise UnknownGroup(f"group {group.name!r} was deleted meanwhile")
        taken = _taken(session, where)
        judged, again = _judge(piece, held.cursor, held.log_start, taken)
        if again and piece.wanted is not None:
            _add_claims(session, where, list(_runs(piece.wanted, set(again), taken)))
        elif again:
            packet = session.packet()
            packet.insert_many(_SQL.add_retries, _SQL.retry_row, (where | {"offset": offset} for offset in again))
            packet.send()
        dead = {row[0] for row in session.rows(_SQL.list_dead, where)}
        if revived := sorted(dead.intersection(again)):
            session.execute(_SQL.delete_dead, where | {"offsets": revived})
        return judged

    return session.transaction(work)


def _where(group: Group, piece: ReplayPiece) -> dict[str, Any]:
    return piece.window.args | {"group_id": group.id}


def _taken(session: Session, where: dict[str, Any]) -> list[Range]:
    """Return live offsets as ranges that do not overlap; a blocked or detached message may also be in a claim."""
    found: list[Range] = []
    for lo, hi in sorted((int(lo), int(hi)) for lo, hi in session.rows(_SQL.list_taken, where)):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], hi))
        elif lo <= hi:
            found.append((lo, hi))
    return found


def _judge(piece: ReplayPiece, cursor: int, log_start: int, taken: list[Range]) -> tuple[Replayed, list[int]]:
    below = [offset for offset in piece.offsets if log_start <= offset < cursor]
    again = [offset for offset in below if not _covers(taken, offset)]
    unclaimed = sum(offset >= cursor for offset in piece.offsets)
    window = piece.window
    counts = (len(piece.offsets), len(again), len(below) - len(again), unclaimed)
    return Replayed(window.partition, window.lo, window.hi, *counts), again


def _covers(ranges: list[Range], offset: int) -> bool:
    place = bisect_right(ranges, (offset, 1 << 64))
    return place > 0 and ranges[place - 1][1] >= offset


def _runs(wanted: Sequence[int], again: set[int], taken: list[Range]) -> Iterator[Range]:
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


def _between(ranges: list[Range], left: int, right: int) -> bool:
    place = bisect_right(ranges, (left, 1 << 64))
    return place < len(ranges) and ranges[place][0] < right


def _add_claims(session: Session, where: dict[str, Any], runs: list[Range]) -> None:
    rows = (where | {"lo": lo, "hi": hi, "claim_id": new_claim_id()} for lo, hi in runs)
    packet = session.packet()
    packet.insert_many(_SQL.add_waiting, _SQL.waiting_row, rows)
    packet.send()
