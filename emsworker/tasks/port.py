"""The app as its tasks see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol, Unpack, overload

from emsworker.core.config import Settings
from emsworker.core.model import R, Receipt
from emsworker.core.process.threads import ThreadPool
from emsworker.publish.outgoing import SendOptions
from emsworker.publish.transaction import OutboxTransaction
from emsworker.tasks.calls import CallOptions
from emsworker.tasks.idempotency import Once
from emsworker.tasks.publisher import Publisher
from emsworker.tasks.results import AsyncResult


class App(Protocol):
    """The app of a task: what tasks, and handlers by way of ``self.app``, use of it."""

    name: str
    settings: Settings
    publisher: Publisher

    @property
    def pool(self) -> ThreadPool:
        """The threads on which coroutines send."""
        ...

    def send(self, topic: str, body: Any, *, transaction: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send one message."""
        ...

    def send_many(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[SendOptions]
    ) -> list[Receipt]:
        """Send many messages."""
        ...

    async def asend(self, topic: str, body: Any, *, transaction: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send one message from a coroutine."""
        ...

    async def asend_many(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[SendOptions]
    ) -> list[Receipt]:
        """Send many messages from a coroutine."""
        ...

    def send_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Receipt[Any]:
        """Send a call of a task by its name."""
        ...

    async def asend_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Receipt[Any]:
        """Send a call of a task by its name, from a coroutine."""
        ...

    def transaction(self) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction of SQL and messages."""
        ...

    def cancel(self, message: str | Receipt, topic: str | None = None) -> bool:
        """Cancel a message; see :meth:`Ems.cancel`."""
        ...

    @overload
    def result(self, message: Receipt[R], *, group: str | None = None) -> AsyncResult[R]: ...
    @overload
    def result(self, message: str, *, group: str | None = None) -> AsyncResult: ...
    def result(self, message: Receipt[Any] | str, *, group: str | None = None) -> AsyncResult[Any]:
        """Return the result of a call."""
        ...

    def once(self, key: str | bytes, *, backend: str = "mysql", **options: Any) -> Once:
        """Return a guard around an effect."""
        ...

    def server_time(self, when: float | datetime) -> datetime:
        """Return a time, or a number of seconds from the server's now, as a time in UTC."""
        ...
