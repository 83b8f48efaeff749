"""Results of tasks, fetched singly or many by one query."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Literal, overload

from emsworker.broker.port import Broker
from emsworker.broker.results import ResultBackend
from emsworker.core.codec import Decoder
from emsworker.core.counted import counted, plural
from emsworker.core.errors import Cancelled, ConfigError, Problem, ResultTimeout, TaskFailed
from emsworker.core.flush import ResultRow
from emsworker.core.ids import parse_uid, uid_text
from emsworker.core.model import R, Receipt
from emsworker.core.options import is_number
from emsworker.core.process.clock import ticks
from emsworker.core.process.threads import ThreadPool
from emsworker.core.run import Progress

PENDING, DONE, FAILED, CANCELLED = "pending", "done", "failed", "cancelled"
_POLL_MIN_S, _POLL_MAX_S = 0.005, 0.2
_JSON = Decoder(("json",))


@dataclass(frozen=True, slots=True)
class CallReceipt(Receipt[R]):
    """Receipt of a call whose result is built by an annotation.

    Args:
        task: topic, name and group of the task.
    """

    task: tuple[str, str, str] = ("", "", "")


Build = Callable[[Any], Any]
_NONE: Mapping[bytes, Build] = MappingProxyType({})


def uids_of(messages: Iterable[Receipt[Any] | str]) -> list[bytes]:
    """The uids of calls that are named by receipts or ids."""
    return [parse_uid(message.id if isinstance(message, Receipt) else message) for message in messages]


class ResultSet(Sequence["AsyncResult[R]"], Generic[R]):
    """The results of several calls, in the order in which they were asked for.

    For a type checker ``R`` is what the task returns. Values have been JSON on their way; those that JSON does not have
    are built again by the task's annotation, if the receipt of the call is given.

    Args:
        uids: of the calls.
        backend: where they are.
        pool: the threads on which coroutines look.
        builds: makes the values of JSON, where they are built.
    """

    def __init__(
        self, uids: Sequence[bytes], backend: ResultBackend, pool: ThreadPool, builds: Mapping[bytes, Build] = _NONE
    ) -> None:
        self.uids = list(uids)
        self._backend = backend
        self._pool = pool
        self._builds = builds
        self._known: dict[bytes, ResultRow] = {}

    def __len__(self) -> int:
        return len(self.uids)

    def __iter__(self) -> Iterator[AsyncResult[R]]:
        return (AsyncResult(self._part([uid])) for uid in self.uids)

    @overload
    def __getitem__(self, number: int) -> AsyncResult[R]: ...
    @overload
    def __getitem__(self, number: slice) -> ResultSet[R]: ...
    def __getitem__(self, number: int | slice) -> AsyncResult[R] | ResultSet[R]:
        if isinstance(number, slice):
            return self._part(self.uids[number])
        return AsyncResult(self._part([self.uids[number]]))

    def _part(self, uids: Sequence[bytes]) -> ResultSet[R]:
        part: ResultSet[R] = ResultSet(uids, self._backend, self._pool, self._builds)
        part._known = self._known  # shared: a result that one of them has found is known to all
        return part

    def look(self) -> None:
        """Ask once, by one query, for the results that are not known yet."""
        missing = [uid for uid in dict.fromkeys(self.uids) if uid not in self._known]
        if not missing:
            return
        self._known |= self._backend.find(missing)
        missing = [uid for uid in missing if uid not in self._known]
        if missing and (buried := self._backend.find_buried(missing)):
            # A message that ended between the two queries has a result too, which says more.
            self._known |= buried | self._backend.find(list(buried))

    def row(self, uid: bytes) -> ResultRow | None:
        """Return the result of one of them, if it is known."""
        return self._known.get(uid)

    @property
    def ready(self) -> bool:
        """True if all have ended."""
        self.look()
        return all(uid in self._known for uid in self.uids)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all have ended.

        Args:
            timeout: seconds, or ``None`` for ever.

        Raises:
            ResultTimeout: not all have ended in time.
        """
        for pause in self._pauses(timeout):
            time.sleep(pause)

    def _pauses(self, timeout: float | None) -> Iterator[float]:
        """Look until all have ended, and yield the seconds to wait in between."""
        if timeout is not None and not is_number(timeout):
            raise ConfigError([Problem("timeout", repr(timeout), "must be a number of seconds, or None")])
        patience_s = self._backend.patience_s
        if patience_s is not None:
            timeout = patience_s if timeout is None else min(timeout, patience_s)
        deadline = None if timeout is None else ticks() + timeout
        pause = _POLL_MIN_S
        while not self.ready:
            if deadline is not None and ticks() >= deadline:
                missing = [uid for uid in self.uids if uid not in self._known]
                raise ResultTimeout(
                    f"{len(missing)} of {counted(len(self), 'result')} {plural(len(missing), 'was')} not there after "
                    f"{timeout:g} s, the first of {uid_text(missing[0])}; does its task say result=True, and does a "
                    "worker run?"
                )
            yield pause if deadline is None else max(0.0, min(pause, deadline - ticks()))
            pause = min(pause * 1.5, _POLL_MAX_S)

    @overload
    def get(self, timeout: float | None = None, *, raises: Literal[True] = True) -> list[R]: ...
    @overload
    def get(self, timeout: float | None = None, *, raises: bool) -> list[R | TaskFailed | Cancelled]: ...
    def get(self, timeout: float | None = None, *, raises: bool = True) -> Any:
        """All values, in order.

        Args:
            timeout: seconds, or ``None`` for ever.
            raises: raise the first failure; otherwise it is in the list as a TaskFailed, or as Cancelled.

        Raises:
            TaskFailed: a task has failed.
            Cancelled: a call was cancelled.
            ResultTimeout: not all have ended in time.
        """
        self.wait(timeout)
        return self._values(raises)

    @overload
    async def aget(self, timeout: float | None = None, *, raises: Literal[True] = True) -> list[R]: ...
    @overload
    async def aget(self, timeout: float | None = None, *, raises: bool) -> list[R | TaskFailed | Cancelled]: ...
    async def aget(self, timeout: float | None = None, *, raises: bool = True) -> Any:
        """All values, in order, for coroutines; see :meth:`get`. It holds a thread only while it looks."""
        import asyncio  # only a program with coroutines has loaded it

        pauses = self._pauses(timeout)
        while (pause := await self._pool.run(partial(next, pauses, None))) is not None:
            await asyncio.sleep(pause)
        return self._values(raises)

    def _values(self, raises: bool) -> list[Any]:
        values = [_value(self._known[uid], self._builds.get(uid)) for uid in self.uids]
        failed = next((value for value in values if isinstance(value, (TaskFailed, Cancelled))), None)
        if raises and failed is not None:
            raise failed
        return values

    @property
    def progress(self) -> list[Progress | None]:
        """The progress of each, by one query; ``None`` for those that do not run, or have reported none."""
        found = self._backend.find_progress(self.uids)
        return [found.get(uid) for uid in self.uids]

    def forget(self) -> None:
        """Delete them before they expire."""
        self._backend.forget(self.uids)
        for uid in self.uids:
            self._known.pop(uid, None)


