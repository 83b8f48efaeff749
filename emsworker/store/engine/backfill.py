"""A backfill: a statement that is run for one range of a table's rows after another, each in a transaction of its own.

Its place is committed with each range, so that after a crash it goes on there, and no range is run twice. It ends
at the first range that is not full. Rows that programs write meanwhile behind it have what their columns' defaults are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.core.process.clock import ticks
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier, join, literal
from emsworker.store.engine.steps import MigrationStep

_SQL = Statements(__name__)
BATCH_S = 0.1
"""Seconds that a range may take; rows of it are locked for so long."""

_FIRST, _FEWEST, _MOST = 500, 50, 20_000
Place = tuple[Any, ...]


@dataclass(frozen=True)
class Batch:
    """One range of rows.

    Attributes:
        sql: the statement for it.
        place: the key of its last row; ``None`` for the last range.
        rows: about how many there are.
    """

    sql: Sql
    place: Place | None
    rows: int


def batches(session: Session, step: MigrationStep, place: Place | None) -> Iterator[Batch]:
    """Yield one range after another; each is to be run before the next one is asked for.

    Args:
        place: the key of the last row that is done.
    """
    table = identifier(step.table)
    columns = [identifier(name) for (name,) in session.rows(_SQL.list_key, {"table": step.table})]
    size = _FIRST
    while True:
        after = _SQL.is_any if place is None else _beyond(columns, place, _SQL.is_after, _SQL.is_after_last)
        parts = {"table": table, "columns": join(", ", columns), "rows": after}
        found = session.rows(fill(_SQL.find_end, parts | {"skipped": size - 1}))
        if not found:
            rest = int(session.rows(fill(_SQL.count_rest, parts))[0][0])
            yield Batch(fill(step.sql, {step.range_name: after}), None, rest)
            return
        place = found[0]
        within = _beyond(columns, place, _SQL.is_within, _SQL.is_within_last)
        began = ticks()
        yield Batch(
            fill(step.sql, {step.range_name: fill(_SQL.is_between, {"after": after, "within": within})}), place, size
        )
        size = _next_size(size, ticks() - began)


def _next_size(size: int, took_s: float) -> int:
    wanted = size * BATCH_S / 2 / max(took_s, 0.001)
    return int(max(_FEWEST, size / 2, min(wanted, size * 2, _MOST)))


def _beyond(columns: Sequence[Sql], place: Place, inner: Sql, last: Sql) -> Sql:
    condition = fill(last, {"column": columns[-1], "value": literal(place[-1])})
    for column, value in zip(columns[-2::-1], place[-2::-1], strict=True):
        condition = fill(inner, {"column": column, "value": literal(value), "rest": condition})
    return condition


def write_place(place: Place) -> str:
    """Return a place as text; of a column's values only bytes are none of JSON's."""
    return json.dumps([{"hex": one.hex()} if isinstance(one, bytes) else one for one in place])


def read_place(text: str) -> Place:
    """Return the place that was written as text."""
    return tuple(bytes.fromhex(one["hex"]) if isinstance(one, dict) else one for one in json.loads(text))
