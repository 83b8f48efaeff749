"""In-memory replacements for the parts of a stream; :mod:`emsworker.testing` puts them in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from emsworker.core.config import Settings
from emsworker.core.errors import EmsError
from emsworker.core.ids import check_name, uid_text
from emsworker.core.model import Entry, NewMessage, Receipt, Topic, TopicKind, TopicRule
from emsworker.core.priority import PRIORITIES
from emsworker.publish.delivery import DeliveryOptions
from emsworker.publish.outbox import OutboxTransaction, dedup_key_of
from emsworker.publish.transaction import Transaction
from emsworker.store.cluster.once import Begun
from emsworker.store.groups.results import ResultRow
from emsworker.store.stream.dedup import DedupKey
from emsworker.store.stream.outbox import When

if TYPE_CHECKING:
    from emsworker.app import Ems
    from emsworker.publish.catalog import KindOf
    from emsworker.tasks.task import Outgoing

T = TypeVar("T")
Now = Callable[[], datetime]


class MemoryCatalog:
    """A catalog in which every topic exists, and cluster topics have priorities.

    Args:
        kind_of: returns the kind of a topic.
    """

    def __init__(self, settings: Settings, kind_of: KindOf) -> None:
        self._settings = settings
        self._kind_of = kind_of
        self._topics: dict[str, Topic] = {}

    def topic(self, name: str) -> Topic:
        """Return the topic of that name."""
        if name not in self._topics:
            size = self._settings.max_message_bytes
            number = len(self._topics) + 1
            check_name("topic", name)
            kind = self._kind_of(name)
            topic = Topic(number, name, kind, 1, TopicRule.READ_WRITE, size, None)
            levels = len(PRIORITIES) if kind is TopicKind.CLUSTER else 1
            self._topics[name] = replace(topic, priorities=levels)
        return self._topics[name]

    def use(self, name: str, work: Callable[[Topic], T]) -> T:
        """Call ``work`` with the topic of that name, which is never deleted."""
        return work(self.topic(name))


class NoDatabase:
    """A missing database: any use raises an error that says what a test in memory cannot do."""

    def __getattr__(self, name: str) -> Any:
        raise EmsError(
            "the app runs in memory, without a database; use the fixture ems_stream for a test that needs one"
        )


class NoConnection:
    """A missing connection: SQL in a transaction raises an error."""

    def cursor(self, kind: Any = None) -> Any:
        """Raise an error, because there is no database."""
        raise EmsError(
            "this transaction has no database: give the test a connection, app.test(connection=...), "
            "or test it on a real stream with the fixture ems_stream"
        )

    def begin(self) -> None:
        """Do nothing."""

    commit = rollback = begin


class MemoryResults:
    """Results of one test."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._rows: dict[bytes, tuple[ResultRow, datetime]] = {}

    def put(self, row: ResultRow) -> None:
        """Keep a result until it expires."""
        self._rows[row.uid] = row, self._now() + timedelta(seconds=row.ttl_s)

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist and have not expired."""
        now = self._now()
        return {uid: self._rows[uid][0] for uid in uids if uid in self._rows and now < self._rows[uid][1]}

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results before they expire."""
        for uid in uids:
            self._rows.pop(uid, None)


