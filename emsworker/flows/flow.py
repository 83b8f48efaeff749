"""The first argument of a flow's function: the words in which it asks for its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from emsworker.extending.apps import Signature
from emsworker.extending.errors import WrongArguments
from emsworker.extending.publishing import Transaction
from emsworker.flows import branches
from emsworker.flows.canvas.words import Canvas, task_of
from emsworker.flows.errors import CallFailed
from emsworker.flows.rows import CALL, GATHER, StepRow
from emsworker.flows.run import FlowRun, outcome_of, step_name, step_type

P = ParamSpec("P")
R = TypeVar("R")

Call = Signature[R] | Canvas[R]
"""A call that a flow makes: of a task, of another flow, or a canvas."""


class _Face:
    """The part that plain flows and those of coroutines have in common."""

    def __init__(self, run: FlowRun, attempt: int, slot: str | None) -> None:
        self._run, self._slot = run, slot
        self.attempt = attempt

    @property
    def run(self) -> FlowRun:
        """The run of the flow, for what this extension builds on it."""
        return self._run

    @property
    def id(self) -> str:
        """The flow's id."""
        return self._run.flow.key

    @property
    def slot(self) -> datetime | None:
        """The time for which a schedule has started the flow, in UTC; ``None`` if none has."""
        return None if self._slot is None else datetime.fromisoformat(self._slot)

    def patched(self, name: str) -> bool:
        """Return whether the flow came here for the first time with the code that asks this.

        ``if flow.patched("with a receipt"):`` guards steps that flows which are under way do not have.
        """
        return self._run.patched(name)

    def undo(self, signature: Call[Any]) -> None:
        """Have a call made if the flow fails later: in reverse order, each when the one before has ended."""
        call = _checked(signature)
        args, kwargs = call.task.body_of(call.args, call.kwargs)  # by then it is too late for a check
        self._run.undo(replace(call, args=tuple(args), kwargs=kwargs))


class Flow(_Face):
    """The flow of a plain function.

    Its function is called again from the start after a crash, a retry, a deploy or a wait. Steps that have ended are
    not run again: they give what they gave. What stands between steps is run again.

    Attributes:
        attempt: number of the try, from 1, since the flow has last waited.
    """

    def step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function here, and record what it returns; a crash in between repeats it.

        It raises what the function raises; if the flow goes on after that, later runs raise it here again.
        """
        _refuse_coroutine(function)
        value: R = self._run.step(step_name(function), partial(function, *args, **kwargs), step_type(function))
        return value

    def transaction(self, function: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function with an open transaction; its SQL and the record are one commit, so it takes effect once."""
        _refuse_coroutine(function)
        name = step_name(function)
        value: R = self._run.transaction(
            name, lambda transaction: function(transaction, *args, **kwargs), step_type(function)
        )
        return value

    def call(self, signature: Call[R]) -> R:
        """Have a task run by any worker, with its own retries; no thread waits meanwhile.

        Raises:
            CallFailed: it has failed for good.
        """
        call = _checked(signature)
        value: R = self._run.value_of(self._run.calls(CALL, call.task.name, [call], leaves=True), call)
        return value

    @overload
    def gather(self, signatures: Iterable[Call[R]], *, errors: Literal[False] = False) -> list[R]: ...
    @overload
    def gather(self, signatures: Iterable[Call[R]], *, errors: Literal[True]) -> list[R | CallFailed]: ...
    def gather(self, signatures: Iterable[Call[R]], *, errors: bool = False) -> Any:
        """Have many calls run, and go on when all of them have ended; return what they returned, in their order.

        Args:
            errors: return the error of a call that has failed in its place, instead of raising the first one.

        Raises:
            CallFailed: one has failed for good; the others have ended too.
        """
        name, calls = _group(signatures)
        return self._run.values_of(self._run.calls(GATHER, name, calls, leaves=True), calls, errors=errors)

    def sleep(self, duration: float | str) -> None:
        """Wait for some seconds, or ``"1d"``; the flow costs rows meanwhile, and no process."""
        self._run.sleep(duration, leaves=True)

    def wait_for(self, name: str, *, timeout: float | str | None = None) -> Any:
        """Wait for a signal, and return what it was given; see :func:`Ems.signal`. One that has come already counts.

        Raises:
            SignalTimeout: it did not come in time.
        """
        return outcome_of(self._run.wait_for(name, timeout, leaves=True))

    def emit(self, value: Any) -> None:
        """Publish a value, once, for those who follow the flow."""
        self._run.emit(value)


