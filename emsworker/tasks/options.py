"""Options with which handlers are declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emsworker.core.durations import LONGEST_S
from emsworker.core.errors import ConfigError, Ignore, Problem, Reject, Retry
from emsworker.core.ladder import Dead, Decision, Done, Ladder
from emsworker.core.limits import Limit
from emsworker.core.options import is_number, is_whole, refuse_unknown
from emsworker.core.priority import PRIORITIES

ON_ERROR = ("retry", "dead", "ignore")


def _is_count(value: object, least: int) -> bool:
    return is_whole(value) and least <= value <= 65535


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
        timeout_s: seconds that a message may run before it is moved to retry, instead of the group's.
        soft_time_limit_s: seconds after which SoftTimeLimitExceeded is raised in the handler.
        hard_time_limit_s: seconds after which the process is replaced and the message moved to retry.
        result: keep what it returns, or the error that it ended with, for :meth:`Ems.result`.
        result_ttl_s: seconds that results are kept, instead of the app's setting; it enables results, too.
        rate_limit: of the whole group, on all machines: at most this many starts, ``100/s``, ``30/m``, ``5/h``.
        max_running: of the whole group, on all machines: at most this many messages run at once.
        priority: of a task's calls that name none, 0 to 9; higher ones are run first.
    """

    transactional: bool = False
    batch: int = 0
    concurrency: int = 100
    on_error: str = "retry"
    ladder: str | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    soft_time_limit_s: float | None = None
    hard_time_limit_s: float | None = None
    result: bool = False
    result_ttl_s: float | None = None
    rate_limit: str | None = None
    max_running: int | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        problems = [*self._wrong_numbers()]
        if self.on_error not in ON_ERROR:
            problems.append(Problem("on_error", repr(self.on_error), f"must be one of {', '.join(ON_ERROR)}"))
        if self.keeps_result and self.batch:
            problems.append(Problem("result", repr(self.result), "a batch handler has no result for each message"))
        try:
            if self.ladder is not None:
                Ladder.parse(self.ladder)
        except ValueError as error:
            problems.append(Problem("ladder", repr(self.ladder), str(error)))
        try:
            Limit(self.rate_limit, self.max_running)
        except ValueError as error:
            problems.append(Problem("rate_limit, max_running", f"{self.rate_limit}, {self.max_running}", str(error)))
        if problems:
            raise ConfigError(problems)

    def _wrong_numbers(self) -> Iterator[Problem]:
        if not _is_count(self.batch, 0):
            yield Problem("batch", repr(self.batch), "must be a number of messages, 0 for one by one")
        if self.priority is not None and (not _is_count(self.priority, 0) or self.priority not in PRIORITIES):
            yield Problem("priority", repr(self.priority), "must be a number from 0 to 9, the highest")
        for name in ("concurrency", "max_attempts"):
            value = getattr(self, name)
            if value is not None and not _is_count(value, 1):
                yield Problem(name, repr(value), "must be a number from 1 to 65535")
        for name in ("transactional", "result"):
            if not isinstance(getattr(self, name), bool):
                yield Problem(name, repr(getattr(self, name)), "must be True or False")
        for name in ("timeout_s", "soft_time_limit_s", "hard_time_limit_s", "result_ttl_s"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value <= LONGEST_S):
                yield Problem(name, repr(value), "must be a number of seconds above 0")

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> HandlerOptions:
        """Return options that a user has named, checked.

        Raises:
            ConfigError: one is unknown or wrong.
        """
        refuse_unknown("a handler", options, cls.__dataclass_fields__)
        return cls(**options)

    @property
    def limit(self) -> Limit:
        """The rate and concurrency limit of its group."""
        return Limit(self.rate_limit, self.max_running)

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
        """Decide about a message whose run ended in ``error``; Retry, Reject and Ignore take precedence."""
        asked_for = isinstance(error, (Retry, Reject, Ignore))
        if self.on_error == "dead" and not asked_for:
            return Dead(f"{type(error).__name__}: {error}")
        if self.on_error == "ignore" and not asked_for:
            return Done()
        return self.ladder_over(group).next(attempt, error)