class MemoryKeys:
    """Keys of :meth:`Ems.once`; no process dies here, so a key that has begun is finished or cancelled."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._done_until: dict[bytes, datetime] = {}

    def begin(self, key: bytes, ttl_s: float, running_s: float) -> Begun:
        """Begin an effect, unless it is done."""
        until = self._done_until.get(key)
        return Begun(Entry.DONE if until is not None and self._now() < until else Entry.FIRST, b"")

    def finish(self, key: bytes, token: bytes, ttl_s: float) -> bool:
        """Record that the effect has happened."""
        self._done_until[key] = self._now() + timedelta(seconds=ttl_s)
        return True

    def cancel(self, key: bytes, token: bytes) -> None:
        """Record that the effect has not happened."""
        self._done_until.pop(key, None)


class MemoryStream(Protocol):
    """Interface of the in-memory stream that the outbox uses."""

    @property
    def now(self) -> datetime:
        """Time of the stream, in UTC."""
        ...

    def take(self, topic: Topic, message: NewMessage, due_at: datetime) -> Receipt:
        """Accept a message that is due at ``due_at``."""
        ...

    def settle(self) -> None:
        """Run the accepted messages, if the app is eager."""
        ...

    def is_unfinished(self, topic: str, uid: bytes) -> bool:
        """Return whether a message is not due yet, or a group has not finished it."""
        ...


Place = tuple[str, bytes]
Holder = tuple[bytes, datetime]


@dataclass
class _Held:
    """Messages that an open transaction has sent, and the previous holders of the keys that it took."""

    messages: list[tuple[Topic, NewMessage, datetime]] = field(default_factory=list)
    keys: dict[Place, Holder | None] = field(default_factory=dict)


class MemoryOutbox:
    """Messages that are sent with a transaction, for later, or with a ``dedup_key``.

    Args:
        app: the app that sends them.
        stream: accepts them.
        connection: for the SQL of :meth:`transaction`.
    """

    def __init__(self, app: Ems, stream: MemoryStream, connection: Any) -> None:
        self._app = app
        self._stream = stream
        self._connection = connection
        self._open: dict[Transaction, _Held] = {}
        self._keys: dict[Place, Holder] = {}

    def send(
        self, topic: Topic, outgoing: Sequence[Outgoing], messages: Sequence[NewMessage], delivery: DeliveryOptions
    ) -> list[Receipt]:
        """Accept messages, or hold them until their transaction ends."""
        due_at = self._due_at(delivery.when(self._app.server_time))
        held = None if delivery.transaction is None else self._held_by(delivery.transaction)
        receipts = []
        for one, message in zip(outgoing, messages, strict=True):
            holder = self._take_key(topic.name, dedup_key_of(topic, one), message.uid, held)
            if holder is None and held is not None:
                held.messages.append((topic, message, due_at))
            elif holder is None:
                self._stream.take(topic, message, due_at)
            receipts.append(Receipt(uid_text(holder or message.uid), topic.name, None, None, created=holder is None))
        if isinstance(delivery.transaction, OutboxTransaction):
            delivery.transaction.sent += list(zip(outgoing, receipts, [topic] * len(receipts), strict=True))
        if held is None:
            self._stream.settle()
        return receipts

    def _due_at(self, when: When) -> datetime:
        return when.due_at or self._stream.now + timedelta(seconds=when.delay_s)

    def _held_by(self, transaction: Any) -> _Held:
        held = self._open.get(transaction) if isinstance(transaction, Transaction) else None
        if held is None:
            raise EmsError(
                f"transaction={type(transaction).__name__}: in memory only the open transaction of a handler or of "
                "`with app.transaction() as tx` can send, because nobody tells when another one is committed; "
                "test this on a real stream with the fixture ems_stream"
            )
        return held

    def _take_key(self, topic: str, wanted: DedupKey | None, uid: bytes, held: _Held | None) -> bytes | None:
        """Take a deduplication key, as :func:`emsworker.store.stream.dedup.take_key` does."""
        if wanted is None:
            return None
        place = topic, wanted.key
        holder = self._keys.get(place)
        if holder is not None and (holder[0] == uid or self._is_taken(topic, *holder)):
            return None if holder[0] == uid else holder[0]
        if held is not None:
            held.keys.setdefault(place, holder)
        self._keys[place] = uid, self._stream.now + timedelta(seconds=wanted.window_s)
        return None

    def _is_taken(self, topic: str, uid: bytes, until: datetime) -> bool:
        if self._stream.now < until or self._stream.is_unfinished(topic, uid):
            return True
        return any((place.name, one.uid) == (topic, uid) for h in self._open.values() for place, one, _ in h.messages)

    @contextlib.contextmanager
    def during(self, transaction: Transaction, connection: Any) -> Iterator[None]:
        """Run a transaction: commit at the end or, on any exception, roll back SQL, messages and keys."""
        held = self._open[transaction] = _Held()
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            self._give_back(held.keys)
            connection.rollback()
            raise
        finally:
            del self._open[transaction]
        for topic, message, due_at in held.messages:
            self._stream.take(topic, message, due_at)

    def _give_back(self, keys: Mapping[Place, Holder | None]) -> None:
        for place, holder in keys.items():
            del self._keys[place]
            if holder is not None:
                self._keys[place] = holder

    @contextlib.contextmanager
    def transaction(self) -> Iterator[OutboxTransaction]:
        """Open a transaction; see :meth:`Ems.transaction`."""
        connection = self._connection or NoConnection()
        transaction = OutboxTransaction(connection, self._app)
        with self.during(transaction, connection):
            yield transaction
        self._stream.settle()
        self._app.tell((one for one, _, _ in transaction.sent), (receipt for _, receipt, _ in transaction.sent))
