"""Checks of ``ems check`` for the tables of Celery applications."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from emsworker.extending.administration import Finding, Severity
from emsworker.extending.database import Session
from emsworker.extending.settings import Settings
from emsworker.extending.values import counted
from emsworker.integrations.celery.store import results

_LATE_S = 3600.0  # the beat deletes them within seconds
_MOST = 1000


def check_results(session: Session, settings: Settings) -> Iterator[Finding]:
    """Find expired results that no beat deletes: a project of Celery runs none by itself."""
    count = results.count_late(session, _LATE_S, _MOST)
    if not count:
        yield Finding(Severity.OK, "ems_celery_result", "no result is kept past its time")
        return
    value = f"{counted(count, 'result')} expired" if count < _MOST else f"{_MOST} results or more expired"
    fix = "they have been kept for an hour past their time, and the table grows: run a beat (`ems beat`)"
    yield Finding(Severity.WARNING, "ems_celery_result", value, fix)


def checks() -> Sequence[Callable[[Session, Settings], Iterator[Finding]]]:
    """Return the checks."""
    return [check_results]
