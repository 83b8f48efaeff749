"""Types of ``@app.task(...)`` and ``@app.subscribe(...)``: by their options, the functions that they are put on.

A call of a task has the arguments that the worker does not give.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Required, TypeVar, overload

from emsworker.core.model import Message
from emsworker.core.selection.filters import Filter
from emsworker.publish.transaction import Transaction
from emsworker.tasks.options import HandlerKeywords, TaskKeywords
from emsworker.tasks.task import BoundTask, CoroutineTask, GivenTask, Task

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator(Protocol):
    """Decorator of ``@app.task(...)``, for a function that gets the arguments of its calls."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class BoundDecorator(Protocol):
    """Decorator of ``@app.task(bind=True, ...)``."""

    @overload
    def __call__(self, function: Callable[Concatenate[BoundTask, P], Coroutine[Any, Any, R]], /) -> GivenTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[BoundTask, P], R], /) -> GivenTask[P, R]: ...


class TransactionalDecorator(Protocol):
    """Decorator of ``@app.task(transactional=True, ...)``."""

    def __call__(self, function: Callable[Concatenate[Transaction, P], R], /) -> GivenTask[P, R]:
        """Declare the task."""
        ...


class BoundTransactionalDecorator(Protocol):
    """Decorator of ``@app.task(bind=True, transactional=True, ...)``."""

    def __call__(self, function: Callable[Concatenate[BoundTask, Transaction, P], R], /) -> GivenTask[P, R]:
        """Declare the task."""
        ...


BatchDecorator = Callable[[Callable[[list[Message]], Any]], GivenTask[..., None]]
TransactionalBatchDecorator = Callable[[Callable[[Transaction, list[Message]], Any]], GivenTask[..., None]]


class PlainKeywords(TaskKeywords, total=False):
    """Options of a task whose function gets the arguments of its calls."""

    bind: Literal[False]
    transactional: Literal[False]
    batch: Literal[0]


class BoundKeywords(TaskKeywords, total=False):
    """Options of a task whose function gets itself first."""

    bind: Required[Literal[True]]
    transactional: Literal[False]
    batch: Literal[0]


class TransactionalKeywords(TaskKeywords, total=False):
    """Options of a task whose function gets a transaction first."""

    bind: Literal[False]
    transactional: Required[Literal[True]]
    batch: Literal[0]


class BoundTransactionalKeywords(TaskKeywords, total=False):
    """Options of a task whose function gets itself and a transaction first."""

    bind: Required[Literal[True]]
    transactional: Required[Literal[True]]
    batch: Literal[0]


class BatchKeywords(TaskKeywords, total=False):
    """Options of a task whose function gets messages in a list."""

    transactional: Literal[False]
    batch: Required[int]


class TransactionalBatchKeywords(TaskKeywords, total=False):
    """Options of a task whose function gets a transaction, and messages in a list."""

    transactional: Required[Literal[True]]
    batch: Required[int]


class _SubscriptionKeywords(HandlerKeywords, total=False):
    filter: Filter
    order: str | None


class SubscriberKeywords(_SubscriptionKeywords, total=False):
    """Options of a subscription whose function gets a message."""

    broadcast: bool
    name: str | None
    transactional: Literal[False]
    batch: Literal[0]


class TransactionalSubscriberKeywords(_SubscriptionKeywords, total=False):
    """Options of a subscription whose function gets a transaction and a message."""

    transactional: Required[Literal[True]]
    batch: Literal[0]


class BatchSubscriberKeywords(_SubscriptionKeywords, total=False):
    """Options of a subscription whose function gets messages in a list."""

    transactional: Literal[False]
    batch: Required[int]


class TransactionalBatchSubscriberKeywords(_SubscriptionKeywords, total=False):
    """Options of a subscription whose function gets a transaction, and messages in a list."""

    transactional: Required[Literal[True]]
    batch: Required[int]
