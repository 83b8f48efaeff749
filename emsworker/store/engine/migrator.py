"""Runs the steps of migrations, each once, also if it is killed between or in them.

DDL commits by itself: what a step has changed, and the row that says so, cannot be committed together. So a step whose
row is missing asks the table first; of a backfill the row and the rows that it changes are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.resources.abc import Traversable

from emsworker.core.errors import SchemaMissing
from emsworker.core.process.clock import ticks
from emsworker.store.engine.alteration import alter
from emsworker.store.engine.backfill import Batch, batches, read_place, write_place
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements
from emsworker.store.engine.steps import Algorithm, MigrationStep, steps_of
from emsworker.store.engine.tables import migrations

_SQL = Statements(__name__)
_TELL_S = 2.0
Tell = Callable[[str], None]


def _say_nothing(text: str) -> None:
    """Tell nobody of the progress."""


@dataclass(frozen=True)
class StepRecord:
    """State of a step that has begun.

    Attributes:
        place: the last row of a backfill that is done, as text.
        seen_rows: rows that a backfill has gone through.
        is_done: nothing is left of it.
    """

    place: str | None
    seen_rows: int
    is_done: bool


def step_records(session: Session, extension: str, version: int) -> dict[int, StepRecord]:
    """Return what is known of the steps of a migration; nothing if their table does not exist yet."""
    try:
        rows = session.rows(_SQL.list_steps, {"extension": extension, "version": version})
    except SchemaMissing:
        return {}
    return {step: StepRecord(place, int(seen), bool(is_done)) for step, place, seen, is_done in rows}


def run_migration(session: Session, extension: str, version: int, file: Traversable, tell: Tell | None) -> None:
    """Run the steps of a migration that are not done.

    Args:
        extension: whose migration it is; empty for that of EMS itself.
        tell: is told of the progress, in a line each time.
    """
    steps = steps_of(file)
    if not any(step.is_recorded for step in steps):
        for step in steps:
            session.execute(step.sql)
        return
    session.execute(_create_table_of_steps())  # it may have been dropped
    records = step_records(session, extension, version)
    for step in steps:
        key = {"extension": extension, "version": version, "step": step.number}
        record = records.get(step.number)
        if record is None or not record.is_done:
            _Run(session, step, key, record, _titled(tell or _say_nothing, file.name, step, len(steps))).run()


def create_again(session: Session, file: Traversable, missing: Iterable[str]) -> None:
    """Create tables that are missing, as the steps of a migration make them; nothing is filled in."""
    for step in steps_of(file):
        if step.algorithm is Algorithm.CREATE:
            session.execute(step.sql)
        elif step.table in missing and step.algorithm is not Algorithm.BACKFILL:
            alter(session, step, _say_nothing)


def _create_table_of_steps() -> Sql:
    steps = (step for file in migrations().values() for step in steps_of(file))
    return next(step.sql for step in steps if step.table == "ems_migration_step")


def _titled(tell: Tell, name: str, step: MigrationStep, count: int) -> Tell:
    return lambda text: tell(f"{name}, step {step.number} of {count}, {step.text}: {text}")


class _Run:
    """One step that is not done.

    Args:
        key: of its row.
        record: what is known of it.
    """

    def __init__(
        self, session: Session, step: MigrationStep, key: dict[str, object], record: StepRecord | None, tell: Tell
    ) -> None:
        self._session, self._step, self._key, self._record, self._tell = session, step, key, record, tell

    def run(self) -> None:
        began = ticks()
        if not self._step.is_recorded:
            self._session.execute(self._step.sql)
            return
        self._session.change(_SQL.begin_step, self._key)
        if self._step.algorithm is Algorithm.BACKFILL:
            self._fill()
        elif self._step.table:
            alter(self._session, self._step, self._tell)
        else:
            self._session.change(self._step.sql)
        self._session.change(_SQL.end_step, self._key)
        self._tell(f"done in {ticks() - began:.1f} s")

    def _fill(self) -> None:
        record = self._record
        place = read_place(record.place) if record is not None and record.place is not None else None
        seen, told_at, began = record.seen_rows if record is not None else 0, ticks(), ticks()
        first = seen
        for batch in batches(self._session, self._step, place):
            self._session.transaction(partial(self._fill_range, batch))
            seen += batch.rows
            if ticks() - told_at > _TELL_S:
                told_at = ticks()
                self._tell(f"rows so far: {seen:,}, {(seen - first) / (ticks() - began):,.0f} a second")

    def _fill_range(self, batch: Batch, session: Session) -> None:
        session.execute(batch.sql)
        if batch.place is not None:
            session.execute(_SQL.move_step, self._key | {"place": write_place(batch.place), "rows": batch.rows})
        else:
            session.execute(_SQL.end_step, self._key)
