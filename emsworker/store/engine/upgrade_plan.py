"""The plan of ``ems migrate``: its steps, what each of them locks, and for about how long. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emsworker.core.errors import SchemaMissing
from emsworker.store.engine.alteration import PATIENCE_S, is_changed
from emsworker.store.engine.backfill import BATCH_S
from emsworker.store.engine.migrator import StepRecord, step_records
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements, fill, identifier
from emsworker.store.engine.steps import Algorithm, MigrationStep, steps_of
from emsworker.store.engine.tables import newer

_SQL = Statements(__name__)
# Rows a second on two cores with small messages; enough to tell minutes from hours.
_RATES = {Algorithm.IN_PLACE: 100_000.0, Algorithm.BACKFILL: 20_000.0}
_MOMENT_S = 0.1


@dataclass(frozen=True)
class PlannedStep:
    """A step that is to be done.

    Attributes:
        extension: whose tables it changes; empty for those of EMS itself.
        version: that its migration leads to.
        step: its number in the migration.
        does: for a person.
        table: that it changes, or reads from; empty for several.
        rows: about how many rows the table has; ``None`` if that does not matter.
        algorithm: the way in which it is done.
        locks: what others may have to wait for, and for how long.
        about_s: seconds that it may take.
        state: ``to do``, ``begun`` or ``done``.
        seen_rows: rows that it has gone through so far.
    """

    extension: str
    version: int
    step: int
    does: str
    table: str
    rows: int | None
    algorithm: str
    locks: str
    about_s: float
    state: str
    seen_rows: int


def planned_steps(session: Session, extension: str, package: str, current: int) -> Iterator[PlannedStep]:
    """Yield the steps that a migration of a package would take now.

    Args:
        extension: whose package it is; empty for that of EMS itself.
        current: the version of its tables.
    """
    for version, file in newer(package, current).items():
        steps = steps_of(file)
        if created := [step.table for step in steps if step.algorithm is Algorithm.CREATE]:
            does = f"create {created[0] if len(created) == 1 else f'{len(created)} tables'}"
            table = created[0] if len(created) == 1 else ""
            way, is_done = str(Algorithm.CREATE), all(_estimate(session, one) is not None for one in created)
            state = "done" if is_done else "to do"
            yield PlannedStep(extension, version, 1, does, table, None, way, "nothing", _MOMENT_S, state, 0)
        records = step_records(session, extension, version)
        for step in steps:
            if step.is_recorded:
                yield _planned(session, extension, version, step, records.get(step.number))


def _planned(
    session: Session, extension: str, version: int, step: MigrationStep, record: StepRecord | None
) -> PlannedStep:
    rows = _estimate(session, step.table) if step.algorithm in _RATES else None
    seen = record.seen_rows if record is not None else 0
    is_done = (record is not None and record.is_done) or is_changed(session, step)
    state = "done" if is_done else "to do" if record is None else "begun"
    left = 0 if is_done else max((rows or 0) - seen, 0)
    about_s = _MOMENT_S + left / _RATES.get(step.algorithm, 1.0)
    return PlannedStep(
        extension=extension,
        version=version,
        step=step.number,
        does=step.text,
        table=step.table,
        rows=rows,
        algorithm=str(step.algorithm),
        locks=_locks(step),
        about_s=about_s,
        state=state,
        seen_rows=seen,
    )


def _estimate(session: Session, table: str) -> int | None:
    """Return about how many rows a table has; ``None`` if it does not exist, as before the step that makes it."""
    try:
        return int(session.named_rows(fill(_SQL.estimate_rows, {"table": identifier(table)}))[0]["rows"])
    except SchemaMissing:
        return None


def _locks(step: MigrationStep) -> str:
    if step.algorithm is Algorithm.BACKFILL:
        return f"rows of one batch, {BATCH_S:g} s each"
    return f"{step.table}, at most {PATIENCE_S:g} s a try" if step.table else "what the statement locks"
