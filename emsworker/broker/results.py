"""The broker's results of tasks: read, waited for and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Protocol

from emsworker.core.errors import DecodeError
from emsworker.core.flush import ResultRow
from emsworker.core.ids import uid_text
from emsworker.core.large import result_beside
from emsworker.core.process.forks import fork_blocked
from emsworker.core.run import Progress
from emsworker.store.engine.database import Database
from emsworker.store.groups import reports
from emsworker.store.groups import results as store
from emsworker.store.stream import large


class ResultBackend(Protocol):
    """The results of calls.

    Attributes:
        patience_s: seconds to wait for one at most, whatever a caller says; ``None`` for no limit.
    """

    patience_s: float | None

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist, by uid."""
        ...

    def load(self, row: ResultRow) -> bytes:
        """Return the value of a result as JSON, whole.

        Raises:
            DecodeError: it was deleted since it was found.
        """
        ...

    def find_buried(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return those that have ended without a result: dead letters of killed processes, and cancelled messages."""
        ...

    def find_progress(self, uids: Sequence[bytes]) -> dict[bytes, Progress]:
        """Return the progress of those that run."""
        ...

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results."""
        ...


class MysqlResults:
    """Reads the table that workers write in the transaction of their acked offset.

    Args:
        database: the stream.
        topic_ids: returns the ids of the topics that the calls were sent to.
        group: the group whose results they are; ``None`` for the first to end.
    """

    patience_s: float | None = None

    def __init__(self, database: Database, topic_ids: Callable[[], Sequence[int]], group: str | None) -> None:
        self._database, self._topic_ids, self._group = database, topic_ids, group

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist, by uid."""
        topic_ids = self._topic_ids()
        return self._database.call(lambda session: store.find(session, topic_ids, uids, self._group))

    def load(self, row: ResultRow) -> bytes:
        """Return the value of a result as JSON; one that is kept beside its row is read now."""
        beside = result_beside(row.body)
        if beside is None:
            return row.body or b"null"
        return self._database.call(lambda session: large.read_result(session, beside))

    def find_buried(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the dead letters among them, and those that were cancelled."""
        topic_ids = self._topic_ids()
        return self._database.call(lambda session: store.find_buried(session, topic_ids, uids, self._group))

    def find_progress(self, uids: Sequence[bytes]) -> dict[bytes, Progress]:
        """Return the progress of those that run."""
        topic_ids = self._topic_ids()
        return self._database.call(lambda session: reports.find(session, topic_ids, uids, self._group))

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results."""
        topic_ids = self._topic_ids()
        self._database.call(lambda session: store.forget(session, topic_ids, uids))


class RedisResults:
    """Results as Redis keys that expire.

    Args:
        redis_url: the server.
        stream_id: the identity of the stream, part of every key.
    """

    def __init__(self, redis_url: str, stream_id: str) -> None:
        with fork_blocked:
            from emsworker.publish.redis_connection import connect, unavailable

        self._redis, self._unavailable = connect(redis_url), unavailable
        self._prefix = f"ems:{stream_id}:result:"

    def _key(self, uid: bytes) -> str:
        return self._prefix + uid.hex()

    def put(self, row: ResultRow) -> None:
        """Store one result until it expires.

        Raises:
            StoreUnavailable: Redis is down, or does not answer.
        """
        fields = asdict(row) | {"uid": None, "body": None if row.body is None else row.body.decode()}
        with self._unavailable("results"):
            self._redis.set(self._key(row.uid), json.dumps(fields), px=max(1, round(row.ttl_s * 1000)))

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist, by uid.

        Raises:
            DecodeError: a value there is not a result.
            StoreUnavailable: Redis is down, or does not answer.
        """
        with self._unavailable("results"):
            texts = self._redis.mget([self._key(uid) for uid in uids]) if uids else ()
        return {uid: read_row(uid, text) for uid, text in zip(uids, texts, strict=True) if text is not None}

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results."""
        with self._unavailable("results"):
            if uids:
                self._redis.delete(*[self._key(uid) for uid in uids])


class ResultsInRedis(MysqlResults):
    """Results in Redis; progress and dead letters are in MySQL.

    Args:
        redis: the results.
        database, topic_ids, group: see :class:`MysqlResults`.
    """

    def __init__(
        self, redis: RedisResults, database: Database, topic_ids: Callable[[], Sequence[int]], group: str | None
    ) -> None:
        super().__init__(database, topic_ids, group)
        self._redis = redis

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist, by uid."""
        return self._redis.find(uids)

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results."""
        self._redis.forget(uids)


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
        cancelled = fields["cancelled"] is True
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DecodeError(f"the result of {uid_text(uid)} in Redis is damaged; `forget` deletes it") from None
    return ResultRow(uid, body, **said, cancelled=cancelled)
