"""Maps the error that ended a run to its outcome, and refuses messages that have expired."""

from __future__ import annotations

import traceback
from datetime import datetime

from emsworker.core.errors import DecodeError, Ignore, Reject, SoftTimeLimitExceeded, TimeLimitExceeded
from emsworker.core.ladder import Decision, Done
from emsworker.core.model import EXPIRES_HEADER, Claim, Message, Outcome
from emsworker.core.url import redact


class _Expired(Ignore):
    """The message's expiry time has passed."""


def refuse_expired(message: Message, claim: Claim) -> None:
    """Raise if the message has expired.

    Raises:
        DecodeError: the header is not a time with a zone.
    """
    until = message.headers.get(EXPIRES_HEADER)
    if until is not None and claim.server_now() > _time(until):
        raise _Expired


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise DecodeError(f"header {EXPIRES_HEADER} = {text[:100]!r} is no time with a zone")
    return time


def outcome_of(error: BaseException, decision: Decision) -> Outcome:
    """Return the outcome of an attempt that raised."""
    if isinstance(error, _Expired):
        return Outcome.EXPIRED
    if isinstance(error, Reject):
        return Outcome.REJECTED
    if isinstance(error, (TimeLimitExceeded, SoftTimeLimitExceeded)):
        return Outcome.TIMEOUT
    return Outcome.IGNORED if isinstance(decision, Done) else Outcome.FAILED


def describe(error: BaseException) -> str:
    """An error with its traceback, without our own frames and without passwords in URLs."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("emsworker."):
        trace = trace.tb_next
    return redact("".join(traceback.format_exception(type(error), error, trace))).strip()
