"""Wake-ups: a publisher tells idle workers over Redis that there is something to read.

Only a hint: whoever misses one finds the message by polling.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from emsworker.core.clock import ticks

if TYPE_CHECKING:
    from emsworker.offsets.wire import Wire

log = logging.getLogger(__name__)

_AWAY_S = 1.0
_MOST_NAMED = 64  # a message to more partitions does not name them

Wake = Callable[[int, Collection[int]], None]
"""Told the topic in which something was published, and the partitions if they are known."""


def _channel(stream_id: str, topic_id: int) -> str:
    return f"ems:{stream_id}:wake:{topic_id}"


class Bell:
    """The publisher's side.

    Args:
        redis_url: the Redis server, or ``None`` for no wake-ups.
        stream_id: the identity of the stream.
        here: called for each topic at every publish, for the consumers of this very process.
    """

    def __init__(self, redis_url: str | None, stream_id: str, here: Wake) -> None:
        self._here = here
        self._stream_id = stream_id
        self._away_until = 0.0
        self._wire: Wire | None = None
        if redis_url is not None:
            from emsworker.offsets.wire import Wire

            self._wire = Wire(redis_url)

    def ring(self, topic_ids: Iterable[int]) -> None:
        """Wake the idle workers of these topics; never raises, never waits long."""
        self.ring_at(dict.fromkeys(topic_ids, ()))

    def ring_at(self, places: Mapping[int, Collection[int]]) -> None:
        """The same, and send them right there.

        Args:
            places: topic id -> the partitions that were written to, or none if they are not known.
        """
        for topic_id, partitions in places.items():
            self._here(topic_id, partitions)
        if self._wire is None or ticks() < self._away_until:
            return
        import redis

        try:
            for topic_id, partitions in places.items():
                self._wire.tell("PUBLISH", _channel(self._stream_id, topic_id), _text_of(partitions))
        except redis.RedisError as error:
            log.warning("redis is away (%s); workers find new messages by polling", error)
            self._away_until = ticks() + _AWAY_S


def _text_of(partitions: Collection[int]) -> str:
    return " ".join(map(str, partitions)) if len(partitions) <= _MOST_NAMED else ""


class Listener(threading.Thread):
    """The worker's side: calls ``wake`` whenever one of the topics is rung for, and reconnects for ever.

    Args:
        redis_url: the Redis server.
        stream_id: the identity of the stream.
        topic_ids: what to listen for.
        wake: called from this thread.
    """

    def __init__(self, redis_url: str, stream_id: str, topic_ids: Iterable[int], wake: Wake) -> None:
        super().__init__(name="ems-wakeups", daemon=True)
        self._redis_url = redis_url
        self._topics = {_channel(stream_id, topic_id).encode(): topic_id for topic_id in topic_ids}
        self._wake = wake
        self._stopping = threading.Event()

    def run(self) -> None:
        """Listen until stopped."""
        import redis

        from emsworker.offsets.wire import client_of

        while not self._stopping.is_set():
            try:
                self._listen(client_of(self._redis_url, socket_connect_timeout=1.0, health_check_interval=5))
            except redis.RedisError as error:
                log.debug("redis is away (%s); polling meanwhile", error)
                self._stopping.wait(_AWAY_S)

    def _listen(self, client: Any) -> None:
        with contextlib.closing(client), client.pubsub(ignore_subscribe_messages=True) as channel:
            channel.subscribe(*self._topics)
            while not self._stopping.is_set():
                message = channel.get_message(timeout=1.0)
                if message is not None:
                    self._wake(self._topics[message["channel"]], _partitions_in(message["data"]))

    def stop(self) -> None:
        """Ask the thread to end; it does within a second."""
        self._stopping.set()


def _partitions_in(data: bytes) -> list[int]:
    """None, if the message is not one of ours: it is a wake-up all the same."""
    try:
        return [int(number) for number in data.split()]
    except ValueError:
        return []
