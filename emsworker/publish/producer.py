"""The producer: commits concurrent sends of a process together.

Group commit: a thread that arrives while none is sending becomes the leader and sends what is queued; threads that
arrive meanwhile queue and wait. When the leader's own message is confirmed, the first in the queue becomes the leader.
No thread waits on a timer, and a single send pays nothing for batching.

If the answer of a commit is lost, the messages are looked up by uid before they are sent again. If the first attempt
lands after the look-up, the unique uid lets only one of the two stand.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TypeVar

from emsworker.core.errors import (
    AssertionBroken,
    Conflict,
    ConnectionLost,
    Duplicate,
    EmsError,
    MessageTooLarge,
    PublishTimeout,
    StoreUnavailable,
    TopicDeleted,
)
from emsworker.core.model import NewMessage, Receipt, Topic
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.reconnect import until_connected
from emsworker.publish.allocators import Allocator
from emsworker.publish.notifier import Notifier
from emsworker.store.engine.session import Session
from emsworker.store.stream.messages import PartitionBatch, Placement, find_uids, note_end, publish, row_bytes

T = TypeVar("T")

_MAX_ROWS = 1000
_MAX_BYTES = 8 << 20
_PACKET_SLACK = 4096
_LOOK_S = 0.25  # how often one that waits looks if there is still a leader
_INTERRUPTED = "the sending thread was interrupted; the message may or may not have landed"


@dataclass(slots=True, eq=False)
class _Ticket:
    """A place in the queue of those who send: the messages that one caller waits for, sent in order."""

    messages: Sequence[NewMessage]
    done: bool = False
    leads: bool = False
    error: BaseException | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)  # noqa: TID251  # goes with its queue

    def __post_init__(self) -> None:
        self.turn.acquire()

    def wake(self) -> None:
        """Let its thread go on; if two threads lead for a moment (see ``_wait``), both may do so."""
        with contextlib.suppress(RuntimeError):  # it is awake already
            self.turn.release()

    def end(self, of_flush: BaseException | None) -> None:
        """Note its end, with the error of its own messages, not of another caller's in the same flush."""
        own = next((message.error for message in self.messages if message.error is not None), None)
        self.error = own or (of_flush if any(message.is_open for message in self.messages) else None)
        self.done = True


