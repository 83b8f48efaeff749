"""Rows of the tables as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emsworker.extending.values import storable, utc
from emsworker.flows.rows import FlowRow, StepRow, StoredError


def flow_of(row: Sequence[Any]) -> FlowRow:
    """Return the flow of a row of ``get_flows``."""
    (number, key, name, version, topic, state, run, owner, args, waits, value, kind, text, parent, next_step) = row[:15]
    failure = stored_error(kind, text)
    started_at, changed_at, deadline_at, ended_at, begins_at = (None if at is None else utc(at) for at in row[15:20])
    return FlowRow(
        *(number, key, name, version, topic, state, run, owner, args, waits, value, failure, parent, next_step),
        *(started_at, changed_at, deadline_at, ended_at, begins_at, bool(row[20]), bool(row[21])),
    )


def step_of(row: Sequence[Any]) -> StepRow:
    """Return the step of a row of ``list_steps``, without its first column."""
    number, kind, name, branch, total, pending, value, error_type, error, *times = row
    due_at, began_at, ended_at = (None if at is None else utc(at) for at in times)
    failure, is_ended = stored_error(error_type, error), ended_at is not None
    return StepRow(
        *(number, kind, name, total, pending, value, failure, due_at, began_at, ended_at, is_ended), branch=branch
    )


def stored_error(kind: str | None, text: str | None) -> StoredError | None:
    """Return the error of two columns."""
    return None if kind is None else StoredError(kind, text or "")


def error_columns(failure: StoredError | None) -> dict[str, Any]:
    """Return the values of these two columns."""
    if failure is None:
        return {"error_type": None, "error": None}
    return {"error_type": failure.kind[:190], "error": storable(failure.text)}
