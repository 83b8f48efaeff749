"""Fair groups: messages that wait are taken in turn by key, so that one key's flood does not hold up the others.

Every claim first moves what is new in the stream into lanes, one for each key: rows of ``ems_retry`` that were never
tried. So no message waits until a search for work has found it while all threads are busy with a flood. One transaction
of the server moves up to 2,000 messages and the group's cursor, so every offset is in one place all the time, and
whatever knows of retries (recovery, retention, cancel, traces) knows of lanes too. Then the claim takes from the lanes.

The order is start-time fair queueing: a message that enters gets a virtual time, that of the last message of its key
plus one, or that of the group if the key has none waiting; messages are taken by virtual time. So of n keys that have
messages waiting, each gets every nth place, and a key that comes new is next. A claim costs the same with ten keys and
with ten thousand, with a backlog of a hundred and of a million: nothing is counted, and no key is looked at in vain.

In a group that limits how many messages of each key run at once, only the first message of a key (in each partition)
stands in its lane; the others are blocked, due in the years from 9000 on. Whoever takes one brings the next one, so a
key without room is passed over at the cost of a row, however many of its messages wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.core.flush import Flush
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim
from emsworker.core.work import Claimant, NothingClaimed
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Sql, Statements, nest
from emsworker.store.groups.claims import args_of, open_packet, retries_claimed, send_taking
from emsworker.store.stream.columns import MESSAGE

_SQL = Statements(__name__, start="'1000-01-01'", is_first="")
_LIMITED = Statements(
    __name__,
    start="IF(f.is_first = 1, '1000-01-01', '9000-01-01')",
    is_first=""",
    n.place = 1 AND NOT EXISTS (SELECT 1 FROM ems_retry r FORCE INDEX (lane) WHERE r.group_id = %(group_id)s
      AND r.`partition` = %(partition)s AND r.`key` = n.lane AND r.claim_id IS NULL
      AND (r.due_at < '1900-01-01' OR r.due_at >= '9000-01-01')) AS is_first""",
)
_TAKE = Statements("emsworker.store.groups.claims", **MESSAGE)
_RANGE = 2000  # messages that one transaction moves: some 30 ms, for which the cursor is locked
_MOST_RANGES = 50  # of one claim: who sends faster than this moves must not keep a client for ever
_NO_LIMIT = 1 << 62


def _there(statement: Sql) -> Sql:
    """Return a statement about the partition of which new messages are moved, wherever they were found."""
    return nest(statement, "partition", _SQL.moved_partition)


_LOCK, _LOCK_OR_SKIP = _there(_TAKE.lock_cursor), _there(_TAKE.lock_cursor_or_skip)


_FIND = (_there(_TAKE.find_range), _SQL.find_head)
_END_MOVE = (_there(_SQL.add_done_claim), _there(_TAKE.move_cursor), _SQL.begin_lanes)
_MOVE = (*_FIND, _there(_SQL.add_places), *_END_MOVE)
_MOVE_LIMITED = (*_FIND, _there(_LIMITED.add_places), *_END_MOVE)
_BEGIN, _BEGIN_LIMITED = (_TAKE.begin_taking,), (_TAKE.begin_taking, _SQL.begin_limited, _SQL.lock_limit)
_TAKE_LANES = (
    _SQL.find_head,
    _SQL.enter_lanes,
    _SQL.find_next,
    _SQL.take_following,
    _TAKE.leave_large_retries,
    _TAKE.insert_retry_claim,
)
_TAKE_LIMITED = (
    _SQL.find_head,
    _SQL.enter_lanes,
    _SQL.find_with_room,
    _SQL.take_following,
    _TAKE.insert_retry_claim,
    _SQL.unblock_next,
)


def take_new(
    session: Session,
    claimant: Claimant,
    partition: int,
    before: Sequence[Flush] = (),
    *,
    wait: bool = False,
    announced: bool = False,
) -> Claim | NothingClaimed:
    """Move the new messages of a partition into lanes, or of another one, and claim the next ones of all lanes.

    Args:
        partition: where new messages are looked for first.
        wait: if nothing waits in the lanes, and another client holds the cursor, wait for it, instead of returning
            ``NothingClaimed.BUSY``.
        announced: first wait until what is just being published there is committed.

    Raises:
        FenceLost: an earlier claim has another owner by now; the transaction was rolled back.
    """
    return _take_next(session, claimant, partition, before, wait=wait, announced=announced)


def take_waiting(session: Session, claimant: Claimant, before: Sequence[Flush] = ()) -> Claim | NothingClaimed:
    """Move the new messages of any partition into lanes, and claim the next ones of all lanes.

    Raises:
        FenceLost: an earlier claim has another owner by now; the transaction was rolled back.
    """
    return _take_next(session, claimant, None, before)


def _take_next(
    session: Session,
    claimant: Claimant,
    partition: int | None,
    before: Sequence[Flush],
    *,
    wait: bool = False,
    announced: bool = False,
) -> Claim | NothingClaimed:
    lock = _LOCK_OR_SKIP
    for _ in range(_MOST_RANGES):
        taken, moved = _move_and_take(session, claimant, partition, before, lock, announced)
        if moved is None and (taken or not wait):
            return taken or NothingClaimed.BUSY
        if moved is None:
            lock = _LOCK
        elif moved < _RANGE:
            return taken
        before, announced = (), False
    return _take_moved(session, claimant)


def _take_moved(session: Session, claimant: Claimant) -> Claim | NothingClaimed:
    """Claim the next messages of all lanes, whatever is new."""

    def attempt() -> Claim | NothingClaimed:
        packet = session.packet()
        open_packet(packet, ())
        packet.add_all(_BEGIN_LIMITED if claimant.per_key else _BEGIN, args_of(claimant))
        return _take(packet, claimant)[0]

    return session.retry_on_conflict(attempt)


def _move_and_take(
    session: Session, claimant: Claimant, partition: int | None, before: Sequence[Flush], lock: Sql, announced: bool
) -> tuple[Claim | NothingClaimed, int | None]:
    """Claim unless a full range was moved; return the number of moved offsets, too, ``None`` if the cursor was busy."""
    args = args_of(claimant) | claimant.group.filter.args
    args |= {"partition": partition, "path": f'$."{claimant.fair}"', "range_id": new_claim_id(), "range": _RANGE}

    def attempt() -> tuple[Claim | NothingClaimed, int | None]:
        packet = session.packet()
        packet.add_all((_TAKE.await_commit,) if announced else (), args)
        open_packet(packet, before)
        begin, move = (_BEGIN_LIMITED, _MOVE_LIMITED) if claimant.per_key else (_BEGIN, _MOVE)
        packet.add_all((*begin, _SQL.find_news, lock, *move), args | {"batch": _RANGE, "batch_bytes": _NO_LIMIT})
        return _take(packet, claimant)

    return session.retry_on_conflict(attempt)


def _take(packet: Packet, claimant: Claimant) -> tuple[Claim | NothingClaimed, int | None]:
    args = args_of(claimant)
    if claimant.per_key:
        packet.add_all(_TAKE_LIMITED, args | {"batch": 1})
    else:
        packet.add_all(_TAKE_LANES, args)
    packet.commit()
    packet.add_all((_SQL.get_moved, _TAKE.get_retry_claim, _TAKE.read_retry_bodies), args)
    results, ends = send_taking(packet, claimant)
    moved = results[-3].rows[0][0]
    return retries_claimed(claimant, results, ends), None if moved is None else int(moved)


def restart_lanes(session: Session) -> int:
    """Bring messages into the lanes in which only blocked ones are left; return the number of those lanes.

    A key that waits for this loses a moment, and nothing can stop it for good.
    """
    stopped = 0
    for (group_id,) in session.rows(_SQL.find_blocked_groups):
        for partition, key in session.rows(_SQL.find_stopped_lanes, {"group_id": group_id}):
            stopped += 1
            session.change(_SQL.unblock, {"group_id": group_id, "partition": partition, "key": key})
    return stopped