class Producer:
    """Sends messages over one session; safe for any number of threads.

    Args:
        session: used by one leader at a time.
        allocator: hands out offsets.
        notifier: notifies idle workers.
        producer_id: kept with every message.
        timeout_s: seconds that a send may take, including reconnects.
        max_packet: the server's max_allowed_packet, in bytes.
    """

    def __init__(
        self,
        session: Session,
        allocator: Allocator,
        notifier: Notifier,
        producer_id: str,
        timeout_s: float,
        max_packet: int,
    ) -> None:
        self._session = session
        self._allocator = allocator
        self._notifier = notifier
        self._producer_id = producer_id
        self._timeout_s = timeout_s
        self._mutex = forks.Lock()
        self._queue: list[_Ticket] = []
        self._busy = False
        self._leading = forks.Lock()  # held around every use of the session
        self._max_packet = max_packet
        self._max_bytes = min(_MAX_BYTES, max_packet // 2)
        self._spread = itertools.count()

    def send(self, topic: Topic, messages: Sequence[NewMessage]) -> list[Receipt]:
        """Send messages and return after their commit.

        Args:
            topic: the topic, whose rule and size limit have been checked.
            messages: sent in this order, as far as they share a partition.

        Raises:
            MessageTooLarge: the server would not take a packet of that size; nothing was sent.
            PublishTimeout: no confirmation within the timeout; the messages may or may not have been committed.
            TopicDeleted: the topic was deleted meanwhile.
        """
        size = 0
        for message in messages:
            message.topic, message.producer_id = topic, self._producer_id
            message.receipt, message.error, message.in_doubt = None, None, False
            size += self._size_of(message)
        if size <= self._max_bytes and len(messages) <= _MAX_ROWS:
            self._send_together(messages)
        else:
            for part in self._packets(messages):
                self._send_together(part)
        return [message.receipt for message in messages if message.receipt is not None]

    def send_together(self, places: Sequence[tuple[Topic, NewMessage]]) -> list[Receipt]:
        """Send a message to each of several topics, all in one transaction, and return after their commit.

        Raises:
            EmsError: as :meth:`send`; with ``TopicDeleted`` the other topics may have got theirs.
        """
        messages = [message for _, message in places]
        for topic, message in places:
            message.topic, message.producer_id = topic, self._producer_id
            message.receipt, message.error, message.in_doubt = None, None, False
            self._size_of(message)
        self._send_together(messages)
        return [message.receipt for message in messages if message.receipt is not None]

    def _size_of(self, message: NewMessage) -> int:
        size = row_bytes(message)
        if size > self._max_packet - _PACKET_SLACK:
            raise MessageTooLarge(
                f"a body of {len(message.body)} bytes makes a packet of {size}; the server takes {self._max_packet} "
                "(max_allowed_packet): raise that, or send a reference instead of the data"
            )
        return size

    def _packets(self, messages: Sequence[NewMessage]) -> Iterator[list[NewMessage]]:
        """Split messages into parts that the server takes as one packet each."""
        part: list[NewMessage] = []
        size = 0
        for message in messages:
            if part and (len(part) == _MAX_ROWS or size + row_bytes(message) > self._max_bytes):
                yield part
                part, size = [], 0
            part.append(message)
            size += row_bytes(message)
        if part:
            yield part

    # -- group commit --------------------------------------------------------------------------------------------------

    def _send_together(self, messages: Sequence[NewMessage]) -> None:
        """Send the messages of one packet: at once if no thread is sending, else with the next one that does."""
        leads = False
        try:
            with self._mutex:
                leads = not self._busy
                self._busy = True
            if leads:  # then nobody is queued: no ticket is needed
                with self._leading:
                    self._commit(messages)
        finally:
            if leads:
                self._hand_over()
        if not leads:
            self._submit(_Ticket(messages))
        elif (error := next((one.error for one in messages if one.error is not None), None)) is not None:
            raise error

    def _submit(self, ticket: _Ticket) -> None:
        try:
            with self._mutex:
                self._queue.append(ticket)
                ticket.leads = not self._busy
                self._busy = True
            if not ticket.leads:
                self._wait(ticket)
            while ticket.leads and not ticket.done:
                self._lead(ticket)
        finally:
            self._leave(ticket)
        if ticket.error is not None:
            raise ticket.error

    def _wait(self, ticket: _Ticket) -> None:
        """Wait until a ticket is done or leads.

        A leader that an exception from outside has ended may have told nobody. Its lock is free, whatever has come.
        """
        while not ticket.turn.acquire(timeout=_LOOK_S):
            with self._mutex:
                if ticket.done or ticket.leads:
                    return
                if self._leading.locked():
                    continue
                if ticket in self._queue:
                    ticket.leads = True  # if another one does so as well, the two take turns
                else:
                    ticket.end(EmsError(_INTERRUPTED))
                return

    def _leave(self, ticket: _Ticket) -> None:
        """Unqueue a ticket and pass leadership on: an exception from outside may end a thread that queues or leads."""
        if not ticket.done:
            with self._mutex:
                if ticket in self._queue:
                    self._queue.remove(ticket)
        self._pass_on(ticket)

    def _lead(self, own: _Ticket) -> None:
        tickets: list[_Ticket] = []
        try:
            with self._leading:
                self._take(tickets)
                self._serve(tickets, own)
        finally:
            if own.done:
                self._pass_on(own)  # first: the other threads, once awake, would delay the next leader
            for ticket in tickets:
                if ticket.done and ticket is not own:
                    ticket.wake()

    def _take(self, tickets: list[_Ticket]) -> None:
        with self._mutex:
            rows = size = count = 0
            for ticket in self._queue:
                rows += len(ticket.messages)
                size += sum(map(row_bytes, ticket.messages))
                if count and (rows > _MAX_ROWS or size > self._max_bytes):
                    break
                count += 1
            tickets += self._queue[:count]
            del self._queue[:count]

    def _serve(self, tickets: list[_Ticket], own: _Ticket) -> None:
        try:
            self._commit([message for ticket in tickets for message in ticket.messages])
            for ticket in tickets:
                ticket.end(None)
        except EmsError as error:
            for ticket in tickets:
                ticket.end(error)
        except BaseException:  # from outside, and this thread's own: the next leader looks what became of the others
            with self._mutex:
                self._queue[:0] = [one for one in tickets if one is not own and not one.done and one not in self._queue]
            for ticket in tickets:
                for message in ticket.messages:
                    message.in_doubt |= message.is_open
            raise

    def _pass_on(self, ticket: _Ticket) -> None:
        """Make the first in the queue the leader, if this ticket was."""
        if ticket.leads:
            ticket.leads = False
            self._hand_over()

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._queue:
                self._busy = False
                return
            heir = self._queue[0]
            heir.leads = True
        heir.wake()

    # -- one flush -----------------------------------------------------------------------------------------------------

    def _commit(self, messages: Sequence[NewMessage]) -> None:
        for wave in _without_repeats(messages) if len(messages) > 1 else (messages,):
            self._publish(wave)
        if self._notifier.has_listeners:
            self._notifier.notify_at(_places(messages))

    def _publish(self, messages: Sequence[NewMessage]) -> None:
        """Place and insert the messages until none is open, and handle what prevented it."""
        deadline = ticks() + self._timeout_s
        obstacle: Exception | None = None
        todo = messages
        while todo:
            if ticks() > deadline:
                raise PublishTimeout(f"not confirmed within {self._timeout_s:g} s: {obstacle}") from obstacle
            batches = self._batches(todo)
            if self._notifier.may_announce:
                self._session.when_sent = partial(self._announce, batches)
            try:
                bases = publish(self._session, batches, deadline)
            except (Conflict, ConnectionLost, Duplicate, AssertionBroken) as error:
                self._settle(error, todo, batches, deadline)
                obstacle = error
                todo = [message for message in todo if message.is_open]
                continue
            finally:
                self._session.when_sent = None
            for batch, base in zip(batches, bases, strict=True):
                self._confirm(batch, base)
            return

    def _announce(self, batches: Sequence[PartitionBatch]) -> None:
        self._session.when_sent = None  # once
        urgent = [one for one in batches if any(message.is_urgent for message in one.messages)]
        self._notifier.announce([(one.topic_id, one.partition) for one in urgent])

    def _confirm(self, batch: PartitionBatch, base: int) -> None:
        self._allocator.landed(batch.topic_id, batch.partition, base, len(batch.messages))
        for offset, message in enumerate(batch.messages, base):
            message.confirm(_topic_of(message).name, batch.partition, offset, created=True)

    def _settle(
        self, error: Exception, messages: Sequence[NewMessage], batches: list[PartitionBatch], deadline: float
    ) -> None:
        """Find out what a packet that failed has done, and prepare the next one."""
        if isinstance(error, Conflict):  # rolled back, so there is nothing to look up
            return
        if isinstance(error, ConnectionLost):
            self._find_landed(messages, deadline, in_doubt=True)
            # The server that answers now may be a former replica whose partition ends elsewhere.
        elif isinstance(error, Duplicate):
            if self._find_landed(messages, deadline, in_doubt=False):
                return
        else:
            self._refuse_deleted(batches)
        self._reseed(batches)

    def _batches(self, messages: Sequence[NewMessage]) -> list[PartitionBatch]:
        turn = next(self._spread)  # keyless messages of a flush stay together; the next flush takes the next partition
        if len(messages) == 1:  # the usual case
            topic = _topic_of(messages[0])
            partition = messages[0].place(topic.partitions, turn)
            return [PartitionBatch(topic.id, partition, messages, self._placement(topic.id, partition, 1))]
        groups: dict[tuple[int, int], list[NewMessage]] = {}
        for message in messages:
            topic = _topic_of(message)
            groups.setdefault((topic.id, message.place(topic.partitions, turn)), []).append(message)
        return [
            PartitionBatch(*place, members, self._placement(*place, len(members)))
            for place, members in (sorted(groups.items(), key=itemgetter(0)) if len(groups) > 1 else groups.items())
        ]

    def _placement(self, topic_id: int, partition: int, count: int) -> Placement:
        try:
            return self._allocator.place(self._session, topic_id, partition, count)
        except (ConnectionLost, Conflict):
            return self._patiently(partial(self._allocator.place, self._session, topic_id, partition, count))

    def _patiently(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        try:
            return until_connected(work, self._timeout_s if timeout_s is None else timeout_s)
        except StoreUnavailable as error:
            text = f"not confirmed within {self._timeout_s:g} s, the messages may or may not have landed: {error}"
            raise PublishTimeout(text) from error.__cause__

    def _find_landed(self, messages: Sequence[NewMessage], deadline: float, *, in_doubt: bool) -> bool:
        """Confirm what is in the stream already: by a commit whose answer was lost, or another send of the same id."""
        found_any = False
        by_topic: dict[int, dict[bytes, NewMessage]] = {}
        for message in messages:
            by_topic.setdefault(_topic_of(message).id, {})[message.uid] = message
        for topic_id, members in by_topic.items():
            look = partial(find_uids, self._session, topic_id, list(members))
            for uid, (partition, offset) in self._patiently(look, max(deadline - ticks(), 0.1)).items():
                found = members[uid]
                found.confirm(_topic_of(found).name, partition, offset, created=in_doubt or found.in_doubt)
                found_any = True
        for message in messages:
            message.in_doubt |= in_doubt
        return found_any

    def _reseed(self, batches: list[PartitionBatch]) -> None:
        for batch in batches:
            self._patiently(partial(self._allocator.reseed, self._session, batch.topic_id, batch.partition))

    def _refuse_deleted(self, batches: list[PartitionBatch]) -> None:
        """Fail the messages whose partition is gone.

        An offset below the log start offset is no error, nor one far above a counter that nobody has raised for long.
        """
        for batch in batches:
            if self._patiently(partial(note_end, self._session, batch.topic_id, batch.partition)) is None:
                for message in batch.messages:
                    message.error = TopicDeleted(_topic_of(message).name)

    def close(self) -> None:
        self._session.close()


def _topic_of(message: NewMessage) -> Topic:
    assert message.topic is not None, "set by send"
    return message.topic


def _places(messages: Sequence[NewMessage]) -> dict[int, set[int]]:
    """Return the partitions of each topic in which urgent messages were confirmed."""
    places: dict[int, set[int]] = {}
    for message in messages:
        if message.is_urgent and message.receipt is not None and message.receipt.partition is not None:
            places.setdefault(_topic_of(message).id, set()).add(message.receipt.partition)
    return places


def _without_repeats(messages: Sequence[NewMessage]) -> Iterable[Sequence[NewMessage]]:
    """Yield waves in which no uid occurs twice in a topic, so that the second one finds the first in the stream."""
    wave: list[NewMessage] = []
    later: list[NewMessage] = []
    seen: set[tuple[int, bytes]] = set()
    for message in messages:
        key = (_topic_of(message).id, message.uid)
        (later if key in seen else wave).append(message)
        seen.add(key)
    yield wave
    if later:
        yield from _without_repeats(later)
