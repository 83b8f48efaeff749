"""Failed attempts: the decision between a retry and a dead letter, and the log record.

Retries and dead letters are decided here and nowhere else (:func:`decide`): for workers, consumers, time limits and
recovery after a crash.

Each failed attempt is one record: at level warning if the message is retried, at level error and with its traceback if
it is a dead letter. Records carry their parts as attributes too (``topic``, ``attempt`` ...), which
:class:`emsworker.observe.logs.JsonFormatter` prints.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from emsworker.core.durations import span_text
from emsworker.core.errors import (
    ConnectionLostInHandler,
    DecodeError,
    Ignore,
    Reject,
    RunCancelled,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
    WorkerLost,
    class_name,
    text_of,
)
from emsworker.core.ladder import DEFAULT_LADDER, Decision, Done, Dropped, Ladder
from emsworker.core.model import TASK_HEADER, Failure, Message, Outcome
from emsworker.core.process import forks
from emsworker.core.process.forks import Mutex
from emsworker.core.terminal_text import shortened
from emsworker.core.url import redact
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.route import Route

log = logging.getLogger(__name__)

MESSAGE_FIELDS = ("topic", "partition", "offset", "id", "task", "group", "attempt", "trace_id")
_TRACEPARENT = "traceparent"
_MAX_ERROR = 500
_MOST_KEPT, _MOST_PLACES = 128, 100  # texts of errors, and the places in the stack of one
_SIMPLE = frozenset(
    {ConnectionError, Exception, KeyError, LookupError, OSError, RuntimeError, TimeoutError, ValueError}
)
_MOST_DESCRIBED = 8000  # characters; what the store keeps of an error
_NO_OPTIONS = HandlerOptions()
_VERBS = {
    Outcome.TIMEOUT: "timed out",
    Outcome.ORPHANED: "lost its worker",
    Outcome.REJECTED: "was rejected",
    Outcome.EXPIRED: "expired",
    Outcome.CANCELLED: "was cancelled",
}
_NO_FAILURE = (Outcome.IGNORED, Outcome.EXPIRED, Outcome.CANCELLED)

# Returns the fields of the message that the current thread, or coroutine, runs.
_running: ContextVar[Callable[[], Mapping[str, Any]] | None] = ContextVar("ems_running_fields", default=None)
begin_running, end_running = _running.set, _running.reset


def running_fields() -> Mapping[str, Any]:
    """Return the fields of the message that the calling handler runs; none elsewhere, and less of a batch."""
    fields = _running.get()
    return {} if fields is None else fields()


class Expired(Ignore):
    """The message's expiry time has passed."""


def decide(
    offset: int,
    attempt: int,
    error: BaseException,
    group: Ladder,
    options: HandlerOptions = _NO_OPTIONS,
    *,
    ran_s: float | None = None,
    text: str | None = None,
    kind: str | None = None,
    told: bool = True,
) -> Failure:
    """Decide what follows from an attempt that ended in an error: a retry, a dead letter, or nothing.

    Args:
        attempt: its number.
        group: the group's ladder; options: of the handler, which may have its own.
        ran_s: the seconds that it ran, if they are known.
        text, kind: what is stored of the error, and its class; by default its traceback.
        told: the caller calls the hooks.
    """
    decision = options.decide(group, attempt, error)
    outcome = outcome_of(error, decision)
    suspect = isinstance(error, (WorkerLost, ConnectionLostInHandler))  # its process, or its connection, died with it
    stored, kind = text or describe(error), kind or class_name(error)
    return Failure.decided(offset, attempt, outcome, stored, decision, ran_s, suspect, kind, told)


def most_attempts(error: BaseException, group: Ladder, options: HandlerOptions) -> int:
    """Return the attempts that a message may use after an error; a broadcast has one."""
    if isinstance(options.decide(group, 1, error), Dropped):
        return 1
    return options.ladder_over(group).max_attempts


def outcome_of(error: BaseException, decision: Decision) -> Outcome:
    """Return the outcome of an attempt that raised."""
    if isinstance(error, Expired):
        return Outcome.EXPIRED
    if isinstance(error, RunCancelled):
        return Outcome.CANCELLED
    if isinstance(error, Reject):
        return Outcome.REJECTED
    if isinstance(error, WorkerLost):
        return Outcome.ORPHANED
    if isinstance(error, (TimeLimitExceeded, SoftTimeLimitExceeded)):
        return Outcome.TIMEOUT
    return Outcome.IGNORED if isinstance(decision, Done) else Outcome.FAILED


