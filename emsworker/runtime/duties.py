"""What the leading beat does. Each duty returns after how many seconds it wants to be called again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from emsworker.core.config import Settings
from emsworker.runtime.scheduling import fire_schedules
from emsworker.runtime.sweeping import sweep_once, sweep_results
from emsworker.store import clients, pending, recovery
from emsworker.store.errors import AssertionBroken
from emsworker.store.session import Session

log = logging.getLogger(__name__)

Duty = Callable[[Session, Settings], float]

_RELAY_LOOK_S = 0.2
_RELAY_BATCH = 500


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


def relay(session: Session, settings: Settings) -> float:
    """Move messages that are due into the stream; comes back at the moment when the next one is."""
    pause = _RELAY_LOOK_S
    for due in pending.find_due(session):
        if due.seconds > 0:
            pause = min(pause, due.seconds)
            continue
        try:
            moved = pending.relay(session, due, _RELAY_BATCH)
        except AssertionBroken as error:
            log.error("cannot relay to topic %d: %s; was a partition deleted?", due.topic_id, error)
            continue
        if moved == _RELAY_BATCH:
            pause = 0.0
    return pause


DUTIES: tuple[Duty, ...] = (recover, sweep, fire_schedules, relay, sweep_results, sweep_once)
