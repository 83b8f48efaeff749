"""Recovery of lost claims: find them, lock one, read the facts about it, and carry out the decision.

A claim is lost if its owner is gone (orphaned) or hangs (stuck). The decision which message is charged and what follows
is made above the store, in :mod:`emsworker.beat.recovery`.

Each claim is recovered in one transaction that begins by locking its row, the same row that its owner's fence needs: a
crash at any line leaves the claim as it was. Lock order: the claim, the cursor (if keys run in order), retries.
"""

from __future__ import annotations

from typing import Any

from emsworker.core.ids import new_claim_id
from emsworker.core.lost import Lost, Place, Suspect
from emsworker.core.model import Claim, ClaimSource, Failure, Isolation, Order
from emsworker.core.selection.filters import Filter
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups import blocking
from emsworker.store.groups.progress import add_failures

_SQL = Statements(__name__)


def find_lost(session: Session) -> list[Place]:
    """Find claims that may have to be recovered, without any lock."""
    return [Place(*row) for row in session.rows(_SQL.find_lost)]


def lock_lost(session: Session, place: Place) -> Lost | None:
    """Lock the row of a claim and check again that it is lost; ``None`` if it no longer needs recovery."""
    where = place._asdict()
    rows = session.rows(_SQL.lock_lost, where)
    if not rows or not (rows[0][-2] or rows[0][-1]):
        return None  # the owner finished it, is finishing it, or came back with a valid lease
    hi, acked_to, running, source, isolation, client_id, over_s, orphaned, _ = rows[0]
    ladder, max_attempts, order = next(iter(session.rows(_SQL.get_group, where)), (None, None, Order.NONE))
    claim = Claim(
        place.group_id,
        place.partition,
        place.lo,
        hi,
        acked_to,
        place.claim_id,
        ClaimSource(source),
        Isolation(isolation),
        client_id,
        order=Order(order),
        topic=place.topic,
        group=place.group,
    )
    if claim.source is ClaimSource.RETRY:
        claim.keys = {offset: key for offset, _, key in session.rows(_SQL.list_claimed_retries, where)}
    over_s = float(over_s) if orphaned and over_s is not None else None
    return Lost(place, claim, running, bool(orphaned), over_s, ladder, max_attempts)


def find_suspect(session: Session, lost: Lost) -> Suspect | None:
    """Return the only message that may be to blame; ``None`` if no message of the claim was left to run."""
    where = lost.place._asdict()
    if lost.claim.source is ClaimSource.RETRY:
        rows = session.rows(_SQL.list_claimed_retries, where)
    else:
        wanted = Filter.from_text(session.rows(_SQL.get_filter, where)[0][0])
        rest = {"from_offset": lost.claim.acked_to + 1, "hi": lost.claim.hi}
        rows = session.rows(_SQL.find_suspect, where | wanted.args | rest)
    if not rows:
        return None
    offset = int(rows[0][0])
    before = rows[0][1] if lost.claim.source is ClaimSource.RETRY else 0
    found = session.rows(_SQL.get_headers, where | {"offset": offset})
    headers, uid = found[0] if found else (b"", None)
    return Suspect(offset, before + 1, headers, uid)


def forget(session: Session, lost: Lost) -> None:
    """Delete a claim of a group that has been deleted."""
    session.execute(_SQL.delete_claim, lost.place._asdict())


def give_back(session: Session, lost: Lost, failure: Failure | None, isolation: Isolation) -> None:
    """End a lost claim after its finished part; the rest waits for other owners.

    Args:
        failure: of the message that is charged, the first one that was not finished.
        isolation: the isolation with which the rest is to be run.
    """
    claim, where = lost.claim, lost.place._asdict()
    if claim.source is ClaimSource.RETRY:
        _charge(session, lost, failure)
        session.execute(_SQL.release_claimed_retries, where | {"isolation": int(isolation)})
        session.execute(_SQL.delete_claim, where)
        return
    if claim.acked_to < claim.lo:
        session.execute(_SQL.delete_claim, where)  # the log keeps no empty ranges
    else:
        session.execute(_SQL.truncate_claim, where | {"acked_to": claim.acked_to})
    _charge(session, lost, failure)
    rest = claim.acked_to + 1 if failure is None else failure.offset + 1
    if rest <= claim.hi:
        values: dict[str, Any] = {"lo": rest, "hi": claim.hi, "claim_id": new_claim_id(), "isolation": int(isolation)}
        session.execute(_SQL.add_waiting, where | values)


def _charge(session: Session, lost: Lost, failure: Failure | None) -> None:
    if failure is None:
        return
    claim = lost.claim
    packet = session.packet()
    if claim.order is Order.KEY:
        blocking.lock_turn(packet, claim)
    add_failures(packet, claim, lost.place.topic_id, [failure], claim.client_id)
    if failure.retry_in_s is None:
        blocking.promote(packet, claim, [claim.keys.get(failure.offset)])
    packet.send()
