"""Rows that expire, kind by kind: what deletes those that have, at most a number of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from emsworker.store.cluster import once
from emsworker.store.engine.session import Session
from emsworker.store.groups import cancel, limits, notices, reports, results
from emsworker.store.stream import dedup


@dataclass(frozen=True)
class ExpiringRows:
    """One kind of rows that expire.

    Attributes:
        name: of the kind.
        delete: deletes expired ones, at most the number that it is given; returns how many.
        most: that are deleted at once.
        none_beats: the pause while there are none, in beats.
    """

    name: str
    delete: Callable[[Session, int], int]
    most: int = 1000
    none_beats: int = 30


EXPIRING = (
    ExpiringRows("results", results.sweep),
    ExpiringRows("once", once.sweep),
    ExpiringRows("keys", dedup.sweep, 200),
    ExpiringRows("reports", reports.sweep),
    ExpiringRows("slots", limits.sweep),  # of clients that no longer exist; they have no effect
    ExpiringRows("cancels", cancel.sweep, 100, none_beats=10),  # every poll of a worker reads them
    ExpiringRows("notices", notices.sweep),
)
