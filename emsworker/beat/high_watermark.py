"""The beat service that advances the high watermark of partitions."""

from __future__ import annotations

from emsworker.core.config import Settings
from emsworker.store import Session
from emsworker.store.stream import high_watermark

_BEATS = 10


def resolve(session: Session, settings: Settings) -> float:
    """Advance the high watermark of partitions, for bulk readers."""
    return 0.0 if high_watermark.advance(session) else _BEATS * settings.beat_s
