"""Guards for effects that are to happen once, although the message that asks for them may be redelivered."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from emsworker.core.errors import ConfigError, InvalidName, Problem, Retry
from emsworker.core.ids import decode_key, encode_key
from emsworker.core.model import Entry
from emsworker.core.options import choice, refuse, refuse_unknown, seconds
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import undivided
from emsworker.store.cluster import once as store
from emsworker.store.cluster.once import Begun

if TYPE_CHECKING:
    from emsworker.app import Ems

KEEP_S = 7 * 86400.0
RUNNING_S = 60.0
WAIT_S = 2.0
_POLL_MIN_S, _POLL_MAX_S = 0.005, 0.1
_SPAN = seconds()


def once(transaction: Any, key: str | bytes, *, ttl_s: float = KEEP_S) -> bool:
    """Return whether a transactional handler uses this key for the first time; the answer is part of its transaction.

    Args:
        transaction: the handler's.
        key: of the effect, at most 255 bytes.
        ttl_s: seconds for which the key is remembered at least.

    Returns:
        true exactly once among all transactions that are committed.
    """
    refuse(_SPAN.problems("ttl_s", ttl_s))
    return store.do_in(transaction, _key(key), ttl_s)


class KeyBackend(Protocol):
    """A store of keys."""

    def begin(self, key: bytes, ttl_s: float, running_s: float) -> Begun:
        """Begin an effect, unless it is done, or another attempt runs it."""
        ...

    def finish(self, key: bytes, token: bytes, ttl_s: float) -> bool:
        """Mark the effect as done; return false if another attempt has taken over."""
        ...

    def cancel(self, key: bytes, token: bytes) -> None:
        """Release the key: the effect has not happened."""
        ...


class MysqlKeys:
    """Keys in the stream's database."""

    def __init__(self, app: Ems) -> None:
        self._database = app.database

    def begin(self, key: bytes, ttl_s: float, running_s: float) -> Begun:
        """Begin an effect; see :class:`KeyBackend`."""
        return self._database.call(lambda session: store.begin(session, key, ttl_s, running_s))

    def finish(self, key: bytes, token: bytes, ttl_s: float) -> bool:
        """Mark the effect as done; see :class:`KeyBackend`."""
        return self._database.call(lambda session: store.finish(session, key, token, ttl_s))

    def cancel(self, key: bytes, token: bytes) -> None:
        """Release the key; see :class:`KeyBackend`."""
        self._database.call(lambda session: store.cancel(session, key, token))


# The value is "done", or the token and the time (ms) until which its owner may run.
_BEGIN = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local value = redis.call('GET', KEYS[1])
local mine = ARGV[1] .. ' ' .. string.format('%d', ms + ARGV[3])
if not value then redis.call('SET', KEYS[1], mine, 'PX', ARGV[2]) return {'first', 0} end
if value == 'done' then return {'done', 0} end
local left = tonumber(string.match(value, ' (%d+)$')) - ms
if left > 0 then return {'busy', left} end
redis.call('SET', KEYS[1], mine, 'PX', ARGV[2])
return {'uncertain', 0}
"""
_FINISH = """
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], 'done', 'PX', ARGV[2])
return 1
"""
_CANCEL = """
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #ARGV[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class RedisKeys:
    """Keys in Redis, which lets them expire. They are as durable as that Redis is.

    Args:
        redis_url: the server.
        stream_id: the identity of the stream, part of every key.
    """

    def __init__(self, redis_url: str, stream_id: str) -> None:
        with undivided:
            from emsworker.publish.redis_connection import connect

        client = connect(redis_url)
        self._prefix = f"ems:{stream_id}:once:".encode()
        self._begin: Any = client.register_script(_BEGIN)
        self._finish: Any = client.register_script(_FINISH)
        self._cancel: Any = client.register_script(_CANCEL)

    def begin(self, key: bytes, ttl_s: float, running_s: float) -> Begun:
        """Begin an effect; see :class:`KeyBackend`."""
        token = os.urandom(16)
        keep_ms = round(max(ttl_s, running_s) * 1000)
        word, left_ms = self._begin(keys=[self._prefix + key], args=[token.hex(), keep_ms, round(running_s * 1000)])
        return Begun(Entry(word.decode()), token, left_ms / 1000)

    def finish(self, key: bytes, token: bytes, ttl_s: float) -> bool:
        """Mark the effect as done; see :class:`KeyBackend`."""
        return bool(self._finish(keys=[self._prefix + key], args=[token.hex(), round(ttl_s * 1000)]))

    def cancel(self, key: bytes, token: bytes) -> None:
        """Release the key; see :class:`KeyBackend`."""
        self._cancel(keys=[self._prefix + key], args=[token.hex()])


