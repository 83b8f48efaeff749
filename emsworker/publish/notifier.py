"""The notifier: tells idle workers over Redis that something was published.

Notifications are best effort: a worker that does not receive one finds the message by polling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

if TYPE_CHECKING:
    from emsworker.publish.redis_connection import RedisConnection

log = logging.getLogger(__name__)

_QUIET_S = 0.01  # after a notification; workers are awake for longer than that
ANNOUNCED = "soon"
_MOST_NAMED = 64  # a notification for more partitions does not name them

Wake = Callable[[int, Collection[int]], None]
"""Called with the topic in which something was published, and the partitions if they are known."""


def channel_of(stream_id: str, topic_id: int) -> str:
    """Return the Redis channel for notifications about a topic."""
    return f"ems:{stream_id}:wake:{topic_id}"


class Notifier:
    """The publisher's side of notifications.

    Args:
        redis_url: the Redis server, or ``None`` for no notifications.
        stream_id: the identity of the stream.
        here: called for each topic at every publish, for the consumers of this process; the list may change.
    """

    def __init__(self, redis_url: str | None, stream_id: str, here: Sequence[Wake]) -> None:
        self._here = here
        self._stream_id = stream_id
        self._quiet_at = 0.0
        self._redis: RedisConnection | None = None
        if redis_url is not None:
            with forks.fork_blocked:
                from emsworker.publish.redis_connection import RedisConnection

            self._redis = RedisConnection(redis_url)

    @property
    def has_listeners(self) -> bool:
        """True if anybody is to be notified."""
        return self._redis is not None or bool(self._here)

    @property
    def may_announce(self) -> bool:
        """True if messages are announced before their commit: notifications go over Redis, and there are few."""
        return self._redis is not None and ticks() >= self._quiet_at and not self._redis.breaker.is_open

    def announce(self, places: Iterable[tuple[int, int]]) -> None:
        """Tell idle workers, best effort, that a commit is under way; the notification after the commit still follows.

        A worker needs as long as the commit to wake up and to ask the server, where it can wait for that.

        Args:
            places: topics and partitions.
        """
        self._tell((topic_id, f"{ANNOUNCED} {partition}") for topic_id, partition in places)

    def notify(self, topic_ids: Iterable[int]) -> None:
        """Notify the idle workers of these topics, best effort: never raises, never waits long."""
        self.notify_at(dict.fromkeys(topic_ids, ()))

    def notify_at(self, places: Mapping[int, Collection[int]]) -> None:
        """Notify the idle workers of these topics as :meth:`notify` does, and name the partitions.

        Args:
            places: topic id -> the partitions that were written to, or none if they are not known.
        """
        for wake in tuple(self._here):
            for topic_id, partitions in places.items():
                wake(topic_id, partitions)
        self._tell((topic_id, _text_of(partitions)) for topic_id, partitions in places.items())

    def _tell(self, texts: Iterable[tuple[int, str]]) -> None:
        if self._redis is None or self._redis.breaker.is_open:
            return
        self._quiet_at = ticks() + _QUIET_S
        import redis

        from emsworker.publish.redis_connection import LeftAlone

        try:
            for topic_id, text in texts:
                self._redis.tell("PUBLISH", channel_of(self._stream_id, topic_id), text)
        except LeftAlone:  # another thread has told of it
            pass
        except redis.RedisError as error:
            log.warning("Redis is unavailable (%s); workers find new messages by polling", error)


def _text_of(partitions: Collection[int]) -> str:
    return " ".join(map(str, partitions)) if len(partitions) <= _MOST_NAMED else ""
