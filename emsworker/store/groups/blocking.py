"""Blocked messages: in a group that runs keys in order, the messages behind a failed one of their key wait with it.

They wait in ``ems_retry``. Of the rows of a key only the first has a due time, and runs next; when it ends, the next
one is promoted in the same transaction. A transaction that ends or blocks messages locks the partition's cursor row,
so that no message is blocked behind one that has just ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from emsworker.core.model import Claim, ClaimSource
from emsworker.store.engine.session import Packet
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)

_BLOCKED = "9000"  # a row that waits for an earlier one is due after that, as in blocking.sql and fair.sql
_FIRST_TIME = "1900"  # a row in a lane of a fair group is due before that, as in fair.sql


def waits_for_others(due_at: str) -> bool:
    """Return whether a row with this due time waits for other messages, of its key or of other keys, not for a time."""
    return due_at < _FIRST_TIME or due_at >= _BLOCKED


def lock_turn(packet: Packet, claim: Claim) -> None:
    """Append the lock under which keys of the claim's partition are blocked and promoted."""
    lock_turn_of(packet, claim.group_id, claim.partition)


def lock_turn_of(packet: Packet, group_id: int, partition: int) -> None:
    """Append the lock under which keys of a partition are blocked and promoted."""
    packet.add(_SQL.lock_turn, {"group_id": group_id, "partition": partition})


def block(packet: Packet, claim: Claim, blocked: Sequence[tuple[int, bytes | None]]) -> None:
    """Append the blocking of messages of a claim that were not run.

    Args:
        blocked: offset and key of each message; one without a key is due at once.
    """
    if not blocked:
        return
    where: dict[str, Any] = {"group_id": claim.group_id, "partition": claim.partition}
    if claim.source is ClaimSource.RETRY:
        offsets = [offset for offset, _ in blocked]
        packet.add(_SQL.release_blocked, where | {"claim_id": claim.claim_id, "offsets": offsets})
        return
    rows = (where | {"offset": offset, "key": key} for offset, key in sorted(blocked))
    packet.insert_many(_SQL.block, _SQL.blocked_row, rows)


def promote(packet: Packet, claim: Claim, keys: Iterable[bytes | None]) -> None:
    """Append the promotion of the first waiting message of each of these keys."""
    for key in sorted({key for key in keys if key is not None}):
        promote_of(packet, claim.group_id, claim.partition, key)


def promote_of(packet: Packet, group_id: int, partition: int, key: bytes) -> None:
    """Append the promotion of the first waiting message of a key of a partition."""
    packet.add(_SQL.promote, {"group_id": group_id, "partition": partition, "key": key})