class Once:
    """A guard around an effect outside of the database: ``with app.once(key) as first: ...``.

    It is true if the effect is to be done now. If the block ends normally, the key is done; if it raises, the key is
    released, so that the next attempt does the effect. An attempt that dies in between leaves the key begun: it cannot
    be known whether the effect has happened, and ``uncertain`` is true for the next attempt after ``running_s``.

    Args:
        backend: the store of keys.
        key: of the effect.
        ttl_s: seconds for which a key that is done is remembered.
        running_s: seconds that the block may take.
        wait_s: seconds to wait for another attempt that runs the block.
        if_uncertain: after an attempt that died: ``repeat`` (at least once) or ``skip`` (at most once).
    """

    def __init__(
        self,
        backend: KeyBackend,
        key: str | bytes,
        *,
        ttl_s: float = KEEP_S,
        running_s: float = RUNNING_S,
        wait_s: float = WAIT_S,
        if_uncertain: str = "repeat",
    ) -> None:
        spans = {"ttl_s": ttl_s, "running_s": running_s, "wait_s": wait_s}
        problems = [problem for name, value in spans.items() for problem in _SPAN.problems(name, value)]
        refuse(problems + choice(("repeat", "skip")).problems("if_uncertain", if_uncertain))
        self._backend = backend
        self._key = _key(key)
        self._ttl_s = ttl_s
        self._running_s = running_s
        self._wait_s = wait_s
        self._skip = if_uncertain == "skip"
        self._begun = Begun(Entry.DONE, b"")

    @property
    def uncertain(self) -> bool:
        """True if an earlier attempt died inside the block: ask the other side, if it can be asked."""
        return self._begun.entry is Entry.UNCERTAIN

    def __bool__(self) -> bool:
        return self._begun.entry is Entry.FIRST or (self.uncertain and not self._skip)

    def __enter__(self) -> Once:
        """Begin the effect.

        Raises:
            Retry: another attempt runs and takes long; in a handler, the message is retried when its time is over.
        """
        deadline, pause = ticks() + self._wait_s, _POLL_MIN_S
        self._begun = self._backend.begin(self._key, self._ttl_s, self._running_s)
        while self._begun.entry is Entry.BUSY and ticks() < deadline:
            time.sleep(min(pause, _POLL_MAX_S))
            pause *= 2
            self._begun = self._backend.begin(self._key, self._ttl_s, self._running_s)
        if self._begun.entry is Entry.BUSY:
            raise Retry(
                f"once {decode_key(self._key)!r}: another attempt runs", countdown=max(0.05, self._begun.left_s)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun.entry is Entry.DONE:
            return
        if error is None:
            self._backend.finish(self._key, self._begun.token, self._ttl_s)
        else:
            self._backend.cancel(self._key, self._begun.token)


def guard(app: Ems, key: str | bytes, backend: str, **options: Any) -> Once:
    """Make the guard of :meth:`Ems.once`.

    Args:
        options: of :class:`Once`.

    Raises:
        ConfigError: the backend is unknown, there is no Redis, or an option is unknown or wrong.
        InvalidName: the key is empty, too long, or neither text nor bytes.
    """
    refuse_unknown("once()", options, ("ttl_s", "running_s", "wait_s", "if_uncertain"))
    keys: KeyBackend
    if app.stand_in is not None and backend in ("mysql", "redis"):
        keys = app.stand_in.once_keys
    elif backend == "mysql":
        keys = MysqlKeys(app)
    elif backend == "redis" and app.redis_url is not None:
        keys = app.once_keys
    else:
        fix = "must be mysql, or redis with the setting redis_url"
        raise ConfigError([Problem("backend", repr(backend), fix)])
    return Once(keys, key, **options)


def _key(key: str | bytes) -> bytes:
    """Return the stored form of a key; an empty one would be shared by all effects whose key was left out.

    Raises:
        InvalidName: the key is not valid.
    """
    raw = encode_key("key of once", key)
    if not raw:
        raise InvalidName(f"key of once {key!r} is empty; name the effect, like the id of its message")
    return raw
