"""Idempotency keys: an effect is begun, and then done or released."""

from __future__ import annotations

import os
from typing import Any, Protocol

from emsworker.core.model import Begun, OnceState
from emsworker.core.process.forks import fork_blocked
from emsworker.store.cluster import once as store
from emsworker.store.engine.database import Database


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


def take_in(transaction: Any, key: bytes, ttl_s: float) -> bool:
    """Return whether a handler's transaction takes a key for the first time; the answer is part of it."""
    return store.do_in(transaction, key, ttl_s)


class MysqlKeys:
    """Keys in the stream's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        with fork_blocked:
            from emsworker.publish.redis_connection import connect, unavailable

        self._unavailable = unavailable
        client = connect(redis_url)
        self._prefix = f"ems:{stream_id}:once:".encode()
        self._begin: Any = client.register_script(_BEGIN)
        self._finish: Any = client.register_script(_FINISH)
        self._cancel: Any = client.register_script(_CANCEL)

    def begin(self, key: bytes, ttl_s: float, running_s: float) -> Begun:
        """Begin an effect; see :class:`KeyBackend`."""
        token = os.urandom(16)
        keep_ms = round(max(ttl_s, running_s) * 1000)
        args = [token.hex(), keep_ms, round(running_s * 1000)]
        with self._unavailable("keys"):
            word, left_ms = self._begin(keys=[self._prefix + key], args=args)
        return Begun(OnceState(word.decode()), token, left_ms / 1000)

    def finish(self, key: bytes, token: bytes, ttl_s: float) -> bool:
        """Mark the effect as done; see :class:`KeyBackend`."""
        with self._unavailable("keys"):
            return bool(self._finish(keys=[self._prefix + key], args=[token.hex(), round(ttl_s * 1000)]))

    def cancel(self, key: bytes, token: bytes) -> None:
        """Release the key; see :class:`KeyBackend`."""
        with self._unavailable("keys"):
            self._cancel(keys=[self._prefix + key], args=[token.hex()])
