"""The extension interface: hooks and brackets around publishing and running (hooks are modelled on Dramatiq).

A hook is told that something happened. A bracket is a context manager around a send or a run: what it opens is closed
in the same thread or coroutine, however the send or the run ends. Metrics and tracing are middleware themselves. Only
what a class overrides is called, so an app without middleware pays nothing for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from inspect import isgeneratorfunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from emsworker.core.errors import ConfigError, DecodeError, Problem
from emsworker.core.model import TASK_HEADER, Claim, Message, Outcome, Receipt

if TYPE_CHECKING:
    from emsworker.publish.outgoing import Outgoing

log = logging.getLogger(__name__)


class RunOutcome(StrEnum):
    """The end of a run for a message, as far as its worker knows.

    ``retry``: it failed, and is run again later. ``dead``: it becomes a dead letter. ``ignored``: it failed, had
    expired or was cancelled, and counts as done. ``lost``: its claim has another owner, or its connection was lost; it
    is run again. ``given_back``: no attempt is charged and it is run again, because its batch failed or the process
    stops at once.
    """

    DONE = "done"
    RETRY = "retry"
    DEAD = "dead"
    IGNORED = "ignored"
    LOST = "lost"
    GIVEN_BACK = "given_back"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of one message's run.

    Args:
        outcome: what becomes of the message. Except after the commit of a transactional handler it is not recorded yet.
        ran_s: the seconds that it ran.
        error: what the handler raised.
        retry_in_s: seconds until the next run, if it is to be retried.
        dead: the reason why it becomes a dead letter.
    """

    message: Message
    outcome: RunOutcome
    ran_s: float = 0.0
    error: BaseException | None = None
    retry_in_s: float | None = None
    dead: str | None = None


@dataclass(slots=True)
class PublishBracket:
    """A send, as :meth:`Middleware.around_publish` gets it.

    Args:
        messages: what is sent; headers may be changed before the block.
        many: it is a ``send_many``.
        transactional: it is part of the caller's transaction, so nothing is committed when the bracket closes.
        receipts: empty until the send has succeeded.
    """

    topic: str
    messages: Sequence[Outgoing]
    many: bool = False
    transactional: bool = False
    receipts: Sequence[Receipt] = ()


@dataclass(slots=True)
class RunBracket:
    """A run of one message, or of a batch, as :meth:`Middleware.around_run` gets it.

    Args:
        messages: one, or those of a batch.
        group: the group that runs them, or the name of a broadcast.
        claim: what they were claimed with.
        began: when the run began, in :func:`ticks`.
        ends: how the run of each message ended; empty until that is known, and set before the bracket closes.
    """

    messages: Sequence[Message]
    group: str
    claim: Claim
    began: float
    ends: Sequence[RunEnd] = ()

    @property
    def topic(self) -> str:
        """The topic of the messages."""
        return self.messages[0].topic

    @property
    def client_id(self) -> str:
        """The client that runs them; empty for a broadcast."""
        return self.claim.client_id

    @property
    def task(self) -> str:
        """The name of the task; empty for a subscription, or if the headers are damaged."""
        try:
            return self.messages[0].headers.get(TASK_HEADER, "")
        except DecodeError:
            return ""

    def wait_s(self, message: Message) -> float:
        """Return the seconds from the write of a message to the start of this run, by the server's clock."""
        return self.claim.waited_s(message, self.began) or 0.0

    def end_all(self, outcome: RunOutcome, ran_s: float, error: BaseException | None = None) -> None:
        """Note one end for all messages."""
        self.ends = [RunEnd(message, outcome, ran_s, error) for message in self.messages]


