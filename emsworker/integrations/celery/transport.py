"""The transport of kombu: connections to a stream."""

from __future__ import annotations

import logging
import os
import sys
import threading
from itertools import count
from typing import Any

from kombu.exceptions import ChannelError, ConnectionError
from kombu.transport import base
from kombu.transport.virtual.base import Management

from emsworker import __version__
from emsworker.extending.errors import (
    ConfigError,
    Conflict,
    ConnectionLost,
    FenceLost,
    LeaseLost,
    MessageTooLarge,
    Problem,
    StoreUnavailable,
    TopicRuleError,
    UnknownGroup,
    UnknownTopic,
)
from emsworker.extending.processes import name_url, ticks
from emsworker.extending.settings import DatabaseUrl
from emsworker.integrations.celery.channel import QueueChannel
from emsworker.integrations.celery.inbox import Inbox
from emsworker.integrations.celery.startup import broker_connected, ends_worker
from emsworker.integrations.celery.streams import open_stream
from emsworker.integrations.celery.url import StreamUrl
from emsworker.integrations.celery.wrapping import wrap_methods

log = logging.getLogger(__name__)

_SLICE_S = 1.0
# Celery joins the workers of these kinds of brokers only.
_JOINING = (("celery.worker.consumer.mingle", "Mingle"), ("celery.worker.consumer.gossip", "Gossip"))


class Link:
    """An established connection: channels, and what waits for the thread that uses them.

    Attributes:
        client: the connection of kombu that it serves.
        stream: the stream.
        inbox: what side threads have for it.
    """

    def __init__(self, transport: Transport, client: Any) -> None:
        self.transport, self.client = transport, client
        url = StreamUrl.of_connection(client)
        name_url("broker_url", url.database)
        self.stream = open_stream(url, client.transport_options or {})
        self.stream.connect(client.connect_timeout)
        self.stream.enter()
        self.inbox = Inbox()
        self.connected = True
        self.channels: list[QueueChannel] = []
        self._pid = os.getpid()
        self._channel_ids = count(1)

    def next_channel_id(self) -> int:
        """Return the number of a new channel."""
        return next(self._channel_ids)

    def channel(self) -> QueueChannel:
        """Open a channel."""
        channel = QueueChannel(self)
        self.channels.append(channel)
        return channel

    def forget(self, channel: QueueChannel) -> None:
        """Drop a channel that was closed."""
        if channel in self.channels:
            self.channels.remove(channel)

    def drain_events(self, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver all that is there; wait for something first.

        Raises:
            socket.timeout: nothing has come in time.
        """
        until = None if timeout is None else ticks() + timeout
        while True:
            left_s = _SLICE_S if until is None else max(0.0, until - ticks())
            self.inbox.wait(min(left_s, _SLICE_S))
            if self.inbox.deliver():
                return
            if until is not None and ticks() >= until:
                raise TimeoutError("timed out")

    def close(self, *, in_background: bool = False) -> None:
        """Close all channels.

        Args:
            in_background: the stream may not answer, and nobody waits for it.
        """
        was_connected, self.connected = self.connected, False
        if os.getpid() != self._pid or not was_connected:
            return
        channels, self.channels = self.channels, []
        if in_background:
            threading.Thread(target=self._close_all, args=(channels,), name="ems-celery-close", daemon=True).start()
        else:
            self._close_all(channels)

    def _close_all(self, channels: list[QueueChannel]) -> None:
        for channel in channels:
            channel.close()
        self.inbox.close()
        self.stream.leave()


class Transport(base.Transport):
    """The transport ``ems``."""

    Channel = QueueChannel
    Management = Management  # `celery list bindings`

    driver_type = "ems"
    driver_name = "emsworker"
    default_port: Any = 3306
    can_parse_url = True  # or kombu takes ems:// apart itself, and its errors name parts of a password

    connection_errors: Any = (
        ConnectionError,
        OSError,
        StoreUnavailable,
        LeaseLost,
        FenceLost,
        ConnectionLost,
        Conflict,
    )
    # A wrong option, password or schema is neither: nothing is tried again for it, and no command passes over it.
    channel_errors: Any = (ChannelError, UnknownTopic, UnknownGroup, TopicRuleError, MessageTooLarge)
    recoverable_connection_errors: Any = connection_errors
    recoverable_channel_errors: Any = ()

    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        base.Transport.__init__(self, client, **kwargs)
        for module, name in _JOINING:
            if (loaded := sys.modules.get(module)) is not None:
                step = getattr(loaded, name)
                step.compatible_transports = {*step.compatible_transports, self.driver_type}
        wrap_methods()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """The parts of the URL, which kombu does not parse."""
        try:
            at = DatabaseUrl.parse(StreamUrl.of_connection(self.client).database)
        except ValueError:
            return {"hostname": "127.0.0.1", "port": self.default_port, "userid": "root"}
        return {"hostname": at.host, "port": at.port, "userid": at.user}

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL, as a rule without its password."""
        try:
            url = StreamUrl.of_connection(self.client)
        except ValueError:
            return "ems://"
        return f"ems+{url.database}" if include_password else url.shown()

    def driver_version(self) -> str:
        """Return the version of this package."""
        return __version__

    def establish_connection(self) -> Link:
        """Connect.

        Raises:
            ConfigError: the URL or an option is wrong.
            SchemaMissing: ``ems migrate`` has not been run.
            ConnectionLost: the server cannot be reached.
        """
        with ends_worker("broker_url"):
            try:
                link = Link(self, self.client)
            except ConfigError as error:
                raise error from None
            except ValueError as error:
                raise ConfigError([Problem("broker_url", self.as_uri(""), str(error))]) from None
        broker_connected()
        return link

    def verify_connection(self, connection: Link) -> bool:
        """Return whether a connection can be used."""
        return connection.connected

    def create_channel(self, connection: Link) -> QueueChannel:
        """Open a channel."""
        return connection.channel()

    def close_channel(self, channel: QueueChannel) -> None:
        """Close a channel."""
        channel.close()

    def close_connection(self, connection: Link) -> None:
        """Close a connection and its channels."""
        connection.close()

    def _collect(self, connection: Link | None) -> None:
        """Drop a connection that was lost, or is its parent's."""
        if connection is not None:
            connection.close(in_background=True)

    def drain_events(self, connection: Link, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver all that is there."""
        connection.drain_events(timeout=timeout)

    def register_with_event_loop(self, connection: Link, loop: Any) -> None:
        """Have the event loop deliver what arrives."""
        loop.add_reader(connection.inbox.fileno(), connection.inbox.deliver)

    def unregister_from_event_loop(self, connection: Link, loop: Any) -> None:
        """Have the event loop deliver nothing more."""
        loop.remove_reader(connection.inbox.fileno())
