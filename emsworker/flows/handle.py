"""A flow from outside: its state, its result, and what it emits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from emsworker.extending.apps import Ems
from emsworker.extending.errors import ResultTimeout
from emsworker.extending.processes import ticks
from emsworker.flows.errors import FlowCancelled, FlowFailed, UnknownFlow
from emsworker.flows.port import FlowFunction, FlowStore
from emsworker.flows.retrying import first_step
from emsworker.flows.rows import CALL, CANCELLED, DONE, ENDED, FAILED, GATHER, CallEnd, FlowRow, StepRow, decode_value
from emsworker.flows.run import value_of

R = TypeVar("R")
_POLL_MIN_S, _POLL_MAX_S = 0.01, 0.5
_VALUES = 100


class CallResult:
    """The state of one call of a flow.

    Attributes:
        step: name of the step that has made it.
        number: of the call in its step, from 0.
        state: ``pending``, ``done`` or ``failed``.
    """

    def __init__(self, row: StepRow, number: int, end: CallEnd | None) -> None:
        self.step, self.number, self._row, self._end = row.name, number, row, end
        self.state = "pending" if end is None else DONE if end.failure is None else FAILED

    def get(self) -> Any:
        """Return what the call has returned.

        Raises:
            CallFailed: it has failed.
            ResultTimeout: it has not ended.
        """
        if self._end is None:
            raise ResultTimeout(f"call {self.number} of {self.step} has not ended")
        return value_of(self._row, self._end)

    def __repr__(self) -> str:
        return f"<CallResult {self.step}[{self.number}] {self.state}>"


class _Wait:
    """The wait for the end of a flow, with pauses between the looks that grow.

    Args:
        timeout_s: for how long at most; ``None``: without end.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._until = None if timeout_s is None else ticks() + timeout_s
        self._pause_s = _POLL_MIN_S

    def next_pause_s(self, flow: FlowRow) -> float:
        """Return how many seconds later to look again.

        Raises:
            ResultTimeout: the time would be over by then.
        """
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 1.5, _POLL_MAX_S)
        if self._until is not None and ticks() + pause_s > self._until:
            raise ResultTimeout(f"flow {flow.key!r} has not ended within {self._timeout_s:g} s; it is {flow.state}")
        return pause_s


class FlowHandle(Generic[R]):
    """A flow.

    Attributes:
        id: of the flow.
        created: false if a flow with this id was there before.
    """

    def __init__(self, id: str, store: FlowStore, app: Ems, *, created: bool = False) -> None:
        self.id, self.created = id, created
        self._store, self._app = store, app

    @property
    def state(self) -> str:
        """One of ``ready``, ``running``, ``waiting``, ``done``, ``failed`` and ``cancelled``."""
        return self._row().state

    @property
    def topic(self) -> str:
        """The topic on which it is run."""
        return self._row().topic

    def get(self, timeout: float | None = None) -> R:
        """Wait for the end of the flow, and return what its function returned.

        Args:
            timeout: seconds to wait for it.

        Raises:
            ResultTimeout: it has not ended in time.
            FlowFailed, FlowCancelled: it has not ended well.
            DecodeError: it is not what the function's annotation says here.
            UnknownFlow: there is none.
        """
        wait = _Wait(timeout)
        while (row := self._row()).state not in ENDED:
            time.sleep(wait.next_pause_s(row))
        return self._outcome(row)

    async def aget(self, timeout: float | None = None) -> R:
        """Wait for the end of the flow from a coroutine; see :meth:`get`. It holds a thread only while it looks."""
        wait, pool = _Wait(timeout), self._app.pool
        while (row := self._known(await self._store.afind(self.id, pool))).state not in ENDED:
            await asyncio.sleep(wait.next_pause_s(row))
        return self._outcome(row)

    def _outcome(self, row: FlowRow) -> R:
        if row.state == CANCELLED:
            raise FlowCancelled(f"flow {self.id!r} was cancelled")
        if row.state == FAILED:
            assert row.failure is not None
            raise FlowFailed(self.id, row.failure.kind, row.failure.text)
        function: Any = self._app.registry.find_task(row.topic, row.name)
        value: R = decode_value(row.value)
        if isinstance(function, FlowFunction):
            args, _ = decode_value(row.args)
            value = function.build_value(value, row.version, args)
        return value

    @property
    def ready(self) -> bool:
        """True if the flow has ended."""
        return self.state in ENDED

    @property
    def failed(self) -> bool:
        """True if the flow has failed or was cancelled."""
        return self.state in (FAILED, CANCELLED)

    @property
    def results(self) -> list[CallResult]:
        """The states of the calls that the flow has made so far, in their order: of a group, those of all its parts."""
        row, found = self._row(), []
        for step in self._store.steps_of(row):
            if step.kind in (CALL, GATHER):
                ends = {end.number: end for end in self._store.ends_of(row, step)}
                found += [CallResult(step, number, ends.get(number)) for number in range(step.total)]
        return found

    @property
    def children(self) -> list[CallResult]:
        """Celery's word for :attr:`results`."""
        return self.results

    @property
    def completed_count(self) -> int:
        """The number of calls so far that have succeeded."""
        return sum(one.state == DONE for one in self.results)

    def values(self) -> Iterator[Any]:
        """Yield what the flow has emitted so far."""
        row, after = self._row(), 0
        while part := self._store.values_of(row, after, _VALUES):
            yield from (decode_value(value) for _, value, _ in part)
            after = part[-1][0]

    def emitted(self, after: int = 0) -> list[tuple[int, Any]]:
        """Return numbers and values of what the flow has emitted after a number, at most a hundred."""
        found = self._store.values_of(self._row(), after, _VALUES)
        return [(number, decode_value(value)) for number, value, _ in found]

    def cancel(self) -> bool:
        """Cancel the flow, and those that it has called; false if it has ended.

        A step that runs goes on to its end; nothing is run after it.
        """
        return self._store.cancel(self._row())

    def retry(self, from_step: int | str | None = None) -> bool:
        """Run the flow again that has failed or was cancelled, from where it ended.

        Args:
            from_step: number or name of the first step that runs again; see :func:`first_step`.

        Returns:
            false if it is no such flow, or its steps were undone.

        Raises:
            WrongArguments: it has no such step, or is to run from one although its steps were undone.
        """
        row = self._row()
        return self._store.retry(row, first_step(row.key, self._store.steps_of(row), from_step))

    def _row(self) -> FlowRow:
        return self._known(self._store.find(self.id))

    def _known(self, row: FlowRow | None) -> FlowRow:
        if row is None:
            raise UnknownFlow(f"there is no flow {self.id!r}")
        return row

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id}>"
