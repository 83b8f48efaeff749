"""Last runs of the entries of ``celery beat``, by application and name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from emsworker.extending.database import Session, Statements
from emsworker.extending.values import utc

_SQL = Statements(__name__)


@dataclass(frozen=True, slots=True)
class LastRun:
    """When an entry was last due, and how many times it has been."""

    at: datetime
    runs: int


def list_runs(session: Session, app: str) -> dict[str, LastRun]:
    """Return the last runs of all entries of an application, by name."""
    rows = session.rows(_SQL.list_runs, {"app": app.encode()})
    return {name.decode(): LastRun(utc(at), runs) for name, at, runs in rows}


def add_runs(session: Session, app: str, runs: Mapping[str, LastRun]) -> None:
    """Add entries that are new; the others stay as they are."""
    rows = [
        {"app": app.encode(), "name": name.encode(), "last_run_at": _text(run.at), "runs": run.runs}
        for name, run in sorted(runs.items())
    ]

    def work(session: Session) -> None:
        packet = session.packet()
        packet.insert_many(_SQL.add_runs, _SQL.run_row, rows, _SQL.keep_runs)
        packet.send()

    if rows:
        session.transaction(work)


def advance(session: Session, app: str, name: str, last: datetime, upcoming: datetime) -> bool:
    """Record that an entry is due at ``upcoming``, in the caller's transaction.

    Args:
        last: its last run as the caller knows it.

    Returns:
        False if that has changed: another scheduler has run the entry.
    """
    values = {"app": app.encode(), "name": name.encode(), "last_run_at": _text(last), "next_run_at": _text(upcoming)}
    return session.execute(_SQL.advance, values).affected == 1


def delete_runs(session: Session, app: str, names: Sequence[str]) -> None:
    """Delete entries that are no longer in the code."""
    if names:
        session.change(_SQL.delete_runs, {"app": app.encode(), "names": [name.encode() for name in sorted(names)]})


def _text(time: datetime) -> str:
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
