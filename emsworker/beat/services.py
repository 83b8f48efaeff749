"""The services of the beat: those of the leader and those of standbys. Each returns its pause, in seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from emsworker.beat import recovery
from emsworker.beat.alarms import WatchAlarms
from emsworker.beat.expiry import sweep_keys, sweep_once, sweep_reports, sweep_results, sweep_slots
from emsworker.beat.schedules import fire_schedules
from emsworker.beat.skip_policies import skip_backlogs
from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.store.cluster import clients
from emsworker.store.engine.session import Session
from emsworker.store.stream import high_watermark, outbox, retention

log = logging.getLogger(__name__)

Service = Callable[[Session, Settings], float]

_RELAY_BATCH = 500
_LONGEST_LOOK_S = 1.0
_SWEEP_BEATS = 5
_TRIM_ROWS = 2000  # the other services wait no longer than deleting these takes
_TRIM_LOOK_BEATS = 5
_RESOLVE_BEATS = 10


def recover(session: Session, settings: Settings) -> float:
    """Recover lost claims: give back those of dead clients, and move stuck messages to retry."""
    for one in recovery.recover(session, settings.jitter, settings.lease_s):
        charged = f"message {one.charged} charged" if one.charged is not None else "nobody charged"
        lease = f", its lease was over for {one.over_s:.2f} s" if one.over_s is not None else ""
        log.warning(
            "recovered a claim of %s (group %d, partition %d): %s%s, %s",
            one.client_id,
            one.group_id,
            one.partition,
            one.outcome,
            lease,
            charged,
        )
    return settings.beat_s


def sweep(session: Session, settings: Settings) -> float:
    """Remove clients whose leases ran out and whose work has been recovered."""
    swept = clients.delete_expired(session)
    if swept:
        log.info("removed %s whose lease had run out", counted(swept, "client"))
    return _SWEEP_BEATS * settings.beat_s


class Relay:
    """Moves messages that are due into the stream; its pause ends when the next one is due.

    Commits of other processes cannot be predicted, so it polls at an adaptive interval: often while there is traffic,
    backing off while there is none. Any number of relays may run at once, because each row is moved by the one that
    locks it.

    Args:
        shortest_s: the pause between two polls while there is traffic.
        late_s: move only messages that have been due for this long; then the pause need not end exactly on time.
    """

    def __init__(self, shortest_s: float = 0.025, late_s: float = 0.0) -> None:
        self._shortest_s, self._late_s = shortest_s, late_s
        self._interval = PollInterval(shortest_s, _LONGEST_LOOK_S)

    def __call__(self, session: Session, settings: Settings) -> float:
        """Move one batch and return the pause."""
        done = outbox.relay_due(session, _RELAY_BATCH, self._late_s)
        if done.topic_ids:
            self._interval.note()
        next_s = max(done.next_s, self._shortest_s) if self._late_s and done.next_s > 0 else done.next_s
        return min(next_s, self._interval.pause_s(ticks()), settings.poll_max_s)


def trim(session: Session, settings: Settings) -> float:
    """Delete what retention no longer keeps, a chunk of each partition at a time; no pause while there is more."""
    more = False
    kept_partitions = retention.list_kept(session)
    for kept in kept_partitions:
        if kept.archive_first:
            continue
        log_start = retention.raise_log_start(session, kept, _TRIM_ROWS, partial(_warn_of_overtaken, kept))
        trimmed = retention.delete_below(session, kept, log_start, _TRIM_ROWS)
        more |= trimmed != kept.trimmed
    for topic_id in {kept.topic_id for kept in kept_partitions if not kept.archive_first}:
        retention.delete_restored(session, topic_id, retention.list_restored(session, topic_id))
    return 0.0 if more else _TRIM_LOOK_BEATS * settings.beat_s


def _warn_of_overtaken(kept: retention.Kept, group_id: int, count: int) -> None:
    log.warning(
        "retention took %s of partition %d of topic %s that group %d had not claimed (see ems_skip)",
        counted(count, "message"),
        kept.partition,
        kept.topic,
        group_id,
    )


def resolve(session: Session, settings: Settings) -> float:
    """Advance the high watermark of partitions, for bulk readers."""
    return 0.0 if high_watermark.advance(session) else _RESOLVE_BEATS * settings.beat_s


# Services of a beat that does not lead. After the leader's death it may take beat_lease_s until another one leads; due
# messages must not wait for that.
STANDBY: tuple[Service, ...] = (Relay(shortest_s=0.05, late_s=0.05),)
SERVICES: tuple[Service, ...] = (
    recover,
    sweep,
    fire_schedules,
    Relay(),
    trim,
    resolve,
    skip_backlogs,
    sweep_results,
    sweep_once,
    sweep_keys,
    sweep_reports,
    sweep_slots,
    WatchAlarms(),
)
