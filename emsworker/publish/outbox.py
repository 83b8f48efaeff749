"""The outbox: messages that are sent in a transaction or for later are stored first, and then moved into the stream.

A transaction that sends only inserts rows of its own: it takes no offset and no lock that others need, however long it
stays open. After its commit the messages are moved at once: by this process if it knows of the commit (a transaction of
:meth:`Ems.transaction`), otherwise by this process or the beat, whichever looks first.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from emsworker.core.errors import (
    AssertionBroken,
    Conflict,
    ConnectionLost,
    MessageTooLarge,
    SoftTimeLimitExceeded,
    StoreError,
    StoreUnavailable,
    TopicDeleted,
    TransactionEnded,
    TransactionGone,
    TransactionRolledBack,
    is_known,
)
from emsworker.core.ids import parse_uid, uid_text
from emsworker.core.large import LargeMessage
from emsworker.core.model import NewMessage, Receipt, Topic
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.reconnect import until_connected
from emsworker.core.servers import KeptTopic
from emsworker.publish.transaction import OutboxTransaction, Sender
from emsworker.store.engine import foreign
from emsworker.store.engine.database import Database
from emsworker.store.engine.errors import translate
from emsworker.store.engine.session import Session
from emsworker.store.stream import dedup, forwards, outbox
from emsworker.store.stream import large as large_bodies
from emsworker.store.stream.messages import row_bytes

log = logging.getLogger(__name__)

_RELAY_BATCH = 500
_ROWS, _BYTES, _PACKET_SLACK = 500, 2 << 20, 8192
_ANY_SERVER_BYTES = 256 << 10  # every server takes this much, so it need not be asked
_LOOK_S, _LIVELY_S = 0.02, 2.0
_LOOK_UP_S = 10.0


class Outbox:
    """Stores messages in the outbox and moves them into the stream; thread-safe.

    Args:
        database: the stream.
        producer_id: kept with every message.
        notify: notifies the idle workers of topics.
        timeout_s: seconds to wait for a connection.
    """

    def __init__(
        self, database: Database, producer_id: str, notify: Callable[[Iterable[int]], None], timeout_s: float
    ) -> None:
        self._database = database
        self._timeout_s = timeout_s
        self._producer_id = producer_id
        self.notify = notify
        self._idle: deque[Session] = deque()
        self._mover = _Mover(database, notify)

    def send(
        self,
        topic: Topic,
        messages: Sequence[NewMessage],
        transaction: Any = None,
        large: Sequence[LargeMessage] = (),
    ) -> list[Receipt]:
        """Store messages, in a transaction of their own or in the caller's.

        Args:
            transaction: what :func:`emsworker.store.engine.foreign.run` takes.
            large: those among them whose bodies are kept beside them, and written in the same transaction.

        Raises:
            TopicDeleted: the topic was deleted meanwhile.
        """
        try:
            return self._send(topic, messages, transaction, large)
        except AssertionBroken as error:
            raise TopicDeleted(topic.name) from error

    def _send(
        self, topic: Topic, messages: Sequence[NewMessage], transaction: Any, large: Sequence[LargeMessage]
    ) -> list[Receipt]:
        def write(run: dedup.Run) -> list[Receipt]:
            receipts = self._write(run, topic, messages)
            if large:
                created = {receipt.id for receipt in receipts if receipt.created}
                self._write_bodies(run, topic.id, [one for one in large if uid_text(one.uid) in created])
            return receipts

        if transaction is None:
            receipts = self._database.call(lambda s: s.transaction(lambda s: write(lambda text: s.rows(text))))
            if not all(one.is_delayed for one in messages):
                self.move(self._database.thread_session(), [topic])
            return receipts
        receipts = write(partial(foreign.run, transaction))
        if isinstance(transaction, OutboxTransaction):
            transaction.written += [(topic, receipt) for receipt in receipts]
        elif not foreign.when_committed(transaction, self._mover.wake):
            self._mover.wake()
        return receipts

    def send_together(self, places: Sequence[tuple[Topic, NewMessage]], transaction: Any = None) -> None:
        """Store a message for each of several topics, in one transaction of their own or in the caller's.

        Args:
            transaction: what :func:`emsworker.store.engine.foreign.run` takes.

        Raises:
            TopicDeleted: a topic was deleted meanwhile.
        """

        def write(session: Session) -> None:
            self._write_all(lambda text: session.rows(text), places)

        try:
            if transaction is None:
                self._database.call(lambda session: session.transaction(write))
            else:
                self._write_all(partial(foreign.run, transaction), places)
                if not foreign.when_committed(transaction, self._mover.wake):
                    self._mover.wake()
        except AssertionBroken as error:
            raise TopicDeleted(places[0][0].name) from error

    def move_after(self, transaction: Any = None) -> None:
        """Move what the caller's statements have written to the outbox, once it is committed: at once without one."""
        if transaction is None:
            self.move(self._database.thread_session())
        elif isinstance(transaction, OutboxTransaction):
            transaction.fills_outbox = True
        elif not foreign.when_committed(transaction, self._mover.wake):
            self._mover.wake()

    def _write_all(self, run: dedup.Run, places: Sequence[tuple[Topic, NewMessage]]) -> None:
        for topic, message in places:
            self._write(run, topic, [message])

    def _write(self, run: dedup.Run, topic: Topic, messages: Sequence[NewMessage]) -> list[Receipt]:
        """Take the dedup keys and store the messages that are not duplicates; runs inside a transaction."""
        taken: dict[int, bytes] = {}
        wanted = [(one.dedup_key, number) for number, one in enumerate(messages) if one.dedup_key is not None]
        for key, number in sorted(wanted):  # one order, against deadlocks
            message = messages[number]
            place = dedup.DedupKey(topic.id, key, message.dedup_window_s)
            holder = dedup.take_key(run, self._database.name, place, message.uid, self._is_unfinished)
            if holder is not None:
                taken[number] = holder
        new = [message for number, message in enumerate(messages) if number not in taken]
        for message in new:
            message.producer_id = self._producer_id
        for part in self._parts(new):
            run(outbox.insert_text(self._database.name, topic.id, part))
        return [
            Receipt(uid_text(taken.get(number, message.uid)), topic.name, None, None, created=number not in taken)
            for number, message in enumerate(messages)
        ]

    def _write_bodies(self, run: dedup.Run, topic_id: int, messages: Iterable[LargeMessage]) -> None:
        for message in messages:
            for text in large_bodies.insert_texts(self._database.name, topic_id, message):
                run(text)

    def accept(self, kept: KeptTopic, messages: Sequence[NewMessage]) -> bool:
        """Store messages that another server has had in its outbox, each once; see :func:`forwards.accept`."""
        accepted = self._database.call(lambda session: forwards.accept(session, kept, messages))
        if accepted:
            self.move(self._database.thread_session())
        return accepted

    def _parts(self, messages: Sequence[NewMessage]) -> list[list[NewMessage]]:
        """Split messages into parts that the server takes in one statement each, also over a caller's connection.

        Raises:
            MessageTooLarge: the statement of a message, or the relay's that would move it, is too large; nothing was
                sent.
        """
        weights = [row_bytes(message) for message in messages]
        most = _ANY_SERVER_BYTES if sum(weights) <= _ANY_SERVER_BYTES else self._max_packet
        parts: list[list[NewMessage]] = []
        size = math.inf
        for message, weight in zip(messages, weights, strict=True):
            if weight > most:
                raise MessageTooLarge(
                    f"a body of {len(message.body)} bytes makes a statement of {weight}; the server takes {most} "
                    "(max_allowed_packet): raise that, or send a reference instead of the data"
                )
            if size + weight > min(_BYTES, most) or len(parts[-1]) == _ROWS:
                parts.append([])
                size = 0
            parts[-1].append(message)
            size += weight
        return parts

    @forks.lazy
    def _max_packet(self) -> int:
        with self._borrowed() as session:  # the thread's own session may be in a transaction
            return until_connected(lambda: session.most_bytes, _LOOK_UP_S) - _PACKET_SLACK

    def _is_unfinished(self, topic_id: int, uid: bytes) -> bool:
        with self._borrowed() as session:  # the thread's own session may be in the transaction that asks
            return until_connected(lambda: dedup.is_unfinished(session, topic_id, uid), _LOOK_UP_S)

    @contextlib.contextmanager
    def transaction(self, sender: Sender) -> Iterator[OutboxTransaction]:
        """Open a transaction; see :meth:`Ems.transaction`."""
        with self._borrowed() as session:
            try:
                with session.lend() as connection:
                    transaction = OutboxTransaction(connection, sender)
                    yield transaction
                    if connection.inherited:
                        raise StoreUnavailable(
                            "this process was forked inside of the transaction, which its parent ends; nothing was "
                            "committed here"
                        )
            except SoftTimeLimitExceeded:
                session.drop()  # raised from outside, it may have cut a packet in two; the server rolls back by itself
                raise
            except Exception as error:
                lost = isinstance(translate(error), ConnectionLost) and not session.alive
                with contextlib.suppress(ConnectionLost):
                    session.rollback()
                if lost:
                    raise StoreUnavailable(
                        f"the connection was lost in a transaction; nothing was kept: {error}"
                    ) from error
                raise
            except BaseException:
                session.drop()  # likewise for an exception of a signal handler
                raise
            self._commit(session, transaction)
            if transaction.fills_outbox:
                self.move(session)
            elif transaction.written:
                self.move(session, {topic.id: topic for topic, _ in transaction.written}.values())
        sender.after_commit(transaction.sent)

    def _commit(self, session: Session, transaction: OutboxTransaction) -> None:
        """Commit. If the answer is lost, the messages, if there are any, show whether the commit took effect."""
        if (conflict := session.rolled_back) is not None:
            session.rollback()
            raise _rolled_back(conflict)
        packet = session.packet()
        packet.take_back()
        packet.commit_lent()
        try:
            packet.send()
        except Conflict as error:
            raise _rolled_back(error) from error
        except TransactionGone:
            raise TransactionEnded(
                "the block ended its transaction (COMMIT, ROLLBACK or DDL): what it did before that may have been "
                "kept, what it did after that was not"
            ) from None
        except ConnectionLost as error:
            if not self._landed(transaction):
                raise StoreUnavailable(
                    f"the connection was lost in COMMIT ({error}); the transaction may or may not have been kept: "
                    "look at its tables before doing it again"
                ) from error

    def _landed(self, transaction: OutboxTransaction) -> bool:
        created = [(topic, receipt) for topic, receipt in transaction.written if receipt.created]
        if not created:
            return False
        topic, receipt = created[0]
        uid = parse_uid(receipt.id)
        return bool(self._database.call(lambda session: outbox.find_kept(session, topic.id, [uid])))

    def move(self, session: Session, topics: Iterable[Topic] | None = None) -> None:
        """Move what is committed and due, of some topics or of all; what cannot be moved now is left to the beat."""
        try:
            self.notify(outbox.relay_due(session, _RELAY_BATCH, topics=topics).topic_ids)
        except StoreError as error:  # a producer may lack the privilege
            log.info("the beat moves what was committed just now: %s", error)

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[Session]:
        """Yield a connected session; an idle one is checked first, while there is nothing yet that could be lost."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._database.session()
        try:
            session.leave_unfinished()
            until_connected(session.check_idle, self._timeout_s)
            yield session
        finally:
            self._idle.append(session)

    def close(self) -> None:
        """End the background thread and close the connections."""
        self._mover.stop()
        while self._idle:
            self._idle.pop().close()


class _Mover:
    """A thread that moves messages for two seconds after a send in a transaction that the caller commits."""

    def __init__(self, database: Database, notify: Callable[[Iterable[int]], None]) -> None:
        self._database = database
        self._notify = notify
        self._lock = forks.Lock()
        self._until = 0.0
        self._stopped = forks.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def wake(self) -> None:
        """Look for committed messages from now on."""
        with self._lock:
            self._until = ticks() + _LIVELY_S
            if self._thread is None or self._pid != os.getpid():
                self._stopped.clear()
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name="ems-outbox", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        with self._database.session() as session:
            while self._goes_on():
                try:
                    moved = outbox.relay_due(session, _RELAY_BATCH).topic_ids
                except Exception as error:  # a thread that died here would never be started again
                    known = is_known(error)
                    level = logging.INFO if known else logging.WARNING
                    log.log(level, "the outbox could not move messages; the beat will: %s", error, exc_info=not known)
                else:
                    if moved:
                        self._notify(moved)
                self._stopped.wait(_LOOK_S)

    def _goes_on(self) -> bool:
        with self._lock:
            goes_on = ticks() < self._until and not self._stopped.is_set()
            if not goes_on and self._thread is threading.current_thread():
                self._thread = None
            return goes_on

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        with self._lock:
            thread = self._thread if self._pid == os.getpid() else None
        if thread is not None:
            thread.join(5)


def _rolled_back(conflict: Conflict) -> TransactionRolledBack:
    return TransactionRolledBack(
        f"the server rolled this transaction back ({conflict}); nothing of it was kept: run the block again"
    )
