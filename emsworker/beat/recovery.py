"""Recovery of lost claims: which message is charged an attempt, by which ladder, and how the rest is isolated.

A claim's acked offset is flushed every 100 ms, so after a crash the first unfinished message need not be the one that
ran, and no message is charged. Instead each crash narrows the suspects down (poison isolation, :class:`Isolation`):
what a first crash leaves is claimed a few dozen at a time; what a crash leaves of those is claimed one by one, each
message written down before it starts and no two of them at once in a process. The third crash then identifies the
poison exactly, and only that message is charged an attempt. A stuck claim identifies its message at once, because its
process is alive and has flushed everything before it. (An earlier design charged the first unfinished message of a
first crash: mostly a neighbour.)

A message is charged as its worker would have charged it: by the options of its own task, which the worker wrote down
when it started, and by the same function (:meth:`HandlerOptions.decide`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from emsworker.core.codec import decode_headers
from emsworker.core.config import Settings
from emsworker.core.errors import DecodeError, TimeLimitExceeded, WorkerLost, class_name
from emsworker.core.ladder import Ladder
from emsworker.core.model import TASK_HEADER, ClaimSource, Failure, Isolation, Outcome
from emsworker.store.engine.errors import ConnectionLost
from emsworker.store.engine.schema import server_run
from emsworker.store.engine.session import Session
from emsworker.store.groups import handlers as handlers_store
from emsworker.store.groups import recovery as store
from emsworker.store.groups.handlers import HandlerRow
from emsworker.store.groups.recovery import Lost, Place, Suspect
from emsworker.tasks.handlers import options_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """The decision about a lost claim.

    Attributes:
        charges: the first message that was not finished is charged an attempt.
        isolation: the poison isolation of the rest.
    """

    outcome: Outcome
    charges: bool
    isolation: Isolation


def judge(lost: Lost, up_s: float, lease_s: float) -> Verdict:
    """Decide about a lost claim.

    Args:
        up_s: for how many seconds the server has been up. An owner whose lease ran out while there was no server, or
            too soon afterwards to renew it, has not died of what it ran.
        lease_s: the length of a lease.
    """
    outcome = Outcome.ORPHANED if lost.orphaned else Outcome.TIMEOUT
    named = lost.running is not None and lost.running > lost.claim.acked_to
    server_was_away = lost.over_s is not None and lost.over_s + lease_s > up_s
    charges = not lost.orphaned or (named and not server_was_away)
    if lost.claim.source is ClaimSource.RETRY:
        return Verdict(outcome, charges, Isolation.ALONE)
    return Verdict(
        outcome, charges, lost.claim.isolation if charges else Isolation(min(lost.claim.isolation + 1, Isolation.ALONE))
    )


def failure_of(suspect: Suspect, outcome: Outcome, group: Ladder, handlers: Mapping[str, HandlerRow]) -> Failure:
    """Return the failure of a charged message, decided by its task's options, or by the group's if the task is unknown.

    Args:
        group: the group's ladder.
        handlers: of the group, by name; that of a subscription is empty.
    """
    error = error_of(outcome)
    decision = options_of(_handler(suspect, handlers)).decide(group, suspect.attempt, error)
    suspicious = outcome is Outcome.ORPHANED
    kind = class_name(error)
    return Failure.decided(
        suspect.offset, suspect.attempt, outcome, str(error), decision, None, suspicious, kind, told=False
    )


def error_of(outcome: Outcome) -> TimeLimitExceeded:
    """Return the error of a run that its worker could not report."""
    if outcome is Outcome.TIMEOUT:
        return TimeLimitExceeded("ran past the timeout")
    return WorkerLost("its worker died while running it")


def _handler(suspect: Suspect, handlers: Mapping[str, HandlerRow]) -> HandlerRow | None:
    """Resolve the handler as a route does: a subscription takes every message."""
    if "" in handlers:
        return handlers[""]
    try:
        return handlers.get(decode_headers(suspect.headers).get(TASK_HEADER, ""))
    except DecodeError:
        return None


@dataclass(frozen=True)
class Recovered:
    """A recovered claim: why it was lost, its client, and the message that was charged (``None``: no message).

    Attributes:
        over_s: seconds since its owner's lease expired; ``None`` if the owner had signed off, or the lease was valid.
    """

    group_id: int
    partition: int
    client_id: str | None
    outcome: Outcome
    charged: int | None
    over_s: float | None = None


def recover_claims(session: Session, settings: Settings) -> float:
    """Recover lost claims: give back those of dead clients, and move stuck messages to retry."""
    for one in recover(session, settings.jitter, settings.lease_s):
        charged = f"message {one.charged} charged" if one.charged is not None else "no message charged"
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


def recover(session: Session, jitter: float, lease_s: float) -> list[Recovered]:
    """Recover every lost claim.

    Args:
        jitter: the largest share by which the delay of a charged message is lengthened.
        lease_s: see :func:`judge`.
    """
    places = store.find_lost(session)
    up_s = server_run(session).up_s if places else 0.0
    recovered = []
    for place in places:
        try:
            work = partial(_recover, place=place, up_s=up_s, lease_s=lease_s, jitter=jitter)
            recovered.append(session.transaction(work))
        except ConnectionLost:
            raise
        except Exception:  # one claim that cannot be recovered must not keep the others waiting
            log.exception("cannot recover the claim %s", place)
    return [one for one in recovered if one is not None]


def _recover(session: Session, place: Place, up_s: float, lease_s: float, jitter: float) -> Recovered | None:
    lost = store.lock_lost(session, place)
    if lost is None:
        return None
    if lost.ladder is None or lost.max_attempts is None:  # the group has been deleted
        store.forget(session, lost)
        return None
    verdict = judge(lost, up_s, lease_s)
    suspect = store.find_suspect(session, lost) if verdict.charges else None
    failure = None
    if suspect is not None:
        ladder = Ladder.parse(lost.ladder, lost.max_attempts, jitter)
        handlers = handlers_store.list_handlers(session, place.group_id)
        failure = failure_of(suspect, verdict.outcome, ladder, handlers)
    store.give_back(session, lost, failure, verdict.isolation)
    charged = failure.offset if failure is not None else None
    return Recovered(place.group_id, place.partition, lost.claim.client_id, verdict.outcome, charged, lost.over_s)
