"""The function of a flow and a store of flows, as those who run flows use them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from emsworker.extending.apps import Ems, HandlerOptions, Task
from emsworker.extending.processes import ThreadPool
from emsworker.extending.publishing import OutboxTransaction
from emsworker.extending.values import Topic
from emsworker.flows.rows import CallEnd, FlowRow, Loaded, NewFlow, RunChange, SignalRow, StepRow


class FlowFunction(ABC):
    """The function of a flow; see :class:`emsworker.flows.task.FlowTask`.

    Attributes:
        flow_app: its app.
        version: that with which flows are started.
        options: of the handler; its priority is that of the flow's messages.
    """

    name: str
    topic: str
    group: str
    flow_app: Ems
    version: int
    options: HandlerOptions

    @abstractmethod
    def check_kept_by(self, store: FlowStore) -> None:
        """Check that a store may keep its flows, as that of a flow that calls it does."""

    @abstractmethod
    def body_of(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Any]:
        """Return the arguments of a call as they are kept, checked."""

    @abstractmethod
    def build_value(self, value: Any, version: int, args: Sequence[Any]) -> Any:
        """Return the value of a flow that has ended well, from plain JSON.

        Args:
            version, args: of the flow.
        """

    @abstractmethod
    def start(self, *args: Any, transaction: Any = None, **kwargs: Any) -> object:
        """Start a flow."""

    @abstractmethod
    def task_named(self, name: str) -> Task[..., Any]:
        """Return a task of the app."""


class FlowStore(Protocol):
    """A store of flows; see :class:`emsworker.flows.store.flow_store.MysqlFlowStore`."""

    @property
    def stream_id(self) -> str:
        """Identity of the stream that keeps the flows."""
        ...

    def topic(self, app: Ems, name: str) -> Topic:
        """Return a topic as the stream has it, which may be kept by another server."""
        ...

    def now(self) -> datetime:
        """Return the time by which the flows wait, in UTC."""
        ...

    def transaction(self, app: Ems) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction in the stream's database."""
        ...

    def end(self, flow: int, step: int, end: CallEnd) -> None:
        """Record the end of a call, once."""
        ...

    def start(self, transaction: Any, new: NewFlow, topic: Topic, owner: bytes) -> bool:
        """Store a flow, unless one with its id is there."""
        ...

    def debounce(self, transaction: Any, new: NewFlow, topic_id: int, owner: bytes) -> str:
        """Store the flow of a burst of starts, or change the one that is there; return its id."""
        ...

    def signal(self, transaction: Any, key: str, name: str, value: bytes) -> str | None:
        """Give a flow a signal, and wake it if it waits."""
        ...

    def begin(self, number: int, owner: bytes, after: int | None = None) -> Loaded | None:
        """Begin a run of a flow."""
        ...

    async def abegin(self, number: int, owner: bytes, after: int | None, pool: ThreadPool) -> Loaded | None:
        """Begin a run for a coroutine."""
        ...

    def checkpoint(self, flow: FlowRow, step: StepRow) -> None:
        """Record a step that has ended well."""
        ...

    async def acheckpoint(self, flow: FlowRow, step: StepRow, pool: ThreadPool) -> None:
        """Record a step for a coroutine."""
        ...

    def write(self, flow: FlowRow, change: RunChange) -> bool:
        """Write what a run has done."""
        ...

    async def awrite(self, flow: FlowRow, change: RunChange, pool: ThreadPool) -> None:
        """Write for a coroutine what its run has done."""
        ...

    def write_in(self, transaction: Any, flow: FlowRow, change: RunChange) -> None:
        """Write what a run has done, in a transaction that is open."""
        ...

    def signal_value(self, flow: FlowRow, signal: SignalRow) -> bytes:
        """Return the value of a signal that was too large to be loaded with the flow."""
        ...

    def ends_of(self, flow: FlowRow, step: StepRow) -> list[CallEnd]:
        """Return the ends of the calls of a step."""
        ...

    def find(self, key: str) -> FlowRow | None:
        """Return a flow by its id."""
        ...

    async def afind(self, key: str, pool: ThreadPool) -> FlowRow | None:
        """Do the same for a coroutine."""
        ...

    def steps_of(self, flow: FlowRow) -> Sequence[StepRow]:
        """Return the steps of a flow."""
        ...

    def values_of(self, flow: FlowRow, after: int, limit: int) -> list[tuple[int, bytes, datetime]]:
        """Return what a flow has emitted after a number."""
        ...

    def cancel(self, flow: FlowRow) -> bool:
        """Cancel a flow and those that it has called."""
        ...

    def retry(self, flow: FlowRow, step: int | None = None) -> bool:
        """Run a flow again that has failed or was cancelled."""
        ...
