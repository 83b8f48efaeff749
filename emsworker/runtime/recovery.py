"""Decides what becomes of lost claims: who is charged, by which ladder, and how carefully the rest is run.

Who is to blame? A claim's acked offset is flushed every 100 ms, so after a crash the first unfinished message need not
be the one that ran, and nobody is charged for it. Each crash narrows the suspicion down instead (:class:`Isolation`):
what a first crash leaves is claimed by a few dozen; what a crash leaves of those is claimed one by one, each message
written down before it starts and no two of them at once in a process. The third crash then names the poison exactly,
and only that message is charged an attempt. A stuck claim names its message at once, because its living process has
flushed everything before it. (An earlier design charged the first unfinished message of a first crash: mostly a
neighbour.)

Whoever is charged is charged as its worker would have done it: by its own task's options, which the worker wrote down
when it started, and by the one function that decides there too (:meth:`HandlerOptions.decide`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from emsworker.core.codec import decode_headers
from emsworker.core.errors import DecodeError, TimeLimitExceeded
from emsworker.core.ladder import Ladder
from emsworker.core.model import TASK_HEADER, ClaimSource, Failure, Isolation, Outcome
from emsworker.declaring.handlers import options_of
from emsworker.store import handlers as handlers_store
from emsworker.store import recovery as store
from emsworker.store.errors import ConnectionLost
from emsworker.store.handlers import HandlerRow
from emsworker.store.recovery import Lost, Place, Suspect
from emsworker.store.schema import server_run
from emsworker.store.session import Session

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """What becomes of a lost claim.

    Attributes:
        charges: the first message that was not finished is charged an attempt.
        isolation: how carefully the rest is to be run.
    """

    outcome: Outcome
    charges: bool
    isolation: Isolation


def judge(lost: Lost, up_s: float, lease_s: float) -> Verdict:
    """Decide about a lost claim.

    Args:
        up_s: for how many seconds the server has been up. An owner whose lease ran out while there was no server, or
            too soon afterwards to renew it, has not died of what it ran.
        lease_s: how long leases are.
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
    """What a charged message's own task makes of it, or the group where nothing is known of the task.

    Args:
        group: the group's ladder.
        handlers: of the group, by name; a subscription has none.
    """
    error = TimeLimitExceeded(
        "ran past the timeout" if outcome is Outcome.TIMEOUT else "its worker died while running it"
    )
    decision = options_of(_handler(suspect, handlers)).decide(group, suspect.attempt, error)
    suspicious = outcome is Outcome.ORPHANED
    return Failure.decided(suspect.offset, suspect.attempt, outcome, str(error), decision, None, suspicious)


def _handler(suspect: Suspect, handlers: Mapping[str, HandlerRow]) -> HandlerRow | None:
    """As a route resolves it: a subscription takes whatever comes."""
    if "" in handlers:
        return handlers[""]
    try:
        return handlers.get(decode_headers(suspect.headers).get(TASK_HEADER, ""))
    except DecodeError:
        return None


@dataclass(frozen=True)
class Recovered:
    """One recovered claim: why, from whom, and which message was charged (``None``: nobody).

    Attributes:
        over_s: for how many seconds its owner's lease had been over; ``None`` if it had signed off, or it was good.
    """

    group_id: int
    partition: int
    client_id: str | None
    outcome: Outcome
    charged: int | None
    over_s: float | None = None


def recover(session: Session, jitter: float, lease_s: float) -> list[Recovered]:
    """Recover every lost claim.

    Args:
        jitter: by up to which share the delay of a charged message is lengthened.
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
