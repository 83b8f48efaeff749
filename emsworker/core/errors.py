"""Errors that EMS raises on purpose, and exceptions by which a handler decides the outcome of its message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emsworker.core.counted import counted
from emsworker.core.durations import parse_duration


class EmsError(Exception):
    """Base class of all errors of EMS; the text names the thing, its value and the fix."""


class StoreError(Exception):
    """Base class of all that a call of the store may raise because of the server: it is away, busy, full or refuses.

    No loop that runs by itself ends because of one (:class:`emsworker.core.process.runnable.Runnable`). Tables, or a
    database, that are gone are not among them: what comes back is another stream, and a process must look up its
    topics and groups anew.
    """


def is_known(error: BaseException) -> bool:
    """Return whether the text of an error says all; others need their traceback."""
    return isinstance(error, (EmsError, StoreError))


@dataclass(frozen=True)
class Problem:
    """Problem in the configuration or the environment.

    Args:
        name: the setting or the thing that was checked.
        value: what was found, with secrets already hidden.
        fix: what to do about it.
    """

    name: str
    value: str
    fix: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.fix}"


class ConfigError(EmsError):
    """The configuration is wrong; ``problems`` lists every fault at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in problems))


class ExtraMissing(EmsError):
    """An optional package is not installed; the text names the extra that brings it."""


class PredicateError(ConfigError):
    """A predicate cannot be parsed.

    Args:
        text: the predicate.
        position: position of the fault, from 1.
        why: what is wrong there.
    """

    def __init__(self, text: str, position: int, why: str) -> None:
        self.position = position
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        super().__init__([Problem("predicate", repr(shown), f"at position {position}: {why}")])


class InvalidName(EmsError):
    """A topic, group, tag or key breaks the rules for names."""


class InvalidPriority(EmsError):
    """A priority is not from 0 to 9, or the topic has no priority levels."""


class UnknownName(EmsError):
    """Nothing of that name or id is there; of several servers, another one may have it."""


class UnknownTopic(UnknownName):
    """The topic does not exist and auto-create is off."""


class TopicDeleted(UnknownTopic):
    """The topic was deleted after its name was looked up.

    Args:
        name: of the topic; if ``of_reader``, of the reader that wrote to it, where only that is known.
    """

    def __init__(self, name: str, *, of_reader: bool = False) -> None:
        what = "the topic of reader" if of_reader else "topic"
        super().__init__(f"{what} {name!r} was deleted meanwhile; nothing was written to it")


class TopicMoved(EmsError):
    """The topic is kept on another server.

    Args:
        name: of the topic.
        server: that keeps it.
    """

    def __init__(self, name: str, server: str) -> None:
        self.server = server
        super().__init__(
            f"topic {name!r} is kept on the server {server!r}; nothing was written "
            "(the setting `servers` must name that server)"
        )


class MoveUnfinished(EmsError):
    """The groups of the old server have not finished in time; new messages of theirs wait on the new server."""


class TopicInUse(EmsError):
    """Others are just sending to the topic, or moving it, so it is neither deleted nor moved."""


class UnknownGroup(UnknownName):
    """The group does not exist and auto-create is off."""


class GroupInUse(EmsError):
    """The group or topic has live clients or unfinished work, so it is not deleted without force."""


class RunEnded(EmsError):
    """The run has timed out or ended; the handler may stop, because the message is run elsewhere."""


class AlreadyExists(EmsError):
    """A topic or group of that name exists already."""


class UnknownMessage(UnknownName):
    """No message or dead letter with that id or position is stored."""


class UnknownSchedule(UnknownName):
    """No schedule of that name exists."""


def unknown_schedule(name: str) -> UnknownSchedule:
    """Return the error for a schedule that does not exist."""
    return UnknownSchedule(f"there is no schedule {name!r}; `ems schedules list` shows those that exist")


class UnknownReader(UnknownName):
    """No position is stored for a reader of that name."""


class HoldTaken(EmsError):
    """Another process uses the name under which this reader holds messages."""


class UnknownAlarm(UnknownName):
    """No alarm of that name exists."""


class DeliveryFailed(EmsError):
    """An alarm could not be delivered to a receiver."""


class TopicRuleError(EmsError):
    """The topic's rule (``rw``, ``r``, ``w``, ``none``) or the global switch forbids this."""


class MessageTooLarge(EmsError):
    """The encoded body exceeds the topic's limit or what the server accepts."""


class WrongArguments(EmsError, TypeError):
    """A task cannot be called with these arguments; nothing was sent."""


class EncodeError(EmsError):
    """A body or header cannot be serialized."""


