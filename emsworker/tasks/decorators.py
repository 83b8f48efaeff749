"""Types of the decorators that ``@app.task(...)`` returns: a call has the arguments that the worker does not give."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from emsworker.publish.transaction import Transaction
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
