"""A client and its claims after an outage: which it still has, and one that it does not know that it has taken."""

from __future__ import annotations

from emsworker.core.flush import Flush
from emsworker.core.model import Claim, ClaimSource, Isolation
from emsworker.core.work import Claimant
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.claims import args_of
from emsworker.store.groups.progress import give_back

_SQL = Statements(__name__)


def list_own(session: Session, client_id: str) -> set[int]:
    """Return the fencing tokens of the claims that a client has in hand."""
    return {int(claim_id) for (claim_id,) in session.rows(_SQL.list_own, {"client_id": client_id})}


def recall(session: Session, claimant: Claimant) -> bool:
    """Give back the claim that has the claimant's fencing token, with no attempt charged; return true if there was one.

    Raises:
        FenceLost: it has another owner by now.
    """
    rows = session.rows(_SQL.find_taken, args_of(claimant))
    if not rows:
        return False
    partition, lo, hi, source, isolation = rows[0]
    claim = Claim(
        claimant.group.id,
        int(partition),
        int(lo),
        int(hi),
        int(lo) - 1,
        claimant.claim_id,
        ClaimSource(source),
        Isolation(isolation),
        claimant.client_id,
        order=claimant.group.order,
        topic=claimant.topic.name,
        group=claimant.group.name,
    )
    give_back(session, Flush(claim, claimant.topic.id, claim.acked_to, claimant.group.timeout_s, finished=True), lo - 1)
    return True
