"""A flow from outside: its state, its result, and what it emits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from emsworker.extending.apps import Ems
from emsworker.extending.errors import ResultTimeout
from emsworker.extending.processes import ticks
from emsworker.flows.errors import FlowCancelled, FlowFailed, UnknownFlow
from emsworker.flows.port import FlowStore
from emsworker.flows.rows import CANCELLED, ENDED, FAILED, FlowRow, decode_value

R = TypeVar("R")
_POLL_MIN_S, _POLL_MAX_S = 0.01, 0.5
_VALUES = 100


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

    def get(self, timeout: float | None = None) -> R:
        """Wait for the end of the flow, and return what its function returned.

        Args:
            timeout: seconds to wait for it.

        Raises:
            ResultTimeout: it has not ended in time.
            FlowFailed, FlowCancelled: it has not ended well.
            UnknownFlow: there is none.
        """
        until = None if timeout is None else ticks() + timeout
        pause_s = _POLL_MIN_S
        while (row := self._row()).state not in ENDED:
            if until is not None and ticks() + pause_s > until:
                raise ResultTimeout(f"flow {self.id!r} has not ended within {timeout:g} s; it is {row.state}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _POLL_MAX_S)
        return self._outcome(row)

    async def aget(self, timeout: float | None = None) -> R:
        """Wait for the end of the flow from a coroutine; see :meth:`get`."""
        return await self._app.pool.run(lambda: self.get(timeout))

    def _outcome(self, row: FlowRow) -> R:
        if row.state == CANCELLED:
            raise FlowCancelled(f"flow {self.id!r} was cancelled")
        if row.state == FAILED:
            assert row.failure is not None
            raise FlowFailed(self.id, row.failure.kind, row.failure.text)
        value: R = decode_value(row.value)
        return value

    def values(self) -> Iterator[Any]:
        """Yield what the flow has emitted so far."""
        row, after = self._row(), 0
        while part := self._store.values_of(row, after, _VALUES):
            yield from (decode_value(value) for _, value, _ in part)
            after = part[-1][0]

    def cancel(self) -> bool:
        """Cancel the flow, and those that it has called; false if it has ended.

        A step that runs goes on to its end; nothing is run after it.
        """
        return self._store.cancel(self._row())

    def retry(self) -> bool:
        """Run the flow again that has failed or was cancelled, from where it ended.

        Returns:
            false if it is no such flow, or its steps were undone: its checkpoints no longer hold, so start another.
        """
        return self._store.retry(self._row())

    def _row(self) -> FlowRow:
        row = self._store.find(self.id)
        if row is None:
            raise UnknownFlow(f"there is no flow {self.id!r}")
        return row

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id}>"
