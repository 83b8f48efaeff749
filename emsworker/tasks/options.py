"""Options with which handlers are declared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from emsworker.core.durations import LONGEST_S, parse_duration
from emsworker.core.errors import (
    ConnectionLostInHandler,
    Ignore,
    Problem,
    Reject,
    Retry,
    RunCancelled,
    SoftTimeLimitExceeded,
    TimeLimitExceeded,
    WorkerLost,
    class_name,
    text_of,
)
from emsworker.core.ladder import Dead, Decision, Done, Ladder, RetryIn
from emsworker.core.limits import MOST_RUNNING, RATE, Limit
from emsworker.core.model import ATTEMPTS, LADDER
from emsworker.core.options import (
    Check,
    choice,
    flag,
    option,
    options_of,
    problems_in,
    problems_of,
    raise_problems,
    seconds,
    whole,
)
from emsworker.core.priority import PRIORITIES
from emsworker.core.tags import TAGS, Requires, read_tags
from emsworker.tasks.fair_key import FAIR

ON_ERROR = ("retry", "dead", "ignore")
_COUNT, _SPAN = whole(1, 65535), seconds(0.001)
_NOT_RAISED = (WorkerLost, ConnectionLostInHandler, TimeLimitExceeded, SoftTimeLimitExceeded)  # by the handler itself

ErrorClasses = type[BaseException] | tuple[type[BaseException], ...]
RetryAfter = Callable[[Any], float | str | None]

log = logging.getLogger(__name__)


def _verify_classes(value: Any) -> None:
    classes = value if isinstance(value, tuple) else (value,)
    if not classes or not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise ValueError(
            "must be a class of exceptions, or a tuple of such classes, like (ConnectionError, TimeoutError)"
        )


def _verify_callable(value: Any) -> None:
    if not callable(value):
        raise ValueError("must be a function of the error that returns seconds, or None for the ladder's delay")


_CLASSES, _CALLABLE = Check(_verify_classes), Check(_verify_callable)


class HandlerKeywords(TypedDict, total=False):
    """Options of a handler that do not change the function's arguments, for type checkers; see HandlerOptions."""

    concurrency: int
    on_error: Literal["retry", "dead", "ignore"]
    ladder: str | None
    max_attempts: int | None
    retry_for: ErrorClasses | None
    no_retry_for: ErrorClasses | None
    retry_after: RetryAfter | None
    timeout_s: float | None
    soft_time_limit_s: float | None
    hard_time_limit_s: float | None
    on_cancel: Literal["raise", "flag"]
    rate_limit: str | None
    max_running: int | None
    max_running_per_key: int | None
    requires: Requires | None
    fair: str | None
    result: bool
    result_ttl_s: float | None


class TaskKeywords(HandlerKeywords, total=False):
    """Options of :meth:`Ems.task` that do not change the function's arguments, for type checkers."""

    name: str | None
    topic: str | None
    group: str | None
    order: Literal["key", "partition"] | None
    priority: int | None
    typed: bool | None


