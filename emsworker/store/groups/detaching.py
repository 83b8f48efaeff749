"""Detaching of messages that take long: the rest of their claim ends, and the partition is free for others."""

from __future__ import annotations

from emsworker.core.flush import Flush
from emsworker.core.model import Claim, ClaimSource, Order
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.blocking import lock_turn
from emsworker.store.groups.progress import add_cut, add_flush, send_fenced

_SQL = Statements(__name__)


def detach(session: Session, progress: Flush, rest: Claim) -> None:
    """Flush a claim's progress, and move its running messages to a claim of their own, beside the partition's stream.

    Args:
        progress: of the claim as it was. A claim of the stream ends at ``acked_to``; the messages after it wait for an
            owner.
        rest: the claim of the messages that run.

    Raises:
        FenceLost: the claim has another owner by now; everything was rolled back.
    """
    claim = progress.claim
    where = {"group_id": rest.group_id, "partition": rest.partition, "lo": rest.lo, "claim_id": rest.claim_id}

    def attempt() -> None:
        packet = session.packet()
        packet.begin()
        if claim.source is ClaimSource.STREAM:
            add_cut(packet, claim, progress.acked_to, claim.isolation)
            by_key = claim.order is Order.KEY
            if by_key:
                lock_turn(packet, claim)
            keys = ((m.offset, m.key_bytes if by_key else None) for m in rest.messages)
            rows = (where | {"offset": offset, "key": key} for offset, key in keys)
            packet.insert_many(_SQL.claim_rows, _SQL.claimed_row, rows)
        add_flush(packet, progress)
        if claim.source is ClaimSource.STREAM:
            values = {"hi": rest.hi, "acked_to": rest.acked_to, "client_id": rest.client_id}
            packet.add(_SQL.add_claim, where | values | {"timeout_s": progress.timeout_s})
        else:
            packet.add(_SQL.mark_detached, where)
        packet.commit()
        send_fenced(packet)

    session.retry_on_conflict(attempt)
