"""The stream in MySQL as a broker; its parts are opened on first use."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from emsworker.broker.keys import KeyBackend, MysqlKeys, RedisKeys
from emsworker.broker.large import load_large, send_large
from emsworker.broker.mysql_channel import MysqlChannel
from emsworker.broker.results import MysqlResults, RedisResults, ResultBackend, ResultsInRedis
from emsworker.broker.schedules import MysqlSchedules
from emsworker.core.codec import Decoder, check_serializers
from emsworker.core.config import Settings, TopicSettings
from emsworker.core.errors import ConfigError, Problem, StoreUnavailable, TopicDeleted, TopicMoved
from emsworker.core.extension import default_stream
from emsworker.core.large import LARGE_BYTES
from emsworker.core.limits import Limit
from emsworker.core.log_lines import AttemptLog
from emsworker.core.model import Group, HandlerRow, NewMessage, Order, Receipt, Topic
from emsworker.core.process.forks import after_fork, fork_blocked, lazy
from emsworker.core.process.role import claim_role
from emsworker.core.process.threads import ThreadPool
from emsworker.core.schedule import Declared
from emsworker.core.selection.filters import Filter
from emsworker.core.servers import MAIN, KeptTopic
from emsworker.core.task_figures import TaskFigures
from emsworker.publish.allocators import open_allocator
from emsworker.publish.cancel import cancel_sent
from emsworker.publish.catalog import Catalog
from emsworker.publish.notifier import Notifier, Wake
from emsworker.publish.outbox import Outbox
from emsworker.publish.outgoing import admit
from emsworker.publish.producer import Producer
from emsworker.publish.transaction import OutboxTransaction, Sender
from emsworker.store.cluster import schedules
from emsworker.store.engine.connection import LOCK_WAIT_S
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import check_version, server_facts, server_now, stream_id
from emsworker.store.engine.session import Session, never
from emsworker.store.groups import handlers, limits, log_lines, task_figures
from emsworker.store.stream import forwards

_DELETIONS = 20  # a topic that is deleted and made anew may be met this many times in one send


class MysqlBroker:
    """The stream in MySQL; see :class:`emsworker.broker.port.Broker`. Safe for any number of threads, and for forks.

    Args:
        settings: the app's.
        settings_of: returns the settings with which a topic is created.
        outlasts_refusal: see :class:`emsworker.store.engine.session.Session`.

    Attributes:
        pool: the threads on which coroutines call it.
        wakes: called for each topic that this process has written to.
    """

    in_memory = False

    def __init__(
        self, settings: Settings, settings_of: TopicSettings, outlasts_refusal: Callable[[], bool] = never
    ) -> None:
        self.settings = settings
        self._settings_of, self._outlasts_refusal = settings_of, outlasts_refusal
        self.pool = ThreadPool(settings.async_threads)
        self.wakes: list[Wake] = []
        after_fork(self._leave_to_parent)

    # -- where it is ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The server's address: the setting, or the local stream that ``ems local start`` runs.

        Raises:
            StoreUnavailable: neither is there.
        """
        if self.settings.url is not None:
            return self.settings.url
        with fork_blocked:
            found = default_stream()
        if found is None:
            raise StoreUnavailable(
                "EMS_URL is not set and no local stream is running; set it, or run `ems local start`"
            )
        return found.url

    @property
    def redis_url(self) -> str | None:
        """The Redis server, if there is one."""
        if self.settings.redis_url is not None or self.settings.url is not None:
            return self.settings.redis_url
        with fork_blocked:
            found = default_stream()
        return found.redis_url if found is not None else None

    # -- parts ---------------------------------------------------------------------------------------------------------

    @lazy
    def database(self) -> Database:
        """The stream's database; its schema has been checked.

        Raises:
            SchemaMissing: ``ems migrate`` has not been run.
            AccessDenied, StoreUnavailable: it cannot be reached.
        """
        claim_role("producer")
        database = Database(
            self.url,
            self.settings.connect_timeout_s,
            self.settings.publish_timeout_s,
            outlasts_refusal=self._outlasts_refusal,
        )
        database.call(check_version)
        return database

    @lazy
    def stream_id(self) -> str:
        """The identity of the stream."""
        return self.database.call(stream_id)

    @lazy
    def catalog(self) -> Catalog:
        """Topics and groups by name."""
        return Catalog(self.database, self.settings, self._settings_of)

    @lazy
    def decoder(self) -> Decoder:
        """Reads the bodies that the accept list allows.

        Raises:
            ConfigError: it names a serializer that is not known here.
        """
        check_serializers(self.settings.serializer, self.settings.accept)
        return Decoder(self.settings.accept, self.settings.budget, self._load_large)

    def _load_large(self, raw: bytes, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
        return load_large(self.database, raw, headers)

    @lazy
    def producer(self) -> Producer:
        """The process's producer; a forked child gets one of its own."""
        packet = self.database.call(server_facts).max_allowed_packet
        timeout_s = self.settings.publish_timeout_s
        session = self.database.session(answer_s=timeout_s + LOCK_WAIT_S)
        return Producer(
            session,
            open_allocator(self.settings, self.stream_id),
            self._notifier(),
            self._producer_id,
            timeout_s,
            packet,
        )

    @lazy
    def outbox(self) -> Outbox:
        """The outbox, for messages that are sent with a transaction or for later."""
        return Outbox(self.database, self._producer_id, self._notifier().notify, self.settings.publish_timeout_s)

    @lazy
    def _redis_keys(self) -> RedisKeys:
        assert self.redis_url is not None, "checked by keys"
        return RedisKeys(self.redis_url, self.stream_id)

    @property
    def _producer_id(self) -> str:
        return f"{socket.gethostname()}-{os.getpid()}"[-128:]

    def _notifier(self) -> Notifier:
        return Notifier(self.redis_url, self.stream_id, self.wakes)

    # -- the port: its only server -------------------------------------------------------------------------------------

    @property
    def servers(self) -> Mapping[str, MysqlBroker]:
        """The stream on the main server alone."""
        return {MAIN: self}

    @property
    def home(self) -> MysqlBroker:
        """The stream itself."""
        return self

    def home_of(self, transaction: Any) -> str:
        """Return the main server, on which every transaction is."""
        return MAIN

    def forget(self, topic: str) -> None:
        """Look a topic up at its next use."""
        self.catalog.forget(topic)

    def live_on(self, server: str) -> None:
        """Refuse another server than the main one."""
        self.server(server)

    def server(self, name: str) -> MysqlBroker:
        """Return the stream on the main server."""
        if name != MAIN:
            fix = "the setting `servers` is not set, so there is only main"
            raise ConfigError([Problem("server", repr(name), fix)])
        return self

    def locate(self, topic: str) -> tuple[str, ...]:
        """Return the main server, which keeps every topic."""
        return (MAIN,)

    def kept_by(self, topic: str) -> MysqlBroker:
        """Return the stream itself."""
        return self

    def served(self, topics: Sequence[str]) -> dict[str, bool]:
        """Return that every topic is consumed here."""
        return dict.fromkeys(topics, True)

    # -- the port: the way in, and look-ups ----------------------------------------------------------------------------

    def prepare(self, topic: str | None = None) -> None:
        """Connect, and look a topic up."""
        _ = self.database, self.outbox
        if topic is not None:
            self.topic(topic)

    def topic(self, name: str) -> Topic:
        """Return a topic, created on first use if that is allowed."""
        return self.catalog.topic(name)

    def topic_on(self, stream: MysqlBroker, name: str) -> Topic:
        """Return a topic; there is one server."""
        return self.topic(name)

    def group(self, topic: Topic, name: str, declared: Filter | None = None, order: Order = Order.NONE) -> Group:
        """Return a group of a topic, created on first use if that is allowed."""
        return self.catalog.group(topic, name, declared, order)

    def send(self, topic: str, messages: Sequence[NewMessage], transaction: Any = None) -> list[Receipt]:
        """Store messages of one topic; if it was deleted meanwhile, in the topic that has its name now."""
        direct = transaction is None and all(one.is_direct for one in messages)
        deletions = 0
        while True:
            found = self.catalog.topic(topic)
            if found.server is not None and (transaction is None or not self.settings.servers):
                raise TopicMoved(topic, found.server)
            for message in messages:
                admit(found, message)
            try:
                if found.max_message_bytes > LARGE_BYTES and any(len(one.body) > LARGE_BYTES for one in messages):
                    return send_large(self.outbox, self._send_directly, found, messages, transaction)
                if direct:
                    return self.producer.send(found, messages)
                return self.outbox.send(found, messages, transaction)
            except TopicDeleted:
                self.catalog.forget(topic)
                deletions += 1
                if deletions > _DELETIONS:
                    raise

    def _send_directly(self, topic: Topic, messages: Sequence[NewMessage]) -> list[Receipt]:
        return self.producer.send(topic, messages)

    def kept_topic(self, topic: str) -> KeptTopic | None:
        """Return under which circumstances this server keeps a topic now; ``None`` if it does not."""
        return self.database.call(lambda session: forwards.find_kept(session, topic))

    def accept(self, kept: KeptTopic, messages: Sequence[NewMessage]) -> bool:
        """Store messages that another server has had in its outbox, each once; they keep their ids.

        Returns:
            False if the topic has been moved or deleted since; nothing was accepted.
        """
        return self.outbox.accept(kept, messages)

    def find_accepted(self, topic: str, uids: Sequence[bytes]) -> set[bytes]:
        """Return those messages that :meth:`accept` has stored in the last week, and that were not handed on since."""
        topic_id = self.catalog.topic(topic).id
        return self.database.call(lambda session: forwards.find_accepted(session, topic_id, uids))

    def transaction(self, sender: Sender) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction that commits SQL and messages together."""
        return self.outbox.transaction(sender)

    def cancel(self, message_id: str, topic: str | None) -> bool:
        """Cancel a message."""
        return cancel_sent(self.database, message_id, topic, lambda topic_ids: self.outbox.notify(topic_ids))

    def results(self, topics: Sequence[str], group: str | None) -> ResultBackend:
        """Return the results of calls that were sent to these topics."""

        def topic_ids() -> list[int]:
            return [self.catalog.topic(name).id for name in sorted(set(topics))]

        if self.settings.result_backend == "redis":
            assert self.settings.redis_url is not None, "checked by Settings"
            redis = RedisResults(self.settings.redis_url, self.stream_id)
            return ResultsInRedis(redis, self.database, topic_ids, group)
        return MysqlResults(self.database, topic_ids, group)

    def keys(self, backend: str) -> KeyBackend | None:
        """Return the idempotency keys in ``mysql`` or ``redis``."""
        if backend == "mysql":
            return MysqlKeys(self.database)
        return self._redis_keys if backend == "redis" and self.redis_url is not None else None

    @property
    def schedules(self) -> MysqlSchedules:
        """The schedules that users create at run time."""
        return MysqlSchedules(self.database)

    # -- what workers declare when they start --------------------------------------------------------------------------

    def declare_limit(self, group: Group, limit: Limit) -> Limit:
        """Set the limit of a group, unless one was set before; return the one that holds."""
        return self.database.call(lambda session: limits.declare(session, group.id, limit))

    def declare_handlers(self, group: Group, rows: Sequence[HandlerRow]) -> None:
        """Store how the handlers of a group are charged, for recovery."""
        self.database.call(lambda session: handlers.declare(session, group.id, rows))

    def add_task_figures(self, figures: Mapping[tuple[int, str], TaskFigures]) -> None:
        """Add figures to those that are kept, by a group's id and the name of a task."""
        self.database.call(lambda session: task_figures.add(session, figures))

    def delete_old_figures(self, limit: int) -> int:
        """Delete figures of tasks of more than a day ago, at most ``limit`` rows of each kind; return how many."""
        return self.database.call(lambda session: task_figures.delete_old(session, limit))

    def write_log_lines(self, logs: Mapping[tuple[int, int, int, int], AttemptLog]) -> None:
        """Write logs of attempts, by group id, partition, offset and the number of the attempt; idempotent."""
        self.database.call(lambda session: log_lines.write(session, logs))

    def delete_old_log_lines(self, keep_s: float, limit: int) -> int:
        """Delete logs that were written longer ago than this, at most ``limit``; return how many."""
        return self.database.call(lambda session: log_lines.delete_old(session, keep_s, limit))

    def declare_schedules(self, declared: Sequence[Declared]) -> None:
        """Store the schedules of an app."""
        self.database.call(lambda session: schedules.declare(session, declared))

    # -- the port: its clock and its connections -----------------------------------------------------------------------

    def now(self) -> datetime:
        """Return the server's time, in UTC."""
        return self.database.call(server_now)

    def channel(self, *, patient: bool = True) -> MysqlChannel:
        """Open a connection for a thread that consumes."""
        return MysqlChannel(self.database.session(patient), self._move)

    def _move(self, session: Session) -> None:
        self.outbox.move(session)

    def close(self) -> None:
        """Wait for what the threads of the pool have begun, and close the connections; both are made anew if needed."""
        self.pool.close()
        for name in ("producer", "outbox"):
            opened = self.__dict__.pop(name, None)
            if opened is not None:
                opened.close()

    def _leave_to_parent(self) -> None:
        """Drop producer and outbox in a forked child: what the parent's threads queue, allocate and move is theirs."""
        for name in ("producer", "outbox"):
            self.__dict__.pop(name, None)