_described_lately: dict[tuple[object, ...], str] = {}


def describe(error: BaseException) -> str:
    """An error with its traceback, without our own frames, passwords in URLs and the middle of a long text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("emsworker."):
        trace = trace.tb_next
    if (key := _key_of(error, trace)) is None:
        return _described(error, trace)
    if (text := _described_lately.get(key)) is None:
        if len(_described_lately) >= _MOST_KEPT:
            _described_lately.clear()
        text = _described_lately[key] = _described(error, trace)
    return text


def _key_of(error: BaseException, trace: TracebackType | None) -> tuple[object, ...] | None:
    """Return all that the text of a simple error depends on, because in a storm thousands have the same one."""
    try:
        if type(error) not in _SIMPLE or error.__context__ is not None or error.__cause__ is not None:
            return None
        if len(error.args) != 1 or type(error.args[0]) is not str or hasattr(error, "__notes__"):
            return None
    except BaseException:  # see below
        return None
    places: list[object] = [type(error), error.args[0]]
    while trace is not None:
        code = trace.tb_frame.f_code
        places += (code, code.co_filename, trace.tb_lasti)  # two codes may be equal in different files
        trace = trace.tb_next
    return tuple(places) if len(places) < _MOST_PLACES and len(error.args[0]) < _MAX_ERROR else None


def _described(error: BaseException, trace: TracebackType | None) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # the parts of an error that Python asks for are its author's as well
        text = f"{''.join(traceback.format_tb(trace))}{class_name(error)}: {text_of(error)}"
    return shortened(redact(text).strip(), _MOST_DESCRIBED)


@dataclass
class FailureTally:
    """Attempts of a process that failed, and messages that it made dead letters; thread-safe."""

    failed: int = 0
    dead: int = 0
    _lock: Mutex = field(default_factory=forks.Lock, repr=False)

    def note(self, failure: Failure) -> None:
        """Count a failure; what is ignored or cancelled, or has expired, is none."""
        if failure.outcome in _NO_FAILURE:
            return
        with self._lock:
            self.failed += 1
            self.dead += failure.dead is not None


@dataclass(frozen=True)
class AttemptRecord:
    """An attempt as the log names it.

    Args:
        id: of the message; ``None`` if it is gone.
        task: the name of the task, or of the subscription's function.
        number: 1 for the first attempt; ``most``: the attempts that the message may use.
    """

    topic: str
    partition: int
    offset: int
    id: str | None
    task: str
    group: str
    number: int
    most: int

    def log_failure(self, failure: Failure, error: str) -> None:
        """Log an attempt that did not end well.

        Args:
            failure: its end; its ``error`` may be a traceback.
            error: the error in one line.
        """
        verb = _VERBS.get(failure.outcome, "failed")
        level, then = _consequence(failure)
        if failure.ran_s is not None:
            verb = f"{verb} after {span_text(failure.ran_s)}"
        place = ", ".join(
            filter(None, (f"{self.topic}/{self.partition}@{self.offset}", f"group {self.group}", self.id))
        )
        is_shown = level == logging.ERROR or failure.outcome is Outcome.TIMEOUT or log.isEnabledFor(logging.DEBUG)
        is_traced = is_shown and "\n" in failure.error
        trace = f"\n{failure.error}" if is_traced else ""
        more = {"traceback": failure.error if is_traced else None, "details": trace}
        log.log(
            level,
            "%s: attempt %d of %d %s, %s: %s (%s)%s",
            *(self.task, self.number, self.most, verb, then, error, place, trace),
            extra=self._fields(failure, error) | more,
        )

    def _fields(self, failure: Failure, error: str) -> dict[str, Any]:
        retry_in_s = failure.retry_in_s
        next_at = None if retry_in_s is None else datetime.now(UTC) + timedelta(seconds=retry_in_s)
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "id": self.id,
            "task": self.task,
            "group": self.group,
            "attempt": self.number,
            "attempts": self.most,
            "outcome": str(failure.outcome),
            "ran_s": None if failure.ran_s is None else round(failure.ran_s, 6),
            "retry_in_s": None if retry_in_s is None else round(retry_in_s, 3),
            "next_at": None if next_at is None else next_at.isoformat(timespec="milliseconds"),
            "dead": failure.dead,
            "error": error,
        }


def _consequence(failure: Failure) -> tuple[int, str]:
    """Return what follows from a failure in words, and the level at which it is logged."""
    if failure.retry_in_s is not None:
        return logging.WARNING, f"again in {span_text(failure.retry_in_s)}"
    if failure.dead is not None:
        return logging.ERROR, "now a dead letter"
    if failure.outcome in _NO_FAILURE:
        return logging.INFO, "it is not run again"
    return logging.ERROR, "it is not run again"  # of a broadcast


class GroupAttempts:
    """The attempts at messages of one group in one process: decides what follows from errors, counts and logs it.

    Args:
        route: the group's handlers, which name its messages.
        ladder: of the group.
        tally: counts what failed.
    """

    def __init__(
        self, route: Route | None = None, ladder: Ladder | None = None, tally: FailureTally | None = None
    ) -> None:
        self._route = route
        self._ladder = ladder or Ladder.parse(DEFAULT_LADDER)
        self._tally = tally or FailureTally()

    def task_of(self, message: Message) -> str:
        """Return the name of the message's task, or of the subscription's function."""
        if self._route is not None and self._route.subscription is not None:
            return self._route.subscription.name
        return task_of(lambda: message.headers)

    def decide(
        self,
        message: Message,
        options: HandlerOptions,
        error: BaseException,
        ran_s: float,
        text: str | None = None,
        *,
        told: bool = True,
    ) -> Failure:
        """Decide what follows from an attempt that ended in an error; see :func:`decide`."""
        return decide(
            *(message.offset, message.attempt, error, self._ladder, options), ran_s=ran_s, text=text, told=told
        )

    def log_failure(self, message: Message, options: HandlerOptions, failure: Failure, error: BaseException) -> None:
        """Count and log an attempt that did not end well."""
        self._tally.note(failure)
        group = "" if self._route is None else self._route.group
        AttemptRecord(
            message.topic,
            message.partition,
            message.offset,
            message.id,
            self.task_of(message),
            group,
            message.attempt,
            most_attempts(error, self._ladder, options),
        ).log_failure(failure, one_line(error))

    def log_done(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Log a message that is done; a hook for ``ems worker --log-done``."""
        if outcome is Outcome.DONE:
            place = f"{message.topic}/{message.partition}@{message.offset}, group {group}, {message.id}"
            more = self.fields_of([message]) | {"outcome": str(outcome), "ran_s": round(ran_s, 6)}
            log.info("%s done in %s (%s)", self.task_of(message), span_text(ran_s), place, extra=more)

    def fields_of(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Return the fields of log records about the messages that are run together; none if there is no message."""
        if not messages:
            return {}
        first = messages[0]
        fields: dict[str, Any] = {
            "topic": first.topic,
            "partition": first.partition,
            "offset": first.offset,
            "task": self.task_of(first),
            "group": None if self._route is None else self._route.group,
        }
        if len(messages) > 1:
            return fields | {"last_offset": messages[-1].offset}
        return fields | {"id": first.id, "attempt": first.attempt, "trace_id": _trace_id(first)}


def task_of(headers: Callable[[], Mapping[str, str]]) -> str:
    """Return the name of a message's task, by its headers, which may be damaged."""
    try:
        return headers().get(TASK_HEADER) or "a message"
    except DecodeError:
        return "a damaged message"


def one_line(error: BaseException) -> str:
    """Return the type and the first line of an error, without passwords in URLs."""
    name = class_name(error)
    text = next((line.strip() for line in redact(text_of(error)).splitlines() if line.strip()), "")
    return f"{name}: {text[:_MAX_ERROR]}" if text else name


def _trace_id(message: Message) -> str | None:
    """The trace of OpenTelemetry's current span, if the process uses it, or the one that the sender passed on."""
    telemetry = sys.modules.get("opentelemetry.trace")
    if telemetry is not None and (span := telemetry.get_current_span().get_span_context()).is_valid:
        return f"{span.trace_id:032x}"
    try:
        parts = message.headers.get(_TRACEPARENT, "").split("-")
    except DecodeError:
        return None
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None
