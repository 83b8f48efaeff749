"""Declaration of a Django task as a task of EMS."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, iscoroutinefunction, signature
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.utils import timezone

from emsworker.extending.apps import BoundTask, HandlerOptions
from emsworker.extending.errors import ConfigError, Problem
from emsworker.integrations.django.app import close_old_connections
from emsworker.integrations.django.framework import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    task_finished,
    task_started,
)

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = "ems_options"  # an attribute of the function
_OF_DJANGO = {
    "priority": "Django has a priority of its own: @task(priority=10)",
    "batch": "a Django task runs one call; get_app().subscribe() takes batches",
    "transactional": "a Django task runs with Django's connection; use transaction.atomic() and app.once()",
}


def options(**given: Any) -> Callable[[F], F]:
    """Set options of EMS for a task; the decorator stands below ``@task``.

    Args:
        given: those of :class:`HandlerOptions`: ``max_attempts``, ``ladder``, ``on_error``, ``timeout_s``,
            ``soft_time_limit_s``, ``hard_time_limit_s``, ``rate_limit``, ``max_running``, ``max_running_per_key``,
            ``requires``, ``fair``, ``result``, ``result_ttl_s``; of a coroutine also ``concurrency``.

    Raises:
        ConfigError: an option is unknown or wrong, or Django has one of its own.
    """
    if wrong := [Problem(name, repr(given[name]), fix) for name, fix in _OF_DJANGO.items() if name in given]:
        raise ConfigError(wrong)
    HandlerOptions.checked(given)

    def declare(function: F) -> F:
        if not callable(function) or hasattr(function, "enqueue"):
            fix = "put @options(...) below @task, on the function itself"
            raise ConfigError([Problem("options", repr(function), fix)])
        setattr(function, _OPTIONS, given)
        return function

    return declare


def options_of(function: Any) -> dict[str, Any]:
    """Return the options of a function for :meth:`Ems.task`; results are kept unless it says otherwise."""
    return {"result": True, **getattr(function, _OPTIONS, {})}


def running(task: Any, request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a call that runs now, as Django's signals and contexts have it."""
    now = timezone.now()
    return TaskResult(
        task=task,
        id=request.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=list(args),
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=["unknown"] * (request.attempt - 1) + [f"{socket.gethostname()}-{os.getpid()}"],
    )


def finish(result: Any, status: Any, sender: type, value: Any = None) -> None:
    """Send Django's signal that a call has ended for good."""
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "_return_value", value)
    task_finished.send(sender, task_result=result)


def runner(task: Any, sender: type) -> Callable[..., Any]:
    """Return the handler of a task: it calls the function and sends Django's signals.

    Args:
        task: Django's.
        sender: of the signals.
    """

    def start(bound: BoundTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        result = running(task, bound.request, args, kwargs)
        task_started.send(sender, task_result=result)
        return result, (TaskContext(task_result=result),) if task.takes_context else ()

    def run(bound: BoundTask, /, *args: Any, **kwargs: Any) -> Any:
        result, context = start(bound, args, kwargs)
        value = task.func(*context, *args, **kwargs)
        finish(result, TaskResultStatus.SUCCESSFUL, sender, value)
        return value

    async def run_coroutine(bound: BoundTask, /, *args: Any, **kwargs: Any) -> Any:
        await sync_to_async(close_old_connections)()  # of the thread in which the ORM works for coroutines
        try:
            result, context = start(bound, args, kwargs)
            value = await task.func(*context, *args, **kwargs)
            finish(result, TaskResultStatus.SUCCESSFUL, sender, value)
            return value
        finally:
            await sync_to_async(close_old_connections)()

    chosen: Callable[..., Any] = run_coroutine if iscoroutinefunction(task.func) else run
    vars(chosen)["__signature__"] = _signature(task)  # arguments are checked when the call is enqueued
    chosen.__doc__ = task.func.__doc__
    return chosen


def _signature(task: Any) -> Signature:
    """Return the signature of a task's function with the bound task in place of its context."""
    parameters = [*signature(task.func).parameters.values()][1 if task.takes_context else 0 :]
    taken = {one.name for one in parameters}
    first = next(name for name in ("bound", "bound_", "bound__") if name not in taken)
    return Signature([Parameter(first, Parameter.POSITIONAL_ONLY), *parameters])
