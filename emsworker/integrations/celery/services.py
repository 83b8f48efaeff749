"""Services of the beat for the tables of Celery applications."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.extending.database import Session
from emsworker.extending.declaration import LedStream, Service, pause_s
from emsworker.extending.settings import Settings
from emsworker.integrations.celery.store import chords, results, revocations

_CHUNK = 1000


def sweep_celery(session: Session, settings: Settings) -> float:
    """Delete expired results, chords and revocations, in bounded chunks; no pause while there are more."""
    swept = [kind.sweep(session, _CHUNK) for kind in (results, chords, revocations)]
    return pause_s(max(swept), _CHUNK, settings)


def services(_: LedStream) -> Sequence[Service]:
    """Return the services of the leading beat."""
    return [sweep_celery]