class AsyncResult(Generic[R]):
    """The result of one call, which may not be there yet; for a type checker, of a task that returns ``R``.

    Args:
        alone: a set that holds only this result.
    """

    def __init__(self, alone: ResultSet[R]) -> None:
        self._alone = alone

    @property
    def id(self) -> str:
        """The id of the call."""
        return uid_text(self._alone.uids[0])

    def _look(self) -> ResultRow | None:
        self._alone.look()
        return self._alone.row(self._alone.uids[0])

    @property
    def status(self) -> str:
        """``pending`` (not run yet, waiting for a retry, or unknown), ``done``, ``failed`` (for good) or ``cancelled``.

        Nothing of a call that is ``cancelled`` runs any more.
        """
        row = self._look()
        if row is None:
            return PENDING
        if row.cancelled:
            return CANCELLED
        return DONE if row.error_type is None else FAILED

    @property
    def progress(self) -> Progress | None:
        """The progress of the call, if it runs and has reported any; also of a task that keeps no result."""
        return self._alone.progress[0]

    @property
    def failed(self) -> bool:
        """True if it has failed for good."""
        return self.status == FAILED

    @property
    def cancelled(self) -> bool:
        """True if it was cancelled."""
        return self.status == CANCELLED

    @property
    def traceback(self) -> str | None:
        """The text of its traceback, if it has failed."""
        row = self._look()
        return row.traceback if row is not None else None

    def get(self, timeout: float | None = None) -> R:
        """Return the task's return value.

        Args:
            timeout: seconds to wait, or ``None`` for ever.

        Raises:
            TaskFailed: it has failed, with the type, message and traceback of its exception.
            Cancelled: it was cancelled.
            ResultTimeout: it has not ended in time.
            DecodeError: it is not what the task's annotation says here.
            StoreUnavailable: the server that keeps results does not answer.
        """
        return self._alone.get(timeout)[0]

    async def aget(self, timeout: float | None = None) -> R:
        """Return the task's return value, for coroutines; see :meth:`get`. It holds a thread only while it looks."""
        return (await self._alone.aget(timeout))[0]

    def forget(self) -> None:
        """Delete it before it expires."""
        self._alone.forget()

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"


def _value(row: ResultRow, build: Build | None) -> Any:
    if row.cancelled:
        return Cancelled(uid_text(row.uid))
    if row.error_type is not None:
        return TaskFailed(uid_text(row.uid), row.error_type, row.error or "", row.traceback or "")
    value = _JSON.decode(row.body or b"null", {})
    return value if build is None else build(value)


def results_of(
    broker: Broker,
    messages: Sequence[Receipt[Any] | str],
    topics: Collection[str],
    group: str | None,
    find_task: Callable[[str, str, str], Any],
) -> ResultSet[Any]:
    """Return the results of calls of an app; see :meth:`Ems.results`.

    Args:
        topics: where calls are looked for that are named by an id alone.
        find_task: returns a task that the app has, by its topic, name and group.
    """
    named = {message.topic for message in messages if isinstance(message, Receipt)}
    if not all(isinstance(message, Receipt) for message in messages):
        named |= {*topics}
    uids = uids_of(messages)
    builds = {
        uid: task.build_result
        for uid, message in zip(uids, messages, strict=True)
        if isinstance(message, CallReceipt) and (task := find_task(*message.task)) is not None
    }
    return ResultSet(uids, broker.results(sorted(named), group), broker.pool, builds)
