"""Claims of messages and of retries.

The ends of earlier claims are recorded in the same packet and transaction, so a batch costs one round trip and one
fsync. The cursor row is locked only while the server runs the packet: a worker that is stopped at any point holds no
lock.

A crash before the packet's COMMIT changes nothing; a crash after it leaves a claim that its owner's lease protects.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emsworker.core.errors import ConnectionLost
from emsworker.core.flush import Flush
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Isolation, Message
from emsworker.core.work import FEW, AvailableWork, Claimant, NothingClaimed, Place, PollAnswer
from emsworker.store.engine.session import Packet, Result, Session
from emsworker.store.engine.sql import Sql, Statements, join
from emsworker.store.groups.progress import add_flush, send_fenced
from emsworker.store.stream.columns import MESSAGE

_SQL = Statements(__name__, **MESSAGE)
Ends = Mapping[tuple[int, int], int]
"""Of partitions, by topic id and number: the offset after the last message."""


def args_of(claimant: Claimant) -> dict[str, Any]:
    """Return the parameters of every claiming statement."""
    return {
        "topic_id": claimant.topic.id,
        "group_id": claimant.group.id,
        "client_id": claimant.client_id,
        "batch": claimant.batch,
        "batch_bytes": claimant.batch_bytes,
        "claim_id": claimant.claim_id,
        "timeout_s": claimant.group.timeout_s,
        "few": FEW,
        "permitted": int(claimant.permitted),
        "knows_held": int(claimant.knows_held),
        "most_isolation": int(claimant.most_isolation),
    }


def find_work(session: Session, group_ids: Sequence[int]) -> PollAnswer:
    """Find, without any lock, the work available to these groups."""
    found: dict[int, dict[str, Any]] = {}
    due_s: float | None = None
    opened: set[int] = set()
    cancelled: set[Place] = set()
    held: set[int] = set()
    if not group_ids:
        return PollAnswer({})
    for kind, group_id, partition, mark, head in session.rows(_SQL.find_work, {"group_ids": list(group_ids)}):
        if kind == 4:
            held.update([int(group_id)] * bool(mark))
            if head is not None and head > 0:
                due_s = min(int(head) / 1e6, math.inf if due_s is None else due_s)
        elif kind == 2:
            work = found.setdefault(int(group_id), {})
            place = "partitions" if head == mark else "holes"
            work[place] = (*work.get(place, ()), int(partition))
        elif kind == 5:
            cancelled.add((int(group_id), int(partition), int(mark)))
        elif kind == 3:
            found.setdefault(int(group_id), {})["limited"] = True
        else:
            opened.add(int(group_id))
            if partition >= 0:
                found.setdefault(int(group_id), {}).update(waiting=True, highest_waiting=int(partition))
            if mark:
                found.setdefault(int(group_id), {})["retries"] = True
    limited = {group_id for group_id, work in found.items() if "limited" in work}
    return PollAnswer(
        {group_id: AvailableWork(**work, held=group_id in held) for group_id, work in found.items()},
        due_s,
        frozenset(opened - limited - held),
        frozenset(cancelled),
    )


@dataclass(frozen=True)
class News:
    """New messages.

    Attributes:
        partitions: of topics with messages at a cursor.
        ends: the offset after the last one of each partition of the broadcast topics.
        others: topics of groups that have, or may have, some work, if that was asked for.
    """

    partitions: dict[int, list[int]]
    ends: dict[tuple[int, int], int]
    others: set[int] = field(default_factory=set)


def find_new(
    session: Session, group_ids: Collection[int], topic_ids: Collection[int], *, also_other: bool = False
) -> News:
    """Find, by one cheap statement, new messages of groups and of broadcast topics.

    Args:
        also_other: look, too, for anything that :func:`find_work` would find; it costs twice as much.
    """
    news = News({}, {})
    if not group_ids and not topic_ids:
        return news
    args = {"group_ids": sorted(group_ids) or [0], "topic_ids": sorted(topic_ids) or [0]}
    parts = (_SQL.find_new, _SQL.find_ends, *((_SQL.or_other,) if also_other else ()))
    for kind, topic_id, partition, end in session.rows(join(" UNION ALL ", parts), args):
        if kind == 0:
            news.partitions.setdefault(int(topic_id), []).append(int(partition))
        elif kind == 1:
            news.ends[int(topic_id), int(partition)] = int(end)
        else:
            news.others.add(int(topic_id))
    return news


def take_range(
    session: Session,
    claimant: Claimant,
    partition: int,
    before: Sequence[Flush] = (),
    *,
    wait: bool = False,
    announced: bool = False,
) -> Claim | NothingClaimed:
    """Claim the next messages of a partition, and record the ends of earlier claims in the same transaction.

    Args:
        wait: wait for the cursor if another client holds it, instead of returning ``NothingClaimed.BUSY``.
        announced: first wait until what is just being published there is committed.

    Raises:
        FenceLost: an earlier claim has another owner by now; everything was rolled back.
    """
    lock = _SQL.lock_cursor if wait else _SQL.lock_cursor_or_skip
    statements = (lock, _SQL.find_range, _SQL.insert_claim, _SQL.move_cursor)
    first = (_SQL.await_commit,) if announced else ()
    return _take(session, claimant, before, statements, {"partition": partition}, first)


def take_waiting(
    session: Session, claimant: Claimant, before: Sequence[Flush] = (), *, from_partition: int = 0
) -> Claim | NothingClaimed:
    """Adopt a claim that its owner gave back or lost, or its first ``batch`` messages.

    Args:
        from_partition: only claims of this partition or a higher one.

    Raises:
        FenceLost: an earlier claim has another owner by now; everything was rolled back.
    """
    statements = (_SQL.find_waiting, _SQL.cut_waiting, _SQL.adopt_waiting, _SQL.add_rest)
    return _take(session, claimant, before, statements, {"from_partition": from_partition, "rest_id": new_claim_id()})


def _take(
    session: Session,
    claimant: Claimant,
    before: Sequence[Flush],
    statements: Sequence[Sql],
    more: dict[str, int],
    first: Sequence[Sql] = (),
) -> Claim | NothingClaimed:
    args = args_of(claimant) | more

    def attempt() -> Claim | NothingClaimed:
        packet = session.packet()
        packet.add_all(first, args)
        open_packet(packet, before)
        packet.add_all((_SQL.begin_taking, *statements), args)
        packet.commit()
        packet.add(_SQL.get_claimed)
        add_bodies(packet, claimant, args)
        results, ends = send_taking(packet, claimant)
        partition, lo, hi, isolation, now = results[-2].rows[0]
        if hi is None or lo is None:
            return NothingClaimed.BUSY if lo is None else NothingClaimed.EMPTY
        claim = claim_of(claimant, (int(partition), int(lo), int(hi), isolation, now), ClaimSource.STREAM, ends)
        fill(session, claimant, claim, results[-1].rows)
        return claim

    return session.retry_on_conflict(attempt)


def send_taking(packet: Packet, claimant: Claimant) -> tuple[list[Result], Ends]:
    """Send a packet that claims; the ends of broadcast topics are read last, so that they are not those of before.

    Raises:
        FenceLost: see :func:`send_fenced`.
    """
    if not claimant.broadcasts:
        return send_fenced(packet), {}
    packet.add(_SQL.find_ends, {"topic_ids": sorted(claimant.broadcasts)})
    *results, ends = send_fenced(packet)
    return results, {(int(topic_id), int(partition)): int(end) for _, topic_id, partition, end in ends.rows}


def add_bodies(packet: Packet, claimant: Claimant, args: Mapping[str, Any]) -> None:
    """Append the statement that reads the bodies of a claim, as far as the group's filter wants them."""
    wanted = claimant.group.filter
    if wanted:
        packet.add(_SQL.read_wanted_bodies, {**args, **wanted.args})
    else:
        packet.add(_SQL.read_bodies, args)


