"""Finds lost claims, locks one, tells the facts about it, and carries out what was decided.

A claim is lost when its owner is gone (orphaned) or hangs (stuck). Who is charged and what follows is decided above
the store, in :mod:`emsworker.runtime.recovery`.

Each claim is recovered in one transaction that begins by locking its row, the same row that its owner's fence needs: a
crash at any line leaves the claim as it was. After the claim come the cursor, where keys run in order, and retries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from emsworker.core.filters import Filter
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Failure, Isolation, Order
from emsworker.store import blocking
from emsworker.store.progress import add_failures
from emsworker.store.session import Session
from emsworker.store.sql import Statements

_SQL = Statements("recovery")


class Place(NamedTuple):
    """The claim's row."""

    group_id: int
    topic_id: int
    partition: int
    lo: int
    claim_id: int


@dataclass(frozen=True)
class Lost:
    """A claim whose owner is gone or hangs, with its row locked.

    Attributes:
        running: the message that its owner had begun and not ended, where it told so.
        orphaned: its owner has no good lease; otherwise it has one, and the claim's deadline has passed.
        over_s: for how many seconds the owner's lease had been over; ``None`` if it signed off, or was signed off.
        ladder, max_attempts: of the group; ``None`` if the group has been deleted.
    """

    place: Place
    claim: Claim
    running: int | None
    orphaned: bool
    over_s: float | None
    ladder: str | None
    max_attempts: int | None


@dataclass(frozen=True)
class Suspect:
    """The first message of a lost claim that was not finished.

    Attributes:
        attempt: the number of the run that was lost.
        headers: as they are stored; empty if the message is gone.
    """

    offset: int
    attempt: int
    headers: bytes


def find_lost(session: Session) -> list[Place]:
    """Look, without any lock, for claims that may have to be recovered."""
    return [Place(*row[:5]) for row in session.rows(_SQL.find_lost)]


def lock_lost(session: Session, place: Place) -> Lost | None:
    """Begin to recover a claim: lock its row, and look again; ``None`` if it need not be recovered any more."""
    where = place._asdict()
    rows = session.rows(_SQL.lock_lost, where)
    if not rows or not (rows[0][-2] or rows[0][-1]):
        return None  # the owner finished it, is finishing it, or came back with a good lease
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
    )
    if claim.source is ClaimSource.RETRY:
        claim.keys = {offset: key for offset, _, key in session.rows(_SQL.list_claimed_retries, where)}
    over_s = float(over_s) if orphaned and over_s is not None else None
    return Lost(place, claim, running, bool(orphaned), over_s, ladder, max_attempts)


def find_suspect(session: Session, lost: Lost) -> Suspect | None:
    """The message that is to blame if any is; ``None`` if nothing of the claim was left to run."""
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
    return Suspect(offset, before + 1, found[0][0] if found else b"")


def forget(session: Session, lost: Lost) -> None:
    """Delete a claim of a group that has been deleted."""
    session.execute(_SQL.delete_claim, lost.place._asdict())


def give_back(session: Session, lost: Lost, failure: Failure | None, isolation: Isolation) -> None:
    """End a lost claim after what was finished of it; the rest waits for other owners.

    Args:
        failure: of the message that is charged, the first one that was not finished.
        isolation: how carefully the rest is to be run.
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