class ContentRefused(EmsError):
    """The content type, or the compression, of a message is not on the accept list."""


class DecodeError(EmsError):
    """The body is not what its content type says."""


class StoreUnavailable(EmsError, StoreError):
    """MySQL, or the Redis that keeps results or keys, could not be reached before the deadline."""


class PublishTimeout(StoreUnavailable):
    """A send was not confirmed before its deadline; the message may or may not have been stored."""


class AccessDenied(EmsError, StoreError):
    """MySQL refused the user, the password or a privilege."""


class LoginRefused(AccessDenied):
    """MySQL refused the user or the password, so that there is no connection."""


class TlsError(EmsError, StoreError):
    """The server's certificate is not trusted, or the server offers no TLS although the URL requires it."""


class ServerUnsupported(EmsError):
    """The server lacks what the protocol needs; MariaDB 10.6 and MySQL 8.0 have it."""


class SchemaMissing(EmsError):
    """The tables are missing or of another version; ``ems migrate`` creates them."""


class StatementRefused(EmsError, StoreError):
    """MySQL refused a statement of EMS, or a value in it; another try would end in the same way."""


class FenceLost(EmsError):
    """The claim has another owner now; the transaction was rolled back."""


class LeaseLost(EmsError):
    """The client has lost its lease; its work is run elsewhere."""


class NotInHand(EmsError):
    """A consumer was given a message that it has not in hand: settled already, or delivered by another consumer."""


class UnknownTask(EmsError):
    """A message names a task that this worker does not know."""


class ResultTimeout(EmsError, TimeoutError):
    """A result was not available in time; the task may still run, or may never have asked for a result."""


class TaskFailed(EmsError):
    """The task whose result was requested has failed permanently.

    Args:
        message_id: id of the call.
        error_type, message: type and text of the exception that ended the task.
        traceback: the traceback as text.
    """

    def __init__(self, message_id: str, error_type: str, message: str, traceback: str) -> None:
        self.message_id, self.error_type, self.message, self.traceback = message_id, error_type, message, traceback
        super().__init__(f"{message_id} failed: {error_type}: {message}")


class Cancelled(EmsError):
    """The call whose result was requested was cancelled: nothing of it runs any more.

    Args:
        message_id: id of the call.
    """

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(f"{message_id} was cancelled")


class AppNotFound(EmsError):
    """``-A`` names a module or an object that cannot be loaded."""


class TransactionEnded(EmsError):
    """A transactional handler or a block of ``app.transaction()`` ended its transaction itself, for example by DDL."""


class TransactionRolledBack(EmsError):
    """The server rolled back the transaction of a block, for example in a deadlock; none of it was committed."""


class ConnectionLostInHandler(EmsError):
    """The connection of a transactional handler was lost in each of several runs of a message."""


class TimeLimitExceeded(EmsError):
    """A handler ran past its hard time limit, or past its group's timeout."""


class WorkerLost(TimeLimitExceeded):
    """The worker died while it ran the message."""


class SoftTimeLimitExceeded(EmsError):
    """Raised inside a handler when its soft time limit has passed, so that it can clean up."""

    def __init__(self, message: str = "the soft time limit has passed") -> None:
        super().__init__(message)


class RunCancelled(BaseException):
    """Raised inside a handler when its message was cancelled, so that it can clean up; whatever it does, it is done.

    It is no Exception, as asyncio.CancelledError is none, so that a handler's ``except Exception`` does not go on.
    """

    def __init__(self, message: str = "the message was cancelled while it ran") -> None:
        super().__init__(message)


INTERRUPTIONS = (SoftTimeLimitExceeded, RunCancelled)  # raised in a thread from outside, between any two of its lines


class Retry(EmsError):
    """Raise it in a handler to have the message run again later; it counts as an attempt.

    Args:
        countdown: seconds until the next attempt; without it the ladder decides.
        reason: stored with the attempt.

    Raises:
        ValueError: the countdown is not a number of seconds from 0 to 100 years.
    """

    def __init__(self, reason: str = "", *, countdown: float | None = None) -> None:
        self.countdown_s = None if countdown is None else parse_duration(countdown)
        super().__init__(reason or "retry asked for")


