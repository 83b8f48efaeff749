"""The beat services at both ends of each partition: the high watermark, and what retention no longer keeps."""

from __future__ import annotations

import logging
from functools import partial

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import Session
from emsworker.store.stream import high_watermark
from emsworker.store.stream import retention as store

log = logging.getLogger(__name__)

_ROWS = 2000  # the other services wait no longer than deleting these takes
_LOOK_BEATS = 5
_RESOLVE_BEATS = 10


def resolve(session: Session, settings: Settings) -> float:
    """Advance the high watermark of partitions, for bulk readers."""
    return 0.0 if high_watermark.advance(session) else _RESOLVE_BEATS * settings.beat_s


def trim(session: Session, settings: Settings) -> float:
    """Delete what retention no longer keeps, a chunk of each partition at a time; no pause while there is more."""
    more = False
    due = store.list_due(session)
    for kept in due:
        log_start = store.raise_log_start(session, kept, _ROWS, partial(_warn_of_overtaken, kept))
        trimmed = store.delete_below(session, kept, log_start, _ROWS)
        more |= trimmed - kept.trimmed >= _ROWS
    for topic_id in store.list_topics_with_restored(session):
        store.delete_restored(session, topic_id, store.list_restored(session, topic_id))
    return 0.0 if more else _LOOK_BEATS * settings.beat_s


def _warn_of_overtaken(kept: store.Kept, group: str, count: int) -> None:
    log.warning(
        "retention took %s of partition %d of topic %s that group %s had not claimed (see ems_skip)",
        counted(count, "message"),
        kept.partition,
        kept.topic,
        group,
    )
