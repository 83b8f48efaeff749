"""The consuming side of wake-ups over Redis (see :mod:`emsworker.publish.notifier`)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from emsworker.core.process.runnable import Runnable, Trouble
from emsworker.publish.notifier import ANNOUNCED, Wake, channel_of

log = logging.getLogger(__name__)

_ANNOUNCED = ANNOUNCED.encode()
_AWAY_S = 1.0
_EMPTY_S = 0.1  # while there is no topic to listen for
_MOST_BYTES = 512  # the longest of our own notifications is shorter; anybody may publish on the channel


class Listener(Runnable):
    """Calls ``wake`` at every notification for one of the topics; reconnects if Redis is unavailable.

    Args:
        redis_url: the Redis server.
        stream_id: the identity of the stream.
        topic_ids: the topics to listen for.
        wake: called from this thread.
        on_death: see :class:`Runnable`.
        announce: the same as ``wake``, when something is just being committed.
    """

    def __init__(
        self,
        redis_url: str,
        stream_id: str,
        topic_ids: Iterable[int],
        wake: Wake,
        on_death: Callable[[str, BaseException], None],
        announce: Wake = lambda topic_id, partitions: None,
    ) -> None:
        super().__init__("ems-wakeups", on_death)
        self._redis_url = redis_url
        self._stream_id = stream_id
        self._topics = {channel_of(stream_id, topic_id).encode(): topic_id for topic_id in topic_ids}
        self._wake, self._announce = wake, announce
        self._trouble = Trouble(log)

    def listen_to(self, topic_id: int) -> None:
        """Listen for one more topic, within a second."""
        self._topics = {**self._topics, channel_of(self._stream_id, topic_id).encode(): topic_id}

    def step(self) -> None:
        """Listen over one connection until it is lost."""
        import redis

        from emsworker.publish.redis_connection import client_of

        try:
            self._listen(client_of(self._redis_url, socket_connect_timeout=1.0, health_check_interval=5))
        except (redis.RedisError, OSError) as error:
            self._trouble.note("Redis is unavailable; this process polls", error)
            self.sleep(_AWAY_S)

    def _listen(self, client: Any) -> None:
        with contextlib.closing(client), client.pubsub(ignore_subscribe_messages=True) as channel:
            subscribed: set[bytes] = set()
            while not self.stopping.is_set():
                if new := self._topics.keys() - subscribed:
                    channel.subscribe(*new)
                    subscribed |= new
                if not subscribed:
                    self.sleep(_EMPTY_S)
                    continue
                message = channel.get_message(timeout=1.0)
                self._trouble.over("redis is there")
                if message is not None:
                    data = message["data"]
                    words = data.split() if len(data) <= _MOST_BYTES else []
                    is_announced = words[:1] == [_ANNOUNCED]
                    wake = self._announce if is_announced else self._wake
                    wake(self._topics[message["channel"]], _numbers_in(words[is_announced:]))


def _numbers_in(words: Sequence[bytes]) -> list[int]:
    """Parse the partition numbers; a foreign message has none, but still is a wake-up."""
    try:
        return [int(number) for number in words]
    except ValueError:
        return []
