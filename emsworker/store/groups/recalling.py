"""Recalling of a claim that its own client does not know, because the answer to the packet that took it was lost."""

from __future__ import annotations

from emsworker.core.model import Claim, ClaimSource, Isolation
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.claims import Claimant
from emsworker.store.groups.progress import Flush, give_back

_SQL = Statements(__name__)


def recall(session: Session, claimant: Claimant) -> bool:
    """Give back the claim that has the claimant's fencing token, with no attempt charged; return true if there was one.

    Raises:
        FenceLost: it has another owner by now.
    """
    rows = session.rows(_SQL.find_taken, claimant.args)
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
