"""Claims for ordered groups: a partition has at most one owner at a time.

A claim locks the partition's cursor row until the commit. Under this lock it checks that no other claim is running, and
takes what comes first: retries, then ranges that were given back, then new messages. No partition is assigned to a
client for longer than one claim, so there is no rebalance when clients come and go.

If several nodes of a cluster are written to, row locks do not block writers on other nodes. There a claim always
changes the cursor row, so that of two claims only one is committed.

- ``order="partition"``: a message to retry waits in ``ems_retry``; until it has ended, nothing else of its partition is
  claimed.
- ``order="key"``: it blocks only its own key (module ``blocking``). When it is due, it is claimed together with
  the messages blocked behind it. This is not done while a claim of the stream runs, which would go on blocking
  messages of the key: at full load a chain would grow as fast as it is run (measured: after one failure in a hundred,
  half of all messages ran through such chains).
"""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.core.flush import Flush
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Order
from emsworker.core.work import Claimant, NothingClaimed
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.claims import add_bodies, args_of, claim_of, fill, open_packet, retries_claimed, send_taking
from emsworker.store.stream.columns import MESSAGE

_SQL = Statements(__name__)
_TAKE = Statements("emsworker.store.groups.claims", **MESSAGE)


def take_next(
    session: Session, claimant: Claimant, partition: int, before: Sequence[Flush] = ()
) -> Claim | NothingClaimed:
    """Claim the next messages of a partition, and record the ends of earlier claims in the same transaction.

    Raises:
        FenceLost: an earlier claim has another owner by now; the transaction was rolled back.
    """
    args = args_of(claimant) | {"partition": partition, "rest_id": new_claim_id()}

    def attempt() -> Claim | NothingClaimed:
        packet = session.packet()
        open_packet(packet, before)
        packet.add_all((*_OWNER, *_RETRIES[claimant.group.order], _TAKE.insert_retry_claim, *_STREAM), args)
        if session.among_writers:
            packet.add_all(_CLASH, args)
        packet.commit()
        return _taken(claimant, packet, args)

    return session.retry_on_conflict(attempt)


_OWNER = (_TAKE.begin_taking, _TAKE.lock_cursor_or_skip, _SQL.check_owner)
_RETRIES = {
    Order.PARTITION: (_SQL.find_first_retry, _SQL.take_first_retry),
    Order.KEY: (_SQL.find_due_key, _SQL.take_due_keys, _SQL.find_near, _SQL.take_behind),
}
_STREAM = (
    _SQL.give_way,
    _SQL.find_first_waiting,
    _TAKE.cut_waiting,
    _SQL.check_time,
    _SQL.find_range_if_none_waits,
    _TAKE.adopt_waiting,
    _TAKE.add_rest,
    _TAKE.insert_claim,
    _TAKE.move_cursor,
)
_CLASH = (_SQL.advance_cursor, _SQL.return_cursor)
_BEFORE_BODIES = (_SQL.list_keys, _SQL.list_blocked, _TAKE.get_claimed)
_OF_RETRIES = (_TAKE.get_retry_claim, _TAKE.read_retry_bodies)


def _taken(claimant: Claimant, packet: Packet, args: dict[str, object]) -> Claim | NothingClaimed:
    packet.add_all(_BEFORE_BODIES, args)
    add_bodies(packet, claimant, args)
    packet.add_all(_OF_RETRIES, args)
    results, ends = send_taking(packet, claimant)
    keys, blocked_keys, claimed, bodies = (result.rows for result in results[-6:-2])
    partition, lo, hi, isolation, now = claimed[0]
    if partition is None:
        return NothingClaimed.BUSY
    if hi is None or lo is None:
        claim = retries_claimed(claimant, results, ends)
        if isinstance(claim, Claim):
            claim.keys = dict(keys)
        return claim
    claim = claim_of(claimant, (int(partition), int(lo), int(hi), isolation, now), ClaimSource.STREAM, ends)
    fill(packet.session, claimant, claim, bodies)
    claim.blocked_keys = frozenset(row[0] for row in blocked_keys) if claim.order is Order.KEY else frozenset()
    return claim