def fill(session: Session, claimant: Claimant, claim: Claim, rows: Sequence[tuple[Any, ...]]) -> None:
    """Fill a claim with all of its messages that match the group's filter.

    Raises:
        ConnectionLost: the server returned fewer rows than it holds, for example because of a limit of the session.
            The missing messages would look like tombstones, and would be acked without a run.
    """
    if len(rows) <= claim.hi - claim.lo:
        where = {"topic_id": claimant.topic.id, "partition": claim.partition, "lo": claim.lo, "hi": claim.hi}
        wanted = session.rows(_SQL.count_bodies, where | claimant.group.filter.args)[0][0]
        if wanted != len(rows):
            raise ConnectionLost(f"of the messages of a claim the server returned {len(rows)} instead of {wanted}")
    claim.messages = [Message(claimant.topic.name, claim.partition, row, claimant.decoder) for row in rows]


def open_packet(packet: Packet, before: Sequence[Flush]) -> None:
    """Open a transaction that records the ends of earlier claims; ``begin_taking`` must follow."""
    packet.begin()
    for one in before:
        add_flush(packet, one)


def claim_of(claimant: Claimant, row: tuple[Any, ...], source: ClaimSource, ends: Ends) -> Claim:
    """Build a claim from its row: partition, lo, hi, isolation, and the server's time."""
    partition, lo, hi, isolation, now = row
    return Claim(
        claimant.group.id,
        partition,
        lo,
        hi,
        lo - 1,
        claimant.claim_id,
        source,
        Isolation(isolation),
        claimant.client_id,
        order=claimant.group.order,
        taken_at=str(now),
        topic=claimant.topic.name,
        group=claimant.group.name,
        ends=ends,
    )


_TAKE_RETRIES = (
    _SQL.begin_taking,
    _SQL.find_due_retry,
    _SQL.take_due_retries,
    _SQL.leave_large_retries,
    _SQL.insert_retry_claim,
)


def take_retries(session: Session, claimant: Claimant, before: Sequence[Flush] = ()) -> Claim | NothingClaimed:
    """Claim due retries of one partition.

    Raises:
        FenceLost: an earlier claim has another owner by now; everything was rolled back.
    """

    def attempt() -> Claim | NothingClaimed:
        packet = session.packet()
        open_packet(packet, before)
        packet.add_all(_TAKE_RETRIES, args_of(claimant))
        packet.commit()
        packet.add_all((_SQL.get_retry_claim, _SQL.read_retry_bodies), args_of(claimant))
        return retries_claimed(claimant, *send_taking(packet, claimant))

    return session.retry_on_conflict(attempt)


def retries_claimed(claimant: Claimant, results: Sequence[Result], ends: Ends) -> Claim | NothingClaimed:
    """Build a claim of retries from the results of the last two statements of its packet.

    Raises:
        ConnectionLost: the server returned fewer rows than it holds.
    """
    if not results[-2].rows:
        return NothingClaimed.EMPTY
    *found, count = results[-2].rows[0]
    claim = claim_of(claimant, tuple(found), ClaimSource.RETRY, ends)
    rows = results[-1].rows
    if len(rows) != count:
        raise ConnectionLost(f"of the retries of a claim the server returned {len(rows)} instead of {count}")
    claim.messages = [
        Message(claimant.topic.name, claim.partition, row[1:], claimant.decoder, row[0] + 1)
        for row in rows
        if row[2] is not None
    ]
    claim.gone = [(row[1], row[0] + 1) for row in rows if row[2] is None]
    return claim
