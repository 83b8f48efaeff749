"""Resources that an app opens on first use: the stream's database, the catalog, the producer and the outbox."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from emsworker.core.codec import Decoder
from emsworker.core.config import Settings
from emsworker.core.errors import StoreUnavailable
from emsworker.core.process.forks import after_fork, lazy, undivided
from emsworker.core.process.role import claim_role

# All that sending needs is imported at once: a forked child inherits the lock of a module that a thread imports.
from emsworker.publish.allocators.mysql import MysqlAllocator
from emsworker.publish.catalog import Catalog
from emsworker.publish.notifier import Notifier, Wake
from emsworker.publish.outbox import Outbox
from emsworker.publish.producer import Producer
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import check_version, server_facts, stream_id

if TYPE_CHECKING:
    from emsworker.app import Ems
    from emsworker.publish.allocators import Allocator
    from emsworker.tasks.broadcast import Broadcasts


def _nothing(_topic_id: int, _partitions: Collection[int]) -> None:
    pass


class Opening:
    """A part of :class:`Ems`, in a file of its own."""

    settings: Settings
    broadcasts: Broadcasts
    on_publish: Wake

    def __init__(self) -> None:
        self.on_publish = _nothing
        after_fork(self._leave_to_parent)

    @property
    def url(self) -> str:
        """The server's address: the setting, or the local stream that ``ems local start`` runs.

        Raises:
            StoreUnavailable: neither is there.
        """
        if self.settings.url is not None:
            return self.settings.url
        with undivided:
            from emsworker.local.stack import LocalStack

        url = LocalStack().url
        if url is None:
            raise StoreUnavailable(
                "EMS_URL is not set and no local stream is running; set it, or run `ems local start`"
            )
        return url

    @property
    def redis_url(self) -> str | None:
        """The Redis server, if there is one."""
        if self.settings.redis_url is not None or self.settings.url is not None:
            return self.settings.redis_url
        with undivided:
            from emsworker.local.stack import LocalStack

        return LocalStack().redis_url

    @lazy
    def database(self) -> Database:
        """The stream's database; its schema has been checked.

        Raises:
            SchemaMissing: ``ems migrate`` has not been run.
            AccessDenied, StoreUnavailable: it cannot be reached.
        """
        claim_role("producer")
        database = Database(self.url, self.settings.connect_timeout_s, self.settings.publish_timeout_s)
        database.call(check_version)
        return database

    @lazy
    def stream_id(self) -> str:
        """The identity of the stream."""
        return self.database.call(stream_id)

    @lazy
    def catalog(self) -> Catalog:
        """Topics and groups by name."""
        return Catalog(self.database, self.settings, self.broadcasts.kind_of)

    @lazy
    def decoder(self) -> Decoder:
        """Reads the bodies that the accept list allows."""
        return Decoder(self.settings.accept, self.settings.max_decoded_bytes)

    @property
    def producer(self) -> Producer:
        """The process's producer; a forked child gets one of its own."""
        return self._producer

    @property
    def _producer_id(self) -> str:
        return f"{socket.gethostname()}-{os.getpid()}"[-128:]

    @lazy
    def _producer(self) -> Producer:
        packet = self.database.call(server_facts).max_allowed_packet
        session, timeout_s = self.database.session(), self.settings.publish_timeout_s
        return Producer(session, self._allocator(), self._notifier(), self._producer_id, timeout_s, packet)

    def _notifier(self) -> Notifier:
        return Notifier(
            self.redis_url, self.stream_id, lambda topic_id, partitions: self.on_publish(topic_id, partitions)
        )

    @lazy
    def outbox(self) -> Outbox:
        """The outbox, for messages that are sent with a transaction or for later."""
        return Outbox(cast("Ems", self), self.database, self._producer_id, self._notifier().ring)

    def _allocator(self) -> Allocator:
        if self.settings.allocator == "redis":
            with undivided:
                from emsworker.publish.allocators.redis import RedisAllocator

            assert self.settings.redis_url is not None, "checked by Settings"
            return RedisAllocator(self.settings.redis_url, self.stream_id)
        return MysqlAllocator()

    def close(self) -> None:
        """Close the connections; the app opens new ones at its next send. In memory there are none."""
        if cast("Ems", self).stand_in is not None:
            return
        for name in ("_producer", "outbox"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()

    def _leave_to_parent(self) -> None:
        """Drop producer and outbox in a forked child: what the parent's threads queue, allocate and move is theirs."""
        if cast("Ems", self).stand_in is None:
            for name in ("_producer", "outbox"):
                self.__dict__.pop(name, None)
