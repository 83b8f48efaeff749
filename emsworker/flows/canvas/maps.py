"""Runs a task for many lists of arguments in one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from emsworker.extending.apps import Ems, ResultType, Route, Signature, Task, Types
from emsworker.extending.errors import DecodeError, WrongArguments
from emsworker.extending.values import Message, check_name
from emsworker.flows.task import FlowTask

_NAME = "ems.starmap"


class _EachResult(ResultType):
    """The type of a list of results of a task."""

    def __init__(self, one: ResultType) -> None:
        self._one = one

    def dump(self, value: Any) -> Any:
        """Return the results as they are stored."""
        return [self._one.dump(one) for one in value]

    def build(self, written: Any) -> Any:
        """Return the results that were stored."""
        return [self._one.build(one) for one in written]


class MapTask(Task[..., Any]):
    """A task that runs another one for each list of arguments; its options are those of that one."""

    def __init__(self, name: str, task: Task[..., Any]) -> None:
        self._mapped = task
        super().__init__(
            task.app, task.function, name, task.options, topic=task.topic, group=task.group, bind=task.bind
        )

    def check_call(self, args: Sequence[Any], kwargs: Any, *, is_partial: bool = False) -> None:
        """Check nothing: :func:`starmap` has checked each list of arguments."""

    def read_types(self, function: Any) -> Types:
        """Return the type of a list of what the other task returns; each list of arguments is built by that one."""
        one = self._mapped.result_type
        return Types() if one is None else Types(result=_EachResult(one))

    def call(self, message: Message, transaction: Any = None) -> Any:
        """Run the other task for each list of arguments, one after another."""
        try:
            (items,), _ = message.body
            calls = [[*args] for args in items]
        except (TypeError, ValueError):
            fix = "it must be [[LISTS], {}]"
            raise DecodeError(f"the body of {message.id} is not a call of {self.name}: {fix}") from None
        if self.is_async:
            return self._await_all(calls, message)
        return [self._mapped.call_with(args, {}, message, transaction) for args in calls]

    async def _await_all(self, calls: Sequence[Sequence[Any]], message: Message) -> list[Any]:
        return [await self._mapped.call_with(args, {}, message, None) for args in calls]


def starmap(task: Task[..., Any], items: Iterable[Sequence[Any]]) -> Signature[list[Any]]:
    """Return a call that runs a task for many lists of arguments; see :meth:`Task.starmap`."""
    if isinstance(task, FlowTask | MapTask) or task.options.batch:
        kind = "a flow" if isinstance(task, FlowTask) else "a task that takes messages in batches"
        raise WrongArguments(f"{task.name!r} is {kind}, which map cannot run; make a group of calls")
    calls = [task.body_of([*args], {})[0] for args in items]
    app = cast("Ems", task.app)
    name = check_name("task", f"{_NAME}:{task.name}")
    made = app.registry.route(task.topic, task.group).find(name)
    assert made is not None
    return Signature(made, (calls,), {}, immutable=True)


def make(route: Route, name: str) -> MapTask | None:
    """Return the task that runs another task of its group many times."""
    task = route.tasks.get(name.partition(":")[2])
    return None if task is None else MapTask(name, task)
