"""Several servers as one broker: each topic is kept on one of them, and everything about it is asked there.

The setting ``servers`` says where a topic is created. From then on its row on that server is the truth: it is kept
there, or the row points to the server that keeps it since ``ems topics move``. Nothing below knows about other servers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from emsworker.broker.keys import KeyBackend
from emsworker.broker.mysql import MysqlBroker
from emsworker.broker.mysql_channel import MysqlChannel
from emsworker.broker.port import Broker
from emsworker.broker.results import ResultBackend
from emsworker.broker.schedules import Change, MysqlSchedules
from emsworker.core.config import Settings, TopicSettings
from emsworker.core.errors import (
    AccessDenied,
    ConfigError,
    EmsError,
    Problem,
    StoreUnavailable,
    TopicDeleted,
    TopicMoved,
    TopicRuleError,
    UnknownMessage,
    UnknownSchedule,
)
from emsworker.core.flush import ResultRow
from emsworker.core.ids import check_name, uid_text
from emsworker.core.model import Group, NewMessage, Order, Receipt, Topic
from emsworker.core.process import forks
from emsworker.core.process.address import name_server
from emsworker.core.process.clock import ticks
from emsworker.core.process.threads import ThreadPool
from emsworker.core.run import Progress
from emsworker.core.schedule import Declared, ScheduleRow
from emsworker.core.selection.filters import Filter
from emsworker.core.servers import MAIN, parse_servers, place
from emsworker.core.settings import settings_of
from emsworker.core.url import impatient
from emsworker.publish.transaction import OutboxTransaction, Sender
from emsworker.store.engine import foreign
from emsworker.store.engine.database import Database
from emsworker.store.engine.errors import code_of
from emsworker.store.engine.schema import check_version, stream_id_text
from emsworker.store.stream import dedup, outbox
from emsworker.store.topics import create_topic, find_served, find_topics, get_topic

_FRESH_S = 1.0
_ASK_S = 3.0  # for one server to say where a topic is
_TURN_S = 0.05  # between two tries, while a move is under way
# No such database, table, or privilege on it: the connection leads to another server.
_NOT_HERE = frozenset({1044, 1049, 1142, 1146})


class PlacedBroker:
    """Several servers; see :class:`emsworker.broker.port.Broker`. Safe for any number of threads, and for forks.

    Args:
        settings: the app's; ``url`` is the main server, ``servers`` the others.
        settings_of: returns the settings with which a topic is created.

    Attributes:
        servers: each server's own broker, by name, the main one first.
    """

    in_memory = False

    def __init__(self, settings: Settings, settings_of: TopicSettings) -> None:
        self._settings = settings
        self._placement = parse_servers(settings.servers)
        self.servers = {MAIN: MysqlBroker(settings, settings_of)} | {
            one.name: MysqlBroker(replace(settings, url=one.url), settings_of) for one in self._placement
        }
        for one in self._placement:
            name_server(one.name, one.url)
        self._home_name = MAIN
        self._known: dict[str, tuple[tuple[str, ...], float]] = {}
        self._rows_until: dict[tuple[str, str], float] = {}  # of a server: the topics that it has a row of
        self._homes: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._lock = forks.Lock()

    @property
    def home(self) -> MysqlBroker:
        """The stream on the server from which this process consumes, and whose transactions its handlers work in."""
        return self.servers[self._home_name]

    def live_on(self, server: str) -> None:
        """Consume from this server from now on."""
        self.server(server)
        self._home_name = server

    def server(self, name: str) -> MysqlBroker:
        """Return a server's broker.

        Raises:
            ConfigError: the setting names no such server.
        """
        if name in self.servers:
            return self.servers[name]
        fix = f"the setting `servers` names no such server; there are {', '.join(self.servers)}"
        raise ConfigError([Problem("server", repr(name), fix)])

    # -- where a topic is ----------------------------------------------------------------------------------------------

    def locate(self, topic: str) -> tuple[str, ...]:
        """Return the servers that have kept a topic, as far as their rows tell; the last one keeps it now.

        Raises:
            UnknownTopic, InvalidName: there is none of that name, and it may not be created.
            StoreUnavailable: the server that would know is away, or the topic is just being moved.
        """
        known = self._known.get(topic) if isinstance(topic, str) else None
        if known is not None and ticks() < known[1]:
            return known[0]
        check_name("topic", topic)
        until = ticks() + self._settings.publish_timeout_s
        while (chain := self._look(topic, known[0] if known else ())) is None:
            if ticks() > until:
                raise StoreUnavailable(f"topic {topic!r} is being moved; finish that with `ems topics move`")
            time.sleep(_TURN_S)
        self._known[topic] = chain, ticks() + _FRESH_S
        return chain

    def forget(self, topic: str) -> None:
        """Look up where a topic is at its next use."""
        self._known.pop(topic, None)

    def kept_by(self, topic: str) -> MysqlBroker:
        """Return the broker of the server that keeps a topic; see :meth:`locate`."""
        return self.server(self.locate(topic)[-1])

    def served(self, topics: Sequence[str]) -> dict[str, bool]:
        """Return which topics are consumed on the home server."""
        database = self.home.database
        known = database.call(lambda session: find_topics(session, topics))
        for topic in topics:
            if topic not in known and place(topic, self._placement) == self._home_name:
                self.locate(topic)
        return database.call(lambda session: find_served(session, topics))

    def _look(self, topic: str, known: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return where a topic is; ``None`` while it is being moved. The servers that are not asked may be away."""
        away: dict[str, StoreUnavailable] = {}
        if known:
            found = self._ask(known[-1], topic, away)
            if found is not None and found.server is None:
                return self._with_former(found, known)
        chain: tuple[str, ...] = (place(topic, self._placement),)
        while chain[-1] in self.servers and (found := self._ask(chain[-1], topic, away)) is not None:
            if found.server is None:
                return self._with_former(found, chain)
            if found.server in chain:
                return None
            chain += (found.server,)
        if chain[-1] in self.servers and chain[-1] not in away:
            return self._begin(topic, chain)
        return self._elsewhere(topic, chain, away)

    def _ask(self, name: str, topic: str, away: dict[str, StoreUnavailable]) -> Topic | None:
        """Return a server's row of a topic; each server that is away is waited for once in a look, and noted there."""
        if name not in away:
            try:
                return self._row(name, topic)
            except StoreUnavailable as error:
                away[name] = error
        return None

    def _elsewhere(self, topic: str, chain: tuple[str, ...], away: dict[str, StoreUnavailable]) -> tuple[str, ...]:
        """Find the server that keeps a topic although pointers end at one that is away, or has no name here.

        The topic may have moved on from there: a pointer of one that was away then, or is not named here, is old.
        """
        for name in self.servers:
            if name not in chain and (found := self._ask(name, topic, away)) is not None and found.server is None:
                return self._with_former(found, (name,))
        if chain[-1] in away:
            raise away[chain[-1]]
        fix = (
            f"server {chain[-2]!r} says that it is on {chain[-1]!r}, which the setting `servers` does not name; name it"
        )
        raise ConfigError([Problem("topic", repr(topic), fix)])

    def _with_former(self, found: Topic, chain: tuple[str, ...]) -> tuple[str, ...]:
        """Return the chain with those servers before it to which its rows do not lead: the topic has come back."""
        before = (name for name in (*found.former, *chain[:-1]) if name in self.servers and name != chain[-1])
        return (*dict.fromkeys(before), chain[-1])

    def _begin(self, topic: str, chain: tuple[str, ...]) -> tuple[str, ...]:
        """Find a topic that is on another server, because it is older than the setting, or create it."""
        with self._lock:
            for name in self.servers:
                if name not in chain and self._keeps(name, topic):
                    self.point(chain[-1], topic, name)
                    return (*chain, name)
            self.server(chain[-1]).topic(topic)
        return chain

    def _row(self, name: str, topic: str) -> Topic | None:
        broker = self.server(name)
        if "database" not in vars(broker):  # whose first connection is waited for as long as a send
            database = Database(impatient(broker.url, _ASK_S), min(_ASK_S, self._settings.connect_timeout_s), _ASK_S)
            database.call(check_version)
            database.thread_session().close()
        return broker.database.call(lambda session: get_topic(session, topic), _ASK_S)

    def _keeps(self, name: str, topic: str) -> bool:
        found = self._row(name, topic)
        return found is not None and found.server is None

    def point(self, name: str, topic: str, holder: str) -> None:
        """Let a server know that another one keeps a topic, if it has no row of that topic yet."""
        found = self._row(holder, topic)
        values = {} if found is None else {one: getattr(found, one) for one in settings_of(Topic)}
        with contextlib.suppress(AccessDenied):  # a producer that may not create topics finds it anew each time
            self.server(name).database.call(lambda session: create_topic(session, topic, server=holder, **values))

    # -- the port ------------------------------------------------------------------------------------------------------

    @property
    def pool(self) -> ThreadPool:
        """The threads on which coroutines call it."""
        return self.home.pool

    def prepare(self, topic: str | None = None) -> None:
        """Connect, and look a topic up."""
        self.home.prepare()
        if topic is not None:
            self.topic(topic)

    def topic(self, name: str) -> Topic:
        """Return a topic, created on first use if that is allowed."""
        return self.kept_by(name).topic(name)

    def topic_on(self, stream: MysqlBroker, name: str) -> Topic:
        """Return a topic as one server has it, with a pointer if another one keeps it."""
        (server,) = (one for one, broker in self.servers.items() if broker is stream)
        if ticks() >= self._rows_until.get((server, name), 0.0):
            if self._row(server, name) is None and (holder := self.locate(name)[-1]) != server:
                self.point(server, name, holder)
            self._rows_until[server, name] = ticks() + _FRESH_S
        return stream.topic(name)

    def group(self, topic: Topic, name: str, declared: Filter | None = None, order: Order = Order.NONE) -> Group:
        """Return a group of a topic, created on first use if that is allowed."""
        return self.kept_by(topic.name).group(topic, name, declared, order)

    def send(self, topic: str, messages: Sequence[NewMessage], transaction: Any = None) -> list[Receipt]:
        """Store messages where their topic is kept; in a caller's transaction, in the outbox of its server."""
        if transaction is not None:
            return self._send_within(topic, messages, transaction)
        sent: dict[bytes, Receipt] = {}
        until, moved = ticks() + self._settings.publish_timeout_s, False
        while True:
            chain = self.locate(topic)
            for name in chain[:-1]:
                sent |= self._sent_to(name, topic, messages, moved)
                sent |= self._held_on(name, topic, messages)
            try:
                return _send_rest(self.server(chain[-1]), topic, messages, sent)
            except (TopicMoved, TopicDeleted):
                if ticks() > until:
                    raise
                self.forget(topic)
                moved = True
                time.sleep(_TURN_S)

    def _sent_to(self, name: str, topic: str, messages: Sequence[NewMessage], moved: bool) -> dict[bytes, Receipt]:
        """Find messages that are where the topic was before: sent while it was moved, or under ids of the sender's own.

        Nothing arrives there any more: once its partitions are seen closed, all that was committed is found.
        """
        uids = [message.uid for message in messages if moved or message.has_own_uid]
        if not uids:
            return {}
        broker = self.server(name)
        found = self._row(name, topic)
        if found is None:
            return {}
        kept = broker.database.call(lambda session: outbox.find_kept(session, found.id, uids))
        return {uid: Receipt(uid_text(uid), topic, None, None, created=moved) for uid in kept}

    def _held_on(self, name: str, topic: str, messages: Sequence[NewMessage]) -> dict[bytes, Receipt]:
        """Find messages that are duplicates of what was sent where the topic was before.

        No key is taken there any more: a sender that would locks the topic's row first, and finds that it has moved.
        """
        keys = [message.dedup_key for message in messages if message.dedup_key is not None]
        found = self._row(name, topic) if keys else None
        if found is None:
            return {}
        topic_id = found.id
        held = self.server(name).database.call(lambda session: dedup.find_held(session, topic_id, keys))
        return {
            message.uid: Receipt(uid_text(held[message.dedup_key]), topic, None, None, created=False)
            for message in messages
            if message.dedup_key in held and held[message.dedup_key] != message.uid
        }

    def _send_within(self, topic: str, messages: Sequence[NewMessage], transaction: Any) -> list[Receipt]:
        name = self.home_of(transaction)
        broker = self.server(name)
        found = self.topic_on(broker, topic)
        if found.server is not None and any(one.dedup_key is not None for one in messages):
            raise TopicRuleError(
                f"topic {topic!r} is kept on the server {found.server!r}, the transaction runs on {name!r}, and a "
                "dedup_key counts on one server only; nothing was sent (send it after the commit, or use a uid)"
            )
        held: dict[bytes, Receipt] = {}
        if any(one.dedup_key is not None or one.has_own_uid for one in messages):
            for former in self.locate(topic)[:-1]:
                held |= self._sent_to(former, topic, messages, False)
                held |= self._held_on(former, topic, messages)
        return _send_rest(broker, topic, messages, held, transaction)

    def home_of(self, transaction: Any) -> str:
        """Return the server of an open transaction, which is asked once.

        Raises:
            ConfigError: it is on none of them.
        """
        with contextlib.suppress(TypeError, KeyError):  # of a type without weak references
            return self._homes[transaction]
        name = self._ask_home(transaction)
        with contextlib.suppress(TypeError):
            self._homes[transaction] = name
        return name

    def _ask_home(self, transaction: Any) -> str:
        for name in dict.fromkeys([self._home_name, *self.servers]):
            broker = self.servers[name]
            try:
                rows = foreign.run(transaction, stream_id_text(broker.database.name))
            except EmsError:
                raise
            except Exception as error:
                if code_of(getattr(error, "orig", error)) not in _NOT_HERE:
                    raise
                continue
            if rows and bytes(rows[0][0]).hex() == broker.stream_id:
                return name
        fix = f"its connection leads to none of the servers {', '.join(self.servers)}; give one of theirs"
        raise ConfigError([Problem("transaction", f"a {type(transaction).__name__}", fix)])

    def transaction(self, sender: Sender) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction on the home server that commits SQL and messages together."""
        return self.home.transaction(sender)

    def cancel(self, message_id: str, topic: str | None) -> bool:
        """Cancel a message, on the server that has it."""
        names = tuple(self.servers) if topic is None else self.locate(topic)
        for name in reversed(names):
            try:
                return self.server(name).cancel(message_id, topic)
            except UnknownMessage:
                if name == names[0]:
                    raise
        raise AssertionError("there is always a server")

    def results(self, topics: Sequence[str], group: str | None) -> ResultBackend:
        """Return the results of calls, which are where their topics are, or were when the calls ran."""
        places: dict[str, list[str]] = {}
        for topic in topics:
            for name in self.locate(topic):
                places.setdefault(name, []).append(topic)
        return PlacedResults([self.server(name).results(there, group) for name, there in places.items()])

    def keys(self, backend: str) -> KeyBackend | None:
        """Return the idempotency keys of the main server: an effect may be begun on any."""
        return self.servers[MAIN].keys(backend)

    @property
    def schedules(self) -> PlacedSchedules:
        """The schedules that users create at run time, each where its topic is kept."""
        return PlacedSchedules(self)

    def now(self) -> datetime:
        """Return the home server's time, in UTC."""
        return self.home.now()

    def channel(self, *, patient: bool = True) -> MysqlChannel:
        """Open a connection to the home server for a thread that consumes."""
        return self.home.channel(patient=patient)

    def close(self) -> None:
        """Close the connections of all servers."""
        for broker in self.servers.values():
            broker.close()


