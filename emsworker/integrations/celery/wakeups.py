"""Wake-ups over Redis for those who wait for results, if the URL of the backend names one: ``?redis_url=redis://...``.

They are best effort: without one a result is found by polling.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from emsworker.extending.processes import Runnable, Trouble, forks
from emsworker.extending.publishing import LeftAlone, RedisConnection, client_of

log = logging.getLogger(__name__)

_AWAY_S = 1.0


class WakeUps:
    """Tells other processes which results have been stored, and listens to what they tell.

    Args:
        redis_url: the Redis server.
        stream_id: returns the identity of the stream.
        arrived: called with the key of each result that was stored, from a thread of its own.
    """

    def __init__(self, redis_url: str, stream_id: Callable[[], str], arrived: Callable[[bytes], None]) -> None:
        self._redis_url, self._stream_id, self._arrived = redis_url, stream_id, arrived
        self._redis = RedisConnection(redis_url)
        self._lock = forks.Lock()
        self._listener: _Listener | None = None
        self._pid = 0

    @forks.lazy
    def _channel(self) -> str:
        return f"ems:{self._stream_id()}:results"

    def tell(self, keys: Iterable[bytes]) -> None:
        """Tell of results that have been stored; never raises, never waits long."""
        if self._redis.breaker.is_open:
            return
        import redis

        try:
            for key in keys:
                self._redis.tell("PUBLISH", self._channel, key)
        except LeftAlone:  # another thread has told of it
            pass
        except redis.RedisError as error:
            log.warning("Redis is unavailable (%s); results are found by polling", error)

    def listen(self) -> None:
        """Listen from now on, in this process."""
        with self._lock:
            if self._listener is None or self._pid != os.getpid() or not self._listener.is_alive():
                self._pid = os.getpid()
                self._listener = _Listener(self._redis_url, self._channel, self._arrived)
                self._listener.start()


class _Listener(Runnable):
    def __init__(self, redis_url: str, channel: str, arrived: Callable[[bytes], None]) -> None:
        super().__init__("ems-results", _report)
        self._redis_url, self._channel, self._arrived = redis_url, channel, arrived
        self._trouble = Trouble(log)

    def step(self) -> None:
        """Listen over one connection until it is lost."""
        import redis

        try:
            self._listen(client_of(self._redis_url, socket_connect_timeout=1.0, health_check_interval=5))
        except (redis.RedisError, OSError) as error:
            self._trouble.note("Redis is unavailable; this process polls for results", error)
            self.sleep(_AWAY_S)

    def _listen(self, client: Any) -> None:
        with contextlib.closing(client), client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(self._channel)
            while not self.stopping.is_set():
                message = pubsub.get_message(timeout=1.0)
                self._trouble.over("redis is there")
                if message is not None:
                    self._arrived(message["data"])


def _report(name: str, error: BaseException) -> None:
    log.error("%s has died, and is started again by the next wait: %r", name, error)