class Middleware:
    """Base class of middleware: override what you need.

    An error before the block of a bracket, or in a hook before, is an error of the send or of the handler; one after
    the block, or in a hook after a run, is logged.
    """

    def around_publish(self, publish: PublishBracket) -> AbstractContextManager[object]:
        """Return a context manager around a send; an error of the send is raised in it, and raised again after it."""
        return nullcontext()

    def around_run(self, run: RunBracket) -> AbstractContextManager[object]:
        """Return a context manager around each run of a handler.

        An error of the handler is raised in it, and cannot be suppressed. ``run.ends`` is set before the end of the
        block. It also encloses the commit of a transactional handler, and the hooks of the run.
        """
        return nullcontext()

    def before_publish(self, outgoing: Outgoing) -> None:
        """Called before a message is sent; its headers may still be changed."""

    def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
        """Called after the message is committed."""

    def before_run(self, message: Message, group: str) -> None:
        """Called before a handler runs."""

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Called after a handler has run, for ``ran_s`` seconds. The outcome is not recorded yet.

        Not called after every :meth:`before_run`: a batch that fails is run again one by one, and a run can be lost.
        """

    def on_retry(self, message: Message, group: str, error: BaseException, delay_s: float) -> None:
        """Called after :meth:`after_run` if the run failed and will be retried in ``delay_s`` seconds."""

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        """Called after :meth:`after_run` if the message has failed for good.

        If its process died or was replaced over a time limit, another process of the group calls it, a few seconds
        later and without :meth:`after_run`; at most once, and not at all if no process of the group has such a hook.
        """

    def on_process_start(self) -> None:
        """Called when a worker process has loaded the app, before it runs the first message."""

    def on_process_stop(self) -> None:
        """Called on every way out of a worker process that has loaded the app, also if it could not start.

        All middleware is called at the same time, each in a thread of its own, and the process ends when all have
        returned, at the latest after ``stop_hooks_timeout_s``. Handlers may still run if it has to stop at once.
        """


Hooks = tuple[Callable[..., Any], ...]


def hooks(middleware: Sequence[Middleware], name: str) -> Hooks:
    """Return the bound methods of that name that are overridden, in order."""
    plain = getattr(Middleware, name)
    return tuple(getattr(item, name) for item in middleware if getattr(type(item), name) is not plain)


def check_middleware(middleware: Sequence[object]) -> None:
    """Check the objects that an app is given.

    Raises:
        ConfigError: one is not of a class below Middleware, or has a bracket that is a bare generator.
    """
    problems = []
    for item in middleware:
        if not isinstance(item, Middleware):
            problems.append(Problem("middleware", repr(item), "must be objects of classes below Middleware"))
            continue
        for bracket in (item.around_publish, item.around_run):
            if isgeneratorfunction(bracket):
                problems.append(Problem("middleware", _name_of(bracket), "is a generator: put @contextmanager on it"))
    if problems:
        raise ConfigError(problems)


def _name_of(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", repr(hook))


class OpenBrackets:
    """The brackets around one send or run: opened in order, closed in reverse order at the end of the block.

    Args:
        around: what makes them.
        bracket: what each is made with.

    Attributes:
        error: passes through the brackets as if it was raised in the block.
    """

    def __init__(self, around: Hooks, bracket: Any) -> None:
        self._around, self.bracket = around, bracket
        self._entered: list[tuple[str, AbstractContextManager[object]]] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def open(self) -> None:
        """Open the brackets; those before one that fails are closed like all others."""
        for around in self._around:
            manager = around(self.bracket)
            if not isinstance(manager, AbstractContextManager):
                raise ConfigError([Problem("middleware", _name_of(around), "must return a context manager")])
            manager.__enter__()
            self._entered.append((_name_of(around), manager))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        passing = error if self.error is None else self.error
        raised: Any = (None, None, None) if passing is None else (type(passing), passing, passing.__traceback__)
        interrupted: KeyboardInterrupt | None = None
        for name, manager in reversed(self._entered):
            try:
                manager.__exit__(*raised)
            except KeyboardInterrupt as interruption:  # it is the program's, and came while this one was closed
                interrupted = interruption if interruption is not passing else interrupted
            except BaseException as failure:  # each of them is closed, and the message has ended
                if failure is not passing:
                    log.exception("the end of %s of the middleware failed", name)
        # An error's frames refer to the one that has these brackets: they would live on in the cycle.
        self.bracket = self.error = None
        if interrupted is not None:
            raise interrupted