def _send_rest(
    broker: MysqlBroker,
    topic: str,
    messages: Sequence[NewMessage],
    sent: Mapping[bytes, Receipt],
    transaction: Any = None,
) -> list[Receipt]:
    """Send the messages that are not sent yet, and return the receipts of all."""
    todo = [message for message in messages if message.uid not in sent]
    receipts = iter(broker.send(topic, todo, transaction) if todo else ())
    return [sent[message.uid] if message.uid in sent else next(receipts) for message in messages]


class PlacedResults:
    """Results on several servers; see :class:`ResultBackend`."""

    patience_s: float | None = None

    def __init__(self, backends: Sequence[ResultBackend]) -> None:
        self._backends = backends

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist, by uid."""
        found: dict[bytes, ResultRow] = {}
        for backend in self._backends:
            found |= backend.find([uid for uid in uids if uid not in found])
        return found

    def find_buried(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the dead letters among them, and those that were cancelled."""
        found: dict[bytes, ResultRow] = {}
        for backend in self._backends:
            found |= backend.find_buried([uid for uid in uids if uid not in found])
        return found

    def find_progress(self, uids: Sequence[bytes]) -> dict[bytes, Progress]:
        """Return the progress of those that run."""
        found: dict[bytes, Progress] = {}
        for backend in self._backends:
            found |= backend.find_progress([uid for uid in uids if uid not in found])
        return found

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results."""
        for backend in self._backends:
            backend.forget(uids)


class PlacedSchedules:
    """Schedules on several servers, each on that of its topic; see :class:`ScheduleStore`."""

    def __init__(self, broker: PlacedBroker) -> None:
        self._broker = broker

    def put(self, declared: Declared, transaction: Any = None) -> ScheduleRow:
        """Create a schedule, or replace the one of that name."""
        there = self._broker.locate(declared.topic)[-1]
        if transaction is not None and (here := self._broker.home_of(transaction)) != there:
            fix = (
                f"topic {declared.topic!r} is kept on the server {there!r}, the transaction runs on {here!r}; "
                f"add it within app.transaction(server={there!r}), or after the commit"
            )
            raise ConfigError([Problem("schedule", repr(declared.name), fix)])
        return self._broker.server(there).schedules.put(declared, transaction)

    def change(self, name: str, change: Change, transaction: Any = None) -> ScheduleRow:
        """Change a schedule that a user has created."""
        return self._first(lambda store: store.change(name, change, transaction), transaction)

    def pause(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Keep a schedule from being fired."""
        return self._first(lambda store: store.pause(name, transaction), transaction)

    def resume(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Let a schedule be fired from its next slot on."""
        return self._first(lambda store: store.resume(name, transaction), transaction)

    def delete(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Delete a schedule that a user has created."""
        return self._first(lambda store: store.delete(name, transaction), transaction)

    def page(self, prefix: str, tag: bytes | None, after: str, limit: int) -> list[ScheduleRow]:
        """Return schedules by name."""
        pages = [broker.schedules.page(prefix, tag, after, limit) for broker in self._broker.servers.values()]
        return sorted((row for page in pages for row in page), key=lambda row: row.name)[:limit]

    def _first(self, do: Callable[[MysqlSchedules], ScheduleRow], transaction: Any) -> ScheduleRow:
        """Change a schedule on the server that has it; with a transaction, on the server of that."""
        names = [*self._broker.servers] if transaction is None else [self._broker.home_of(transaction)]
        for name in names[:-1]:
            with contextlib.suppress(UnknownSchedule):
                return do(self._broker.server(name).schedules)
        return do(self._broker.server(names[-1]).schedules)


def open_broker(settings: Settings, settings_of: Callable[[str], dict[str, Any]]) -> Broker:
    """Return the broker of an app: of several servers, or of one.

    Args:
        settings_of: returns the settings with which a topic is created.
    """
    return PlacedBroker(settings, settings_of) if settings.servers else MysqlBroker(settings, settings_of)
