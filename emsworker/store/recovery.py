"""Recovery of claims whose owner is gone (orphaned) or hangs (stuck); a duty of the beat.

Who is to blame? A claim's watermark is flushed every 100 ms, so after a crash the first unfinished message need not be
the one that ran, and nobody is charged for it. Each crash narrows the suspicion down instead (:class:`Care`): what a
first crash leaves is claimed by a few dozen; what a crash leaves of those is claimed one by one, each message written
down before it starts and no two of them at once in a process. The third crash then names the poison exactly, and only
that message is charged an attempt. A stuck claim names its message at once, because its living process has flushed
everything before it. (An earlier design charged the first unfinished message of a first crash: mostly a neighbour.)

Each claim is recovered in one transaction that begins by locking its row, the same row that its owner's fence needs: a
crash at any line leaves the claim as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emsworker.core.errors import TimeLimitExceeded
from emsworker.core.filters import Filter
from emsworker.core.ids import new_claim_id
from emsworker.core.ladder import Ladder
from emsworker.core.model import Care, Claim, ClaimSource, Failure, Order, Outcome
from emsworker.store import parking
from emsworker.store.errors import ConnectionLost
from emsworker.store.progress import add_failures
from emsworker.store.session import Session
from emsworker.store.sql import Statements

log = logging.getLogger(__name__)

_SQL = Statements("recovery")


@dataclass(frozen=True)
class Recovered:
    """One recovered claim: why, from whom, and which message was charged (``None``: nobody).

    Attributes:
        over_s: for how many seconds its owner's lease had been over; ``None`` if he had signed off, or it was good.
    """

    group_id: int
    partition: int
    client_id: str | None
    outcome: Outcome
    charged: int | None
    over_s: float | None = None


def recover(session: Session, jitter: float) -> list[Recovered]:
    """Recover every lost claim.

    Args:
        jitter: by up to which share the delay of a charged message is lengthened.
    """
    recovered = []
    for row in session.rows(_SQL.find_lost):
        try:
            recovered.append(session.transaction(_recover_one(row[:5], jitter)))
        except ConnectionLost:
            raise
        except Exception:  # one claim that cannot be recovered must not keep the others waiting
            log.exception("cannot recover the claim %s (group, topic, partition, first offset, id)", row[:5])
    return [one for one in recovered if one is not None]


def _recover_one(key: tuple[Any, ...], jitter: float) -> Callable[[Session], Recovered | None]:
    group_id, topic_id, partition, lo, claim_id = key
    where = {"group_id": group_id, "topic_id": topic_id, "partition": partition, "lo": lo, "claim_id": claim_id}

    def work(session: Session) -> Recovered | None:
        rows = session.rows(_SQL.lock_lost, where)
        if not rows or not (rows[0][-2] or rows[0][-1]):
            return None  # the owner finished it, is finishing it, or came back with a good lease
        hi, done_to, running, source, care, client_id, over_s, orphaned, _ = rows[0]
        claim = Claim(group_id, partition, lo, hi, done_to, claim_id, ClaimSource(source), Care(care), client_id)
        settings = session.rows(_SQL.get_ladder, where)
        if not settings:  # the group has been deleted
            session.execute(_SQL.delete_claim, where)
            return None
        claim.order = Order(settings[0][-1])
        blamed = not orphaned or (running is not None and running > done_to)
        recover_source = _recover_retries if claim.source is ClaimSource.RETRY else _recover_range
        outcome = Outcome.ORPHANED if orphaned else Outcome.TIMEOUT
        charged = recover_source(session, claim, where, outcome if blamed else None, jitter)
        over_s = float(over_s) if orphaned and over_s is not None else None
        return Recovered(group_id, partition, client_id, outcome, charged, over_s)

    return work


def _recover_range(
    session: Session, claim: Claim, where: dict[str, Any], blame: Outcome | None, jitter: float
) -> int | None:
    if claim.done_to < claim.lo:
        session.execute(_SQL.delete_claim, where)  # the log keeps no empty ranges
    else:
        session.execute(_SQL.truncate_claim, where | {"done_to": claim.done_to})
    rest, charged = claim.done_to + 1, None
    if blame is not None:
        wanted = Filter.from_text(session.rows(_SQL.get_filter, where)[0][0])
        suspects = session.rows(_SQL.find_suspect, where | wanted.args | {"from_offset": rest, "hi": claim.hi})
        if suspects:
            charged = int(suspects[0][0])
            _charge(session, claim, where, (charged, 1, blame), jitter)
            rest = charged + 1
    if rest <= claim.hi:
        care = claim.care if blame is not None else min(claim.care + 1, Care.ALONE)
        session.execute(
            _SQL.add_waiting, where | {"lo": rest, "hi": claim.hi, "claim_id": new_claim_id(), "care": care}
        )
    return charged


def _recover_retries(
    session: Session, claim: Claim, where: dict[str, Any], blame: Outcome | None, jitter: float
) -> int | None:
    rows = session.rows(_SQL.list_claimed_retries, where)
    claim.keys = {offset: key for offset, _, key in rows}
    charged = None
    if rows and blame is not None:
        charged, attempt, _ = rows[0]
        _charge(session, claim, where, (charged, attempt + 1, blame), jitter)
    session.execute(_SQL.release_claimed_retries, where)
    session.execute(_SQL.delete_claim, where)
    return charged


def _charge(
    session: Session, claim: Claim, where: dict[str, Any], what: tuple[int, int, Outcome], jitter: float
) -> None:
    offset, attempt, outcome = what
    text, max_attempts, _ = session.rows(_SQL.get_ladder, where)[0]
    error = TimeLimitExceeded(
        "ran past the group's timeout" if outcome is Outcome.TIMEOUT else "its worker died while running it"
    )
    decision = Ladder.parse(text, max_attempts, jitter).next(attempt, error)
    failure = Failure.decided(offset, attempt, outcome, str(error), decision, ran_s=None)
    packet = session.packet()
    if claim.order is Order.KEY:
        parking.lock_turn(packet, claim)
    add_failures(packet, claim, where["topic_id"], [failure], claim.client_id)
    if failure.retry_in_s is None:
        parking.promote(packet, claim, [claim.keys.get(offset)])
    if outcome is Outcome.ORPHANED:
        packet.add(_SQL.mark_suspect, where | {"offset": offset})
    packet.send()