@dataclass(frozen=True)
class HandlerOptions:
    """Options that determine how a handler is run.

    Args:
        transactional: it gets an open transaction as its first argument; its SQL and the ack commit atomically.
        batch: one call gets at most this many messages, as a list; 0 for one by one.
        concurrency: of an ``async def`` handler: a consumer thread runs at most this many of its messages at once.
        on_error: what an exception means: ``retry`` (the ladder, then a dead letter), ``dead`` (a dead letter at once)
            or ``ignore`` (done).
        ladder: delays between attempts, instead of the group's.
        max_attempts: runs in all, instead of the group's.
        retry_for: classes of exceptions that are retried; any other that the handler raises is a dead letter at once.
        no_retry_for: classes of exceptions that are a dead letter at once.
        retry_after: called with an exception that is retried; returns seconds until the next attempt, or ``"2m"``, or
            ``None`` for the ladder's delay.
        timeout_s: seconds that a message may run before it is moved to retry, instead of the group's.
        soft_time_limit_s: seconds after which SoftTimeLimitExceeded is raised in the handler.
        hard_time_limit_s: seconds after which the process is replaced and the message moved to retry.
        on_cancel: what a running handler gets when its message is cancelled: ``raise`` (RunCancelled; CancelledError in
            a coroutine) or ``flag`` (only ``run.cancelled`` becomes true). Batch handlers always get the flag.
        result: keep what it returns, or the error that it ended with, for :meth:`Ems.result`.
        result_ttl_s: seconds that results are kept, instead of the app's setting; it enables results, too.
        rate_limit: of the whole group, on all machines: at most this many starts, ``100/s``, ``30/m``, ``5/h``.
        max_running: of the whole group, on all machines: at most this many messages run at once.
        max_running_per_key: of a fair group, on all machines: at most this many messages of each key run at once.
        requires: tags, like ``"gpu"`` or ``("gpu", "eu")``: only workers started with all of them (``ems worker --tags
            gpu,eu``) run it.
        fair: a header, or the name of an argument of the task, like ``"tenant"``: messages with different values
            of it get equal shares of the whole group, so that one customer's flood does not hold up the others.
        priority: of a task's calls that name none, 0 to 9; higher ones are run first.
        typed: true to check all of a task's arguments, and its result, against their annotations, and to refuse
            annotations that are no types of JSON's or Pydantic's; false to use none of them. By default, those are used
            that name what JSON does not have, such as a model or a datetime, as far as Pydantic knows it.
    """

    transactional: bool = option(False, flag())
    batch: int = option(0, whole(0, 65535))
    concurrency: int = option(100, _COUNT)
    on_error: str = option("retry", choice(ON_ERROR))
    ladder: str | None = option(None, LADDER)
    max_attempts: int | None = option(None, ATTEMPTS)
    retry_for: ErrorClasses | None = option(None, _CLASSES)
    no_retry_for: ErrorClasses | None = option(None, _CLASSES)
    retry_after: RetryAfter | None = option(None, _CALLABLE)
    timeout_s: float | None = option(None, _SPAN)
    soft_time_limit_s: float | None = option(None, _SPAN)
    hard_time_limit_s: float | None = option(None, _SPAN)
    on_cancel: str = option("raise", choice(("raise", "flag")))
    result: bool = option(False, flag())
    result_ttl_s: float | None = option(None, _SPAN)
    rate_limit: str | None = option(None, RATE)
    max_running: int | None = option(None, MOST_RUNNING)
    max_running_per_key: int | None = option(None, MOST_RUNNING)
    requires: Requires | None = option(None, TAGS)
    fair: str | None = option(None, FAIR)
    priority: int | None = option(None, whole(0, len(PRIORITIES) - 1))
    typed: bool | None = option(None, flag())

    def __post_init__(self) -> None:
        problems = problems_in(self)
        if self.keeps_result and self.batch:
            problems.append(Problem("result", repr(self.result), "a batch handler has no result for each message"))
        if self.typed and self.batch:
            problems.append(Problem("typed", "True", "a batch handler gets messages, whose bodies are plain JSON"))
        if self.max_running_per_key is not None and (not self.fair or self.batch):
            fix = "messages of a group with it are claimed one by one" if self.batch else "name the key with fair="
            problems.append(Problem("max_running_per_key", str(self.max_running_per_key), fix))
        raise_problems(problems)

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> HandlerOptions:
        """Return options that a user has named, checked.

        Raises:
            ConfigError: one is unknown or wrong.
        """
        raise_problems(problems_of("a handler", options, options_of(cls)))
        return cls(**options)

    @property
    def limit(self) -> Limit:
        """The rate and concurrency limit of its group."""
        return Limit(self.rate_limit, self.max_running, self.max_running_per_key)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that a worker needs to run it."""
        return read_tags(self.requires)

    @property
    def keeps_result(self) -> bool:
        """True if results are kept."""
        return self.result or self.result_ttl_s is not None

    def ladder_over(self, group: Ladder) -> Ladder:
        """The group's ladder with this handler's own settings put over it."""
        if self.ladder is None and self.max_attempts is None:
            return group
        return Ladder.parse(self.ladder or group.delays_s, self.max_attempts or group.max_attempts, group.jitter)

    def decide(self, group: Ladder, attempt: int, error: BaseException) -> Decision:
        """Decide about a message whose run ended in ``error``; Retry, Reject, Ignore and a cancel take precedence."""
        if isinstance(error, (Retry, Reject, Ignore, RunCancelled)):
            return self.ladder_over(group).next(attempt, error)
        if self.on_error == "ignore":
            return Done()
        if self.on_error == "dead" or not self._is_retried(error):
            return Dead(f"{type(error).__name__}: {text_of(error)}")
        decision = self.ladder_over(group).next(attempt, error)
        if isinstance(decision, RetryIn) and self.retry_after is not None and not isinstance(error, _NOT_RAISED):
            return RetryIn(_delay_s(self.retry_after, error, decision.delay_s))
        return decision

    def _is_retried(self, error: BaseException) -> bool:
        if self.no_retry_for is not None and isinstance(error, self.no_retry_for):
            return False
        return self.retry_for is None or isinstance(error, (*_NOT_RAISED, *_as_tuple(self.retry_for)))


def _as_tuple(classes: ErrorClasses) -> tuple[type[BaseException], ...]:
    return classes if isinstance(classes, tuple) else (classes,)


def _delay_s(retry_after: RetryAfter, error: BaseException, ladder_s: float) -> float:
    """Return the delay that a user's function asks for; the ladder's if it asks for none, or for what is none."""
    try:
        asked = retry_after(error)
        if asked is None:
            return ladder_s
        delay_s = parse_duration(asked)
    except Exception as wrong:  # whatever it raises must not cost the message its retry
        said = class_name(error), class_name(wrong), text_of(wrong)
        log.warning("retry_after failed for %s: %s: %s; the ladder's delay holds", *said)
        return ladder_s
    return min(delay_s, LONGEST_S)
