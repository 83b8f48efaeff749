"""Due times of waiting retries, changed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from emsworker.core.model import Group
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


def make_due(session: Session, group: Group, places: Sequence[tuple[int, int]]) -> int:
    """Make waiting retries due now; their attempts count as before.

    Args:
        places: partition and offset of each; those that run already, are due, or are blocked are left as they are.

    Returns:
        the number of retries that became due.
    """
    if not places:
        return 0

    def work(session: Session) -> int:
        total = 0
        for partition, members in groupby(sorted(set(places)), key=lambda place: place[0]):
            where = {"group_id": group.id, "partition": partition, "offsets": [offset for _, offset in members]}
            total += session.execute(_SQL.make_due, where).affected
        return total

    return session.transaction(work)