class AsyncFlow(_Face):
    """The flow of an ``async def`` function: the same words, to be awaited, side by side too.

    Each coroutine that runs beside others is a branch of its own, in which its steps have their places. Await nothing
    else between steps: while everything waits for calls, signals or times, the function is left.
    """

    def __init__(self, run: FlowRun, attempt: int, slot: str | None, idle: asyncio.Event) -> None:
        super().__init__(run, attempt, slot)
        self._idle = idle
        self._lock = asyncio.Lock()
        self._active = 0
        self.waits: list[tuple[str, list[int], list[str]]] = []

    @overload
    async def step(self, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call or await a function here, and record what it returns; see :meth:`Flow.step`.

        A plain function is called by a thread.
        """
        name, kind = step_name(function), step_type(function)
        call: Callable[[], Any] = partial(function, *args, **kwargs)
        if not iscoroutinefunction(getattr(function, "function", function)):
            return await self._do(lambda: self._run.step(name, call, kind))
        branches.enter()
        row = self._run.find("step", name)
        if row is not None:
            return outcome_of(row, kind)
        row = self._run.new_step(name)
        self._active += 1
        try:
            with self._run.inside(name), self._run.noting(row):
                value = await call()
            async with self._lock:
                return await self._run.akeep(row, value, kind)
        finally:
            self._leave()

    async def transaction(
        self, function: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a plain function with an open transaction; see :meth:`Flow.transaction`."""
        _refuse_coroutine(function)
        name = step_name(function)
        value: R = await self._do(
            lambda: self._run.transaction(
                name, lambda transaction: function(transaction, *args, **kwargs), step_type(function)
            )
        )
        return value

    async def call(self, signature: Call[R]) -> R:
        """Have a task run by any worker; see :meth:`Flow.call`."""
        call = _checked(signature)
        row = await self._do(lambda: self._run.calls(CALL, call.task.name, [call], leaves=False))
        await self._until(row.pending == 0, f"call {row.name}", steps=[row.number])
        value: R = await self._do(lambda: self._run.value_of(row, call))
        return value

    @overload
    async def gather(self, signatures: Iterable[Call[R]], *, errors: Literal[False] = False) -> list[R]: ...
    @overload
    async def gather(self, signatures: Iterable[Call[R]], *, errors: Literal[True]) -> list[R | CallFailed]: ...
    async def gather(self, signatures: Iterable[Call[R]], *, errors: bool = False) -> list[Any]:
        """Have many calls run; see :meth:`Flow.gather`."""
        name, calls = _group(signatures)
        row = await self._do(lambda: self._run.calls(GATHER, name, calls, leaves=False))
        await self._until(row.pending == 0, f"gather {row.name}", steps=[row.number])
        values: list[Any] = await self._do(lambda: self._run.values_of(row, calls, errors=errors))
        return values

    async def sleep(self, duration: float | str) -> None:
        """Wait for some time; see :meth:`Flow.sleep`."""
        await self._until(await self._do(lambda: self._run.sleep(duration, leaves=False)), "sleep")

    async def wait_for(self, name: str, *, timeout: float | str | None = None) -> Any:
        """Wait for a signal; see :meth:`Flow.wait_for`."""
        row: StepRow = await self._do(lambda: self._run.wait_for(name, timeout, leaves=False))
        await self._until(row.is_ended, f"signal {name}", signals=[name])
        return outcome_of(row)

    async def emit(self, value: Any) -> None:
        """Publish a value, once; see :meth:`Flow.emit`."""
        await self._do(lambda: self._run.emit(value))

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Do what blocks in a thread, one thing at a time, in the order in which it was asked for."""
        branches.enter()  # the thread has it from this coroutine's context
        self._active += 1
        try:
            return await self._locked(work)
        finally:
            self._leave()

    async def _locked(self, work: Callable[[], Any]) -> Any:
        async with self._lock:
            return await self._run.app.pool.run(work, f"flow {self.id}")

    async def _until(self, is_over: bool, waits: str, steps: Iterable[int] = (), signals: Iterable[str] = ()) -> None:
        """Go on if something is over; otherwise wait, for ever: the function is left once all of it waits."""
        if not is_over:
            self.waits.append((waits, [*steps], [*signals]))
            await asyncio.get_running_loop().create_future()

    def _leave(self) -> None:
        self._active -= 1
        if not self._active:
            self._look(3)

    def _look(self, times: int) -> None:
        """Notice that all of the function waits: nothing has begun while everything that could go on did."""
        if self._active:
            return
        if times:
            asyncio.get_running_loop().call_soon(self._look, times - 1)
        elif self.waits:
            self._idle.set()

    def suspend(self) -> None:
        """Let the flow wait for all that its coroutines wait for.

        Raises:
            Suspended, RunAgain: as :meth:`Run.suspend`.
            FlowChanged: the code no longer asks for all that was recorded.
        """
        steps = [number for _, some, _ in self.waits for number in some]
        signals = [name for _, _, some in self.waits for name in some]
        self._run.history.check_all_asked()
        self._run.suspend(", ".join(dict.fromkeys(waits for waits, _, _ in self.waits)), steps=steps, signals=signals)

    def patched(self, name: str) -> bool:
        """Return whether the branch came here for the first time with this code; see :meth:`Flow.patched`."""
        branches.enter()
        return super().patched(name)

    def undo(self, signature: Call[Any]) -> None:
        """Have a call made if the flow fails later; see :meth:`Flow.undo`."""
        branches.enter()
        super().undo(signature)


def _checked(part: Any) -> Signature[Any]:
    if isinstance(part, Signature) and not part.callbacks and not part.errbacks:
        return part
    return task_of(part).signature_of(part)  # it is a flow itself


def _group(signatures: Iterable[Call[Any]]) -> tuple[str, list[Signature[Any]]]:
    calls = [_checked(one) for one in signatures]
    names = dict.fromkeys(call.task.name for call in calls)
    return (", ".join(names) or "nothing")[:190], calls


def _refuse_coroutine(function: Any) -> None:
    if iscoroutinefunction(getattr(function, "function", function)):
        raise WrongArguments(f"{step_name(function)!r} is an async def function; only an async def flow can await it")
