"""The lengths of queues on Flower's page of the broker, which Flower itself asks of RabbitMQ and Redis only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from amqp.exceptions import NotFound
from kombu.connection import Connection

_CONNECT_S = 2.0


class StreamQueues:
    """The queues of a stream, as Flower asks a broker for them.

    Args:
        url: of the stream, with its password.
        options: ``broker_transport_options``.
    """

    def __init__(self, url: str, options: Any) -> None:
        self._url, self._options = url, options

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return what waits in each queue; one that does not exist is left out."""
        return await asyncio.to_thread(self._read, list(names))

    def _read(self, names: list[str]) -> list[dict[str, Any]]:
        found = []
        with Connection(self._url, transport_options=self._options, connect_timeout=_CONNECT_S) as connection:
            for name in names:
                try:
                    ready = connection.default_channel.queue_declare(name, passive=True).message_count
                except NotFound:
                    continue
                found.append({"name": name, "messages": ready, "messages_ready": ready})
        return found


def broker_of(make: Callable[..., Any], cls: type, url: str, *args: Any, **kwargs: Any) -> Any:
    """Wrap Flower's ``Broker.__new__``: return the queues of a stream for its URL."""
    if url.startswith("ems"):
        return StreamQueues(url, kwargs.get("broker_options"))
    return make(cls, url, *args, **kwargs)
