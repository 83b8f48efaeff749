"""What the leading beat does. Each duty returns after how many seconds it wants to be called again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from emsworker.core.clock import ticks
from emsworker.core.config import Settings
from emsworker.runtime.scheduling import fire_schedules
from emsworker.runtime.sweeping import sweep_keys, sweep_once, sweep_reports, sweep_results, sweep_slots
from emsworker.store import clients, pending, recovery, retention
from emsworker.store.session import Session

log = logging.getLogger(__name__)

Duty = Callable[[Session, Settings], float]

_RELAY_LOOK_S = 0.2
_LIVELY_LOOK_S, _LIVELY_S = 0.025, 2.0
_RELAY_BATCH = 500
_TRIM_ROWS = 2000  # the other duties wait no longer than deleting these takes
_TRIM_LOOK_BEATS = 5


def recover(session: Session, settings: Settings) -> float:
    """Give the work of dead clients back, and move what hangs to retry."""
    for one in recovery.recover(session, settings.jitter):
        charged = f"message {one.charged} charged" if one.charged is not None else "nobody charged"
        log.warning(
            "recovered a claim of %s (group %d, partition %d): %s, %s",
            one.client_id,
            one.group_id,
            one.partition,
            one.outcome,
            charged,
        )
    return settings.beat_s


def sweep(session: Session, settings: Settings) -> float:
    """Remove clients whose leases ran out and whose work has been recovered."""
    swept = clients.delete_expired(session)
    if swept:
        log.info("removed %d clients whose leases had run out", swept)
    return settings.beat_s


class Relay:
    """Move messages that are due into the stream; comes back at the moment when the next one is.

    What others commit cannot be foreseen: it looks often while there is traffic, seldom when there has been none.
    """

    def __init__(self) -> None:
        self._lively_until = 0.0

    def __call__(self, session: Session, settings: Settings) -> float:
        """One round."""
        done = pending.relay_due(session, _RELAY_BATCH)
        if done.topic_ids:
            self._lively_until = ticks() + _LIVELY_S
        return min(done.next_s, _LIVELY_LOOK_S if ticks() < self._lively_until else _RELAY_LOOK_S)


def trim(session: Session, settings: Settings) -> float:
    """Delete what nobody needs any more, a piece of each partition at a time; at once again while there is more."""
    more = False
    kept_partitions = retention.list_kept(session)
    for kept in kept_partitions:
        floor = retention.raise_floor(session, kept, _TRIM_ROWS)
        trimmed = retention.delete_below(session, kept, floor, _TRIM_ROWS)
        more |= trimmed != kept.trimmed
    for topic_id in {kept.topic_id for kept in kept_partitions}:
        retention.delete_restored(session, topic_id)
    return 0.0 if more else _TRIM_LOOK_BEATS * settings.beat_s


DUTIES: tuple[Duty, ...] = (
    recover,
    sweep,
    fire_schedules,
    Relay(),
    trim,
    sweep_results,
    sweep_once,
    sweep_keys,
    sweep_reports,
    sweep_slots,
)
