"""The beat's duty for idempotent publishing: keys whose time is over."""

from __future__ import annotations

from emsworker.core.config import Settings
from emsworker.store import dedup
from emsworker.store.session import Session

_LIMIT = 200
_PAUSE_S = 5.0


def sweep_keys(session: Session, settings: Settings) -> float:
    """Delete dedup keys that nobody is bound by any more, a few hundred at a time."""
    return 0.0 if dedup.sweep(session, _LIMIT) == _LIMIT else _PAUSE_S
