"""Offsets from a Redis counter, so that publishers of one partition need not wait for each other's commits.

Redis is not trusted: a missing counter is seeded from MySQL (never from 0), an offset that is taken, below the log
start offset or far above the end makes the publishing transaction fail and the counter is set right, and while Redis is
down MySQL's own counter takes over. If a producer dies after an allocation, it leaves a hole, which readers close with
tombstones.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Self

import redis

from emsworker.core.config import Settings
from emsworker.publish.redis_connection import LeftAlone, RedisConnection
from emsworker.store.engine.session import Session
from emsworker.store.stream.messages import FARTHEST, Placement, note_end

log = logging.getLogger(__name__)


class _Script:
    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


# The counter holds the next free offset. -1: there is none, ask MySQL.
_TAKE = _Script("""
local next = redis.call('GET', KEYS[1])
if not next then return -1 end
redis.call('INCRBY', KEYS[1], ARGV[1])
return tonumber(next)
""")
# To the end that MySQL knows, unless it is a little ahead of that: others have taken offsets and not published yet.
_SET_RIGHT = _Script("""
local next, free = tonumber(redis.call('GET', KEYS[1])) or 0, tonumber(ARGV[1])
if next < free or next > free + tonumber(ARGV[2]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1
""")


class RedisAllocator:
    """A counter for each topic and partition, under keys that carry the stream's identity.

    Args:
        url: the Redis server.
        stream_id: keeps the counters of two databases apart.
    """

    def __init__(self, url: str, stream_id: str) -> None:
        self._redis = RedisConnection(url)
        self._stream_id = stream_id
        self._seeded: set[tuple[int, int]] = set()

    @classmethod
    def open(cls, settings: Settings, stream_id: str) -> Self:
        """Make the allocator of a process; see :class:`Allocator`."""
        assert settings.redis_url is not None, "checked by Settings"
        return cls(settings.redis_url, stream_id)

    def place(self, session: Session, topic_id: int, partition: int, count: int) -> Placement:
        """Take offsets from Redis, or leave it to MySQL's counter while Redis is down."""
        if self._redis.breaker.is_open:
            return Placement()
        try:
            if (topic_id, partition) not in self._seeded:
                self._set_counter(session, topic_id, partition)
            base = self._run(_TAKE, topic_id, partition, count)
            if base < 0:
                self._set_counter(session, topic_id, partition)
                base = self._run(_TAKE, topic_id, partition, count)
        except redis.RedisError as error:
            self._stay_away(error)
            return Placement()
        return Placement(base if base >= 0 else None)

    def reseed(self, session: Session, topic_id: int, partition: int) -> None:
        """Set the counter to the end that MySQL knows, because Redis has gone back to an older value, or far ahead."""
        try:
            self._set_counter(session, topic_id, partition)
        except redis.RedisError as error:
            self._stay_away(error)

    def landed(self, topic_id: int, partition: int, base: int, count: int) -> None:
        """Do nothing: Redis has counted these offsets already."""

    def _set_counter(self, session: Session, topic_id: int, partition: int) -> None:
        free = note_end(session, topic_id, partition)
        if free is not None:
            self._run(_SET_RIGHT, topic_id, partition, free, FARTHEST)
            self._seeded.add((topic_id, partition))

    def _run(self, script: _Script, topic_id: int, partition: int, *numbers: int) -> int:
        """Run a script on a counter; its text is sent only to a server that does not know it."""
        rest = (1, f"ems:{self._stream_id}:next:{{{topic_id}:{partition}}}", *numbers)
        try:
            return int(self._redis.ask("EVALSHA", script.sha, *rest))
        except redis.exceptions.NoScriptError:
            return int(self._redis.ask("EVAL", script.text, *rest))

    def _stay_away(self, error: redis.RedisError) -> None:
        if not isinstance(error, LeftAlone):  # else another thread has told of it
            log.warning("Redis is unavailable (%s); offsets come from MySQL", error)
        self._seeded.clear()  # a counter that comes back may be older than what MySQL has handed out since
