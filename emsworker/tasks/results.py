"""Results of tasks, fetched singly or many by one query."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, overload

from emsworker.core.codec import Decoder
from emsworker.core.counted import counted, plural
from emsworker.core.errors import ConfigError, DecodeError, Problem, ResultTimeout, TaskFailed
from emsworker.core.ids import parse_uid, uid_text
from emsworker.core.model import Receipt
from emsworker.core.options import is_number
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import undivided
from emsworker.core.run import Progress
from emsworker.store.groups import reports
from emsworker.store.groups import results as store
from emsworker.store.groups.results import ResultRow

if TYPE_CHECKING:
    from emsworker.app import Ems

PENDING, DONE, FAILED = "pending", "done", "failed"
_POLL_MIN_S, _POLL_MAX_S = 0.005, 0.2
_JSON = Decoder(("json",))


Finder = Callable[[Sequence[bytes]], dict[bytes, ResultRow]]
ProgressFinder = Callable[[Sequence[bytes]], dict[bytes, Progress]]


class ResultBackend(Protocol):
    """A store of results."""

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist, by uid."""
        ...

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results."""
        ...


class MysqlResults:
    """Reads the table that workers write in the transaction of their acked offset."""

    def __init__(self, app: Ems, topics: Iterable[str], group: str | None) -> None:
        self._app, self._topics, self._group = app, sorted(set(topics)), group

    def _topic_ids(self) -> list[int]:
        return [self._app.catalog.topic(name).id for name in self._topics]

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist; see :class:`ResultBackend`."""
        topic_ids = self._topic_ids()
        return self._app.database.call(lambda session: store.find(session, topic_ids, uids, self._group))

    def find_buried(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the dead letters among them: a message whose process was killed has no other result."""
        topic_ids = self._topic_ids()
        return self._app.database.call(lambda session: store.find_buried(session, topic_ids, uids, self._group))

    def find_progress(self, uids: Sequence[bytes]) -> dict[bytes, Progress]:
        """Return the progress of those that run."""
        topic_ids = self._topic_ids()
        return self._app.database.call(lambda session: reports.find(session, topic_ids, uids, self._group))

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results; see :class:`ResultBackend`."""
        topic_ids = self._topic_ids()
        self._app.database.call(lambda session: store.forget(session, topic_ids, uids))


class RedisResults:
    """Results as Redis keys that expire.

    Args:
        redis_url: the server.
        stream_id: the identity of the stream, part of every key.
    """

    def __init__(self, redis_url: str, stream_id: str) -> None:
        with undivided:
            from emsworker.publish.redis_connection import connect

        self._redis = connect(redis_url)
        self._prefix = f"ems:{stream_id}:result:"

    def _key(self, uid: bytes) -> str:
        return self._prefix + uid.hex()

    def put(self, row: ResultRow) -> None:
        """Store one result until it expires.

        Raises:
            redis.RedisError: Redis is down.
        """
        fields = asdict(row) | {"uid": None, "body": None if row.body is None else row.body.decode()}
        self._redis.set(self._key(row.uid), json.dumps(fields), px=max(1, round(row.ttl_s * 1000)))

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist; see :class:`ResultBackend`.

        Raises:
            DecodeError: a value there is not a result.
        """
        found = {}
        for uid, text in zip(uids, self._redis.mget([self._key(uid) for uid in uids]) if uids else (), strict=True):
            if text is not None:
                found[uid] = read_row(uid, text)
        return found

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results; see :class:`ResultBackend`."""
        if uids:
            self._redis.delete(*[self._key(uid) for uid in uids])


def read_row(uid: bytes, text: bytes | str) -> ResultRow:
    """Decode a result that :class:`RedisResults` has stored.

    Raises:
        DecodeError: it is not a result.
    """
    try:
        fields = json.loads(text)
        said = {name: fields[name] for name in ("error_type", "error", "traceback")}
        if not all(value is None or isinstance(value, str) for value in said.values()):
            raise TypeError
        body = None if fields["body"] is None else fields["body"].encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DecodeError(f"the result of {uid_text(uid)} in Redis is damaged; `forget` deletes it") from None
    return ResultRow(uid, body, **said)


def uids_of(messages: Iterable[Receipt | str]) -> list[bytes]:
    """The uids of calls that are named by receipts or ids."""
    return [parse_uid(message.id if isinstance(message, Receipt) else message) for message in messages]


class ResultSet(Sequence["AsyncResult"]):
    """The results of several calls, in the order in which they were asked for.

    Args:
        uids: of the calls.
        backend: the store of results.
        find_buried: finds those that ended as dead letters.
        patience_s: seconds to wait at most, whatever a caller says; ``None`` for no limit.
        find_progress: finds the progress of those that run.
    """

    def __init__(
        self,
        uids: Sequence[bytes],
        backend: ResultBackend,
        find_buried: Finder,
        patience_s: float | None = None,
        find_progress: ProgressFinder = lambda uids: {},
    ) -> None:
        self.uids = list(uids)
        self._backend = backend
        self._find_buried = find_buried
        self._patience_s = patience_s
        self._find_progress = find_progress
        self._known: dict[bytes, ResultRow] = {}

    @classmethod
    def of(cls, app: Ems, messages: Iterable[Receipt | str], group: str | None) -> ResultSet:
        """The results of calls of an app; an id alone is looked for in all topics that the app has tasks on."""
        messages = list(messages)
        if app.stand_in is not None:
            results: ResultSet = app.stand_in.results(messages)
            return results
        topics = {message.topic for message in messages if isinstance(message, Receipt)}
        if not all(isinstance(message, Receipt) for message in messages):
            topics |= {app.settings.topic, *(route.topic for route in app.routes.values())}
        mysql = MysqlResults(app, topics, group)
        backend: ResultBackend = mysql
        if app.settings.result_backend == "redis":
            assert app.settings.redis_url is not None, "checked by Settings"
            backend = RedisResults(app.settings.redis_url, app.stream_id)
        return cls(uids_of(messages), backend, mysql.find_buried, find_progress=mysql.find_progress)

    def __len__(self) -> int:
        return len(self.uids)

    def __iter__(self) -> Iterator[AsyncResult]:
        return (AsyncResult(self._part([uid])) for uid in self.uids)

    @overload
    def __getitem__(self, number: int) -> AsyncResult: ...
    @overload
    def __getitem__(self, number: slice) -> ResultSet: ...
    def __getitem__(self, number: int | slice) -> AsyncResult | ResultSet:
        if isinstance(number, slice):
            return self._part(self.uids[number])
        return AsyncResult(self._part([self.uids[number]]))

    def _part(self, uids: Sequence[bytes]) -> ResultSet:
        part = ResultSet(uids, self._backend, self._find_buried, self._patience_s, self._find_progress)
        part._known = self._known  # shared: a result that one of them has found is known to all
        return part

    def look(self) -> None:
        """Ask once, by one query, for the results that are not known yet."""
        missing = [uid for uid in dict.fromkeys(self.uids) if uid not in self._known]
        if not missing:
            return
        self._known |= self._backend.find(missing)
        missing = [uid for uid in missing if uid not in self._known]
        if missing and (buried := self._find_buried(missing)):
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
        if timeout is not None and not is_number(timeout):
            raise ConfigError([Problem("timeout", repr(timeout), "must be a number of seconds, or None")])
        if self._patience_s is not None:
            timeout = self._patience_s if timeout is None else min(timeout, self._patience_s)
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
            time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - ticks())))
            pause = min(pause * 1.5, _POLL_MAX_S)

    def get(self, timeout: float | None = None, *, raises: bool = True) -> list[Any]:
        """All values, in order.

        Args:
            timeout: seconds, or ``None`` for ever.
            raises: raise the first failure; otherwise it is in the list as a TaskFailed.

        Raises:
            TaskFailed: a task has failed.
            ResultTimeout: not all have ended in time.
        """
        self.wait(timeout)
        values = [_value(self._known[uid]) for uid in self.uids]
        failed = next((value for value in values if isinstance(value, TaskFailed)), None)
        if raises and failed is not None:
            raise failed
        return values

    @property
    def progress(self) -> list[Progress | None]:
        """The progress of each, by one query; ``None`` for those that do not run, or have reported none."""
        found = self._find_progress(self.uids)
        return [found.get(uid) for uid in self.uids]

    def forget(self) -> None:
        """Delete them before they expire."""
        self._backend.forget(self.uids)
        for uid in self.uids:
            self._known.pop(uid, None)


class AsyncResult:
    """The result of one call, which may not be there yet.

    Args:
        alone: a set that holds only this result.
    """

    def __init__(self, alone: ResultSet) -> None:
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
        """``pending`` (not run yet, waiting for a retry, or unknown), ``done`` or ``failed`` (for good)."""
        row = self._look()
        if row is None:
            return PENDING
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
    def traceback(self) -> str | None:
        """The text of its traceback, if it has failed."""
        row = self._look()
        return row.traceback if row is not None else None

    def get(self, timeout: float | None = None) -> Any:
        """Return the task's return value.

        Args:
            timeout: seconds to wait, or ``None`` for ever.

        Raises:
            TaskFailed: it has failed, with the type, message and traceback of its exception.
            ResultTimeout: it has not ended in time.
        """
        return self._alone.get(timeout)[0]

    def forget(self) -> None:
        """Delete it before it expires."""
        self._alone.forget()

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"


def _value(row: ResultRow) -> Any:
    if row.error_type is not None:
        return TaskFailed(uid_text(row.uid), row.error_type, row.error or "", row.traceback or "")
    return _JSON.decode(row.body or b"null", {})
