"""Holes of a partition: offsets without a row."""

from __future__ import annotations

from emsworker.core.offsets import OffsetRange
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
_COUNT = 200_000  # offsets in one counting statement: a tenth of a second


def find_hole(session: Session, offsets: OffsetRange) -> int:
    """Return the first offset of a range that has no row, or its end."""

    def full(part: OffsetRange) -> bool:
        return int(session.rows(_SQL.count_rows, part.args)[0][0]) >= len(part)

    for part in offsets.steps(_COUNT):
        if full(part):
            continue
        while len(part) > 1:
            first, second = part.cut(2)
            part = second if full(first) else first
        return part.start
    return offsets.end