class Reject(EmsError):
    """Raise it in a handler to send the message to the dead letters at once."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "rejected by the handler")


class Ignore(EmsError):
    """Raise it in a handler to mark the message as done."""


class BatchFailed(EmsError):
    """Raise it in a batch handler: these messages failed, all others of the batch are done.

    Args:
        errors: the uid (``message.id``) of each failed message -> its error.
    """

    def __init__(self, errors: Mapping[str, BaseException | str]) -> None:
        self.errors = dict(errors)
        super().__init__(f"{counted(len(self.errors), 'message')} of the batch failed")


_CHAINED = re.compile(
    "^(?:During handling of the above exception, another exception occurred"
    "|The above exception was the direct cause of the following exception):$",
    re.MULTILINE,
)
_GROUP_MARGIN = re.compile(r"^ {0,2}[|+] ", re.MULTILINE)
_NAMED = re.compile(r"[^\W\d][\w.<>]*(?::|$)")


class ConnectionLost(StoreError):
    """The connection died, or the server cannot serve for now; its last packet may or may not have taken effect."""


class DiskFull(ConnectionLost):
    """The server has no room to write; reads, and changes that need no room, go on."""


class Conflict(StoreError):
    """The server aborted this transaction in favour of another; nothing of it was committed."""


class TransactionGone(StoreError):
    """The lent transaction was committed or rolled back by its borrower."""


class Duplicate(StoreError):
    """A unique key is taken; ``key`` is its name."""

    def __init__(self, text: str) -> None:
        self.key = text.rsplit("'", 2)[-2].rsplit(".", 1)[-1] if text.count("'") >= 2 else ""
        super().__init__(text)


class AssertionBroken(StoreError):
    """A condition that a packet states about its own statements did not hold."""


REFUSED = (AccessDenied, TlsError)  # of the user, a password, a grant or TLS


def unknown_topic(name: str, why: str = "auto_create is off") -> UnknownTopic:
    """The error for a topic that is not there and is not created, with the reason."""
    return UnknownTopic(f"there is no topic {name!r} and {why}; create it with `ems topics create {name}`")


def unknown_group(topic: str, name: str, why: str = "auto_create is off") -> UnknownGroup:
    """The error for a group that is not there and is not created, with the reason."""
    return UnknownGroup(
        f"topic {topic!r} has no group {name!r} and {why}; create it with `ems groups create {topic} {name}`"
    )


def unknown_message(names: Sequence[str], message_id: str) -> UnknownMessage:
    """The error for a message that is in none of these topics."""
    where = f"topic {names[0]!r} has no" if len(names) == 1 else "no topic has the"
    return UnknownMessage(f"{where} message {message_id}; look at its id, and at the topic's name")


def error_line(text: str | None) -> str:
    """Return the class and the first line of the message of an error that is stored with its traceback.

    The message may have several lines, so that this is not the last line of the traceback.

    Args:
        text: as Python formats an exception, or one line, or the end of such a text.
    """
    error = _CHAINED.split(text or "")[-1].strip("\n")
    if error.lstrip().startswith(("| ", "+ ")):  # an exception group
        error = _GROUP_MARGIN.sub("", error)
    lines = [line.rstrip() for line in error.splitlines() if line.strip()]
    if not lines or _NAMED.match(lines[0]):
        return _with_message(lines)
    before = next((number for number, line in enumerate(lines) if line.startswith('  File "')), -1)
    is_header = lines[0].endswith("Traceback (most recent call last):")
    if before < 0 and (is_header or "".join(lines[1:2]).startswith("    ")):  # a header, or the rest of a frame's line
        before = 0
    named = (number for number in range(before + 1, len(lines)) if not lines[number][0].isspace())
    return _with_message(lines[next(named, 0) :])


def _with_message(lines: Sequence[str]) -> str:
    """Return the first line; with the second one if the message begins only there."""
    alone = lines and lines[0].endswith(":") and _NAMED.fullmatch(lines[0])
    return " ".join(line.strip() for line in lines[: 2 if alone else 1])


def text_of(error: BaseException) -> str:
    """Return the message of an error; whatever raises it, its own ``__str__`` may fail as well, in any way."""
    try:
        return str(error)
    except BaseException:  # SystemExit of a user's method would end the thread that reports the error
        return "<exception str() failed>"  # as Python's own tracebacks say it


def repr_of(value: object) -> str:
    """Return ``repr(value)`` of a user's object, whose own ``__repr__`` may fail in any way."""
    try:
        return repr(value)
    except BaseException:
        return f"<{type(value).__name__}: repr() failed>"


def class_name(error: BaseException) -> str:
    """Return the name of an error's class: with its module, as in a traceback, unless Python or EMS defines it."""
    kind = type(error)
    module = kind.__module__ if isinstance(kind.__module__, str) else ""  # a class may have set it to anything
    own = module in ("", "builtins", "__main__") or module.split(".")[0] == "emsworker"
    return kind.__qualname__ if own else f"{module}.{kind.__qualname__}"
