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
from dataclasses import dataclass, replace
from functools import partial

from emsworker.consume.attempts import AttemptRecord, decide, most_attempts, one_line, task_of
from emsworker.core.codec import decode_headers
from emsworker.core.config import Settings
from emsworker.core.errors import ConnectionLost, DecodeError, TimeLimitExceeded, WorkerLost
from emsworker.core.ids import process_of, uid_text
from emsworker.core.ladder import Ladder
from emsworker.core.lost import Lost, Place, Suspect
from emsworker.core.model import TASK_HEADER, Claim, ClaimSource, Failure, HandlerRow, Isolation, Outcome
from emsworker.store import Session, server_run
from emsworker.store.groups import handlers as handlers_store
from emsworker.store.groups import recovery as store
from emsworker.tasks.handler_rows import options_of

log = logging.getLogger(__name__)

_COME_BACK = 1 / 3  # of a lease, from the server's start on: by default the time between two renewals


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


def judge(lost: Lost, up_s: float, lease_s: float, *, explained: bool = False) -> Verdict:
    """Decide about a lost claim.

    Args:
        explained: its process has died of a message that it ran alone, so nothing of this claim was running.
        up_s: for how many seconds the server has been up. An owner whose lease ran out while there was no server, or
            too soon afterwards to renew it, has not died of what it ran.
        lease_s: the length of a lease.
    """
    outcome = Outcome.ORPHANED if lost.orphaned else Outcome.TIMEOUT
    named = lost.running is not None and lost.running > lost.claim.acked_to
    # A message kills its own process, of whose death the supervisor tells at once. If the lease ran out instead, all of
    # the worker is gone, mostly its machine; so often, one message may be the reason after all.
    proven = named and (lost.over_s is None or lost.claim.isolation is Isolation.LAST)
    charges = not lost.orphaned or (proven and not _server_was_away(lost, up_s, lease_s))
    isolation = lost.claim.isolation if charges or explained else lost.claim.isolation.raised
    if lost.claim.source is ClaimSource.RETRY and not explained:
        isolation = max(isolation, Isolation.ALONE)
    return Verdict(outcome, charges, isolation)


def may_come_back(lost: Lost, up_s: float, lease_s: float) -> bool:
    """Return whether the owner may still be there: it could not renew its lease, and has had no time for it since.

    Args:
        up_s, lease_s: see :func:`judge`.
    """
    return lost.orphaned and up_s < lease_s * _COME_BACK and _server_was_away(lost, up_s, lease_s)


def _server_was_away(lost: Lost, up_s: float, lease_s: float) -> bool:
    return lost.over_s is not None and lost.over_s + lease_s > up_s


def failure_of(suspect: Suspect, outcome: Outcome, group: Ladder, handlers: Mapping[str, HandlerRow]) -> Failure:
    """Return the failure of a charged message, decided by its task's options, or by the group's if the task is unknown.

    Args:
        group: the group's ladder.
        handlers: of the group, by name; that of a subscription is empty.
    """
    error = error_of(outcome)
    options = options_of(_handler(suspect, handlers))
    return decide(suspect.offset, suspect.attempt, error, group, options, text=str(error), told=False)


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
    """A recovered claim.

    Attributes:
        claim: the claim, with its lost owner.
        outcome: why it was lost.
        failure: of the message that was charged an attempt; ``None`` if none was.
        attempt: that attempt.
        over_s: seconds since its owner's lease expired; ``None`` if the owner had signed off, or the lease was valid.
    """

    claim: Claim
    outcome: Outcome
    failure: Failure | None = None
    attempt: AttemptRecord | None = None
    over_s: float | None = None

    @property
    def client_id(self) -> str | None:
        """The owner that was lost."""
        return self.claim.client_id

    @property
    def charged(self) -> int | None:
        """The offset of the message that was charged."""
        return None if self.failure is None else self.failure.offset


def recover_claims(session: Session, settings: Settings) -> float:
    """Recover lost claims: give back those of dead clients, and move stuck messages to retry."""
    for one in recover(session, settings.jitter, settings.lease_s):
        log.warning(
            "recovered a claim of %s (%s): %s%s, %s",
            one.client_id,
            one.claim.place,
            one.outcome,
            f", its lease was over for {one.over_s:.2f} s" if one.over_s is not None else "",
            f"message {one.charged} charged" if one.charged is not None else "no message charged",
            extra={"topic": one.claim.topic, "partition": one.claim.partition, "group": one.claim.group},
        )
        if one.failure is not None and one.attempt is not None:
            one.attempt.log_failure(one.failure, one_line(error_of(one.outcome)))
    return settings.beat_s


def recover(session: Session, jitter: float, lease_s: float) -> list[Recovered]:
    """Recover every lost claim.

    Args:
        jitter: the largest share by which the delay of a charged message is lengthened.
        lease_s: see :func:`judge`; what its owner may come back for is left to a later call.
    """
    # Named messages first: one that is charged for the death of its process clears what else was claimed there.
    places = sorted(store.find_lost(session), key=lambda place: not place.named)
    up_s = server_run(session).up_s if places else 0.0
    recovered: list[Recovered] = []
    explained: set[str] = set()  # processes whose deaths are charged
    for place in places:
        try:
            its_process = process_of(place.client_id)
            work = partial(
                _recover, place=place, up_s=up_s, lease_s=lease_s, jitter=jitter, explained=its_process in explained
            )
            one = session.transaction(work)
            if one is not None:
                recovered.append(one)
                if one.charged is not None and one.outcome is Outcome.ORPHANED:
                    explained.add(its_process)
        except ConnectionLost:
            raise
        except Exception:  # one claim that cannot be recovered must not keep the others waiting
            where = f"offset {place.lo} of {place.topic}/{place.partition}, group {place.group}"
            log.exception("cannot recover the claim from %s", where)
    return recovered


def _recover(
    session: Session, place: Place, up_s: float, lease_s: float, jitter: float, *, explained: bool
) -> Recovered | None:
    lost = store.lock_lost(session, place)
    if lost is None:
        return None
    if lost.ladder is None or lost.max_attempts is None:  # the group has been deleted
        store.forget(session, lost)
        return None
    if may_come_back(lost, up_s, lease_s):
        return None
    verdict = judge(lost, up_s, lease_s, explained=explained)
    recovered = Recovered(lost.claim, verdict.outcome, over_s=lost.over_s)
    suspect = store.find_suspect(session, lost) if verdict.charges else None
    if suspect is not None:
        ladder = Ladder.parse(lost.ladder, lost.max_attempts, jitter)
        handlers = handlers_store.list_handlers(session, place.group_id)
        failure = failure_of(suspect, verdict.outcome, ladder, handlers)
        most = most_attempts(error_of(verdict.outcome), ladder, options_of(_handler(suspect, handlers)))
        recovered = replace(recovered, failure=failure, attempt=_attempt_of(lost.claim, suspect, most))
    store.give_back(session, lost, recovered.failure, verdict.isolation)
    return recovered


def _attempt_of(claim: Claim, suspect: Suspect, most: int) -> AttemptRecord:
    task = task_of(lambda: decode_headers(suspect.headers))
    uid = None if suspect.uid is None else uid_text(suspect.uid)
    return AttemptRecord(claim.topic, claim.partition, suspect.offset, uid, task, claim.group, suspect.attempt, most)
