"""Blocking: in a group that runs keys in order, what is later than a failed message of its key waits with it.

Where it waits is ``ems_retry``. Of the rows of a key only the first has a time at which it is due; it is the one that
runs next, and when it has ended the next one's turn comes in the same transaction. Whoever ends or blocks anything
holds the partition's cursor row, so that no message is blocked behind one that has just ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from emsworker.core.model import Claim, ClaimSource
from emsworker.store.session import Packet
from emsworker.store.sql import Statements

_SQL = Statements("blocking")

BLOCKED_YEAR = 9999  # the time of a row that waits for an earlier one


def lock_turn(packet: Packet, claim: Claim) -> None:
    """Append the lock under which keys of the claim's partition are blocked and promoted."""
    lock_turn_of(packet, claim.group_id, claim.partition)


def lock_turn_of(packet: Packet, group_id: int, partition: int) -> None:
    """The same of any partition."""
    packet.add(_SQL.lock_turn, {"group_id": group_id, "partition": partition})


def block(packet: Packet, claim: Claim, blocked: Sequence[tuple[int, bytes | None]]) -> None:
    """Append that messages of a claim, offset and key, were not run; one without a key is due at once."""
    if not blocked:
        return
    where = {"group_id": claim.group_id, "partition": claim.partition}
    if claim.source is ClaimSource.RETRY:
        offsets = [offset for offset, _ in blocked]
        packet.add(_SQL.release_blocked, where | {"claim_id": claim.claim_id, "offsets": offsets})
        return
    shape = f"(%(group_id)s,%(partition)s,%(offset)s,0,IF(%(key)s IS NULL,NOW(6),'{BLOCKED_YEAR}-12-31'),%(key)s)"
    rows = [packet.session.mogrify(shape, where | {"offset": offset, "key": key}) for offset, key in sorted(blocked)]
    packet.add_rows(_SQL.block, rows)


def promote(packet: Packet, claim: Claim, keys: Iterable[bytes | None]) -> None:
    """Append that for each of these keys the first message that waits may run."""
    for key in sorted({key for key in keys if key is not None}):
        promote_of(packet, claim.group_id, claim.partition, key)


def promote_of(packet: Packet, group_id: int, partition: int, key: bytes) -> None:
    """The same of one key of any partition."""
    packet.add(_SQL.promote, {"group_id": group_id, "partition": partition, "key": key})
