"""The producer: commits concurrent sends of a process together.

Group commit: a thread that arrives while none is sending becomes the leader and sends what is queued; threads that
arrive meanwhile queue and wait. When the leader's own message is confirmed, the first in the queue becomes the leader.
No thread waits on a timer, and a single send pays nothing for batching.

If the answer of a commit is lost, the messages are looked up by uid before they are sent again. If the first attempt
lands after the look-up, the unique uid lets only one of the two stand.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from emsworker.core.errors import EmsError, MessageTooLarge, PublishTimeout, StoreUnavailable, TopicDeleted
from emsworker.core.ids import uid_text
from emsworker.core.model import NewMessage, Receipt, Topic
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.publish.allocators import Allocator
from emsworker.publish.notifier import Notifier
from emsworker.store.engine.database import until_connected
from emsworker.store.engine.errors import AssertionBroken, Conflict, ConnectionLost, Duplicate
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql
from emsworker.store.stream.messages import PartitionBatch, escape_message, find_uids, next_free_offset, publish

T = TypeVar("T")

_MAX_ROWS = 1000
_MAX_BYTES = 8 << 20
_PACKET_SLACK = 4096


@dataclass(slots=True)
class _Entry:
    """A message that is being sent."""

    topic: Topic
    message: NewMessage
    row: Sql
    receipt: Receipt | None = None
    error: EmsError | None = None
    in_doubt: bool = False

    @property
    def open(self) -> bool:
        """True if it is neither confirmed nor refused."""
        return self.receipt is None and self.error is None

    def confirm(self, partition: int, offset: int, created: bool) -> None:
        self.receipt = Receipt(uid_text(self.message.uid), self.topic.name, partition, offset, created)


@dataclass(slots=True, eq=False)
class _Ticket:
    """The messages that a caller waits for, sent in order."""

    entries: list[_Entry]
    done: bool = False
    leads: bool = False
    error: BaseException | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)  # noqa: TID251  # goes with its queue

    def __post_init__(self) -> None:
        self.turn.acquire()

    def error_of_entries(self, of_flush: BaseException | None) -> BaseException | None:
        """Return the error for the caller: that of its own messages, not of another caller's in the same flush."""
        own = next((entry.error for entry in self.entries if entry.error is not None), None)
        return own or (of_flush if any(entry.open for entry in self.entries) else None)


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
        entries = [_Entry(topic, message, escape_message(message, self._producer_id)) for message in messages]
        self._check_packets(entries)
        for part in self._packets(entries):
            self._submit(_Ticket(part))
        return [entry.receipt for entry in entries if entry.receipt is not None]

    def _check_packets(self, entries: Iterable[_Entry]) -> None:
        for entry in entries:
            if len(entry.row) > self._max_packet - _PACKET_SLACK:
                raise MessageTooLarge(
                    f"a body of {len(entry.message.body)} bytes makes a packet of {len(entry.row)}; "
                    f"the server takes {self._max_packet} "
                    "(max_allowed_packet): raise that, or send a reference instead of the data"
                )

    def _packets(self, entries: list[_Entry]) -> Iterator[list[_Entry]]:
        """Split entries into parts that the server takes as one packet each."""
        part: list[_Entry] = []
        size = 0
        for entry in entries:
            if part and (len(part) == _MAX_ROWS or size + len(entry.row) > self._max_bytes):
                yield part
                part, size = [], 0
            part.append(entry)
            size += len(entry.row)
        if part:
            yield part

    # -- group commit --------------------------------------------------------------------------------------------------

    def _submit(self, ticket: _Ticket) -> None:
        try:
            with self._mutex:
                self._queue.append(ticket)
                ticket.leads = not self._busy
                self._busy = True
            if not ticket.leads:
                ticket.turn.acquire()
            if ticket.leads:
                self._lead(ticket)
        finally:
            self._leave(ticket)
        if ticket.error is not None:
            raise ticket.error

    def _lead(self, own: _Ticket) -> None:
        while not own.done:
            self._serve(self._next_tickets(), own)

    def _leave(self, ticket: _Ticket) -> None:
        """Unqueue a ticket and pass leadership on: an exception from outside may end a thread that queues or leads."""
        if not ticket.done:
            with self._mutex:
                if ticket in self._queue:
                    self._queue.remove(ticket)
        self._pass_on(ticket)

    def _next_tickets(self) -> list[_Ticket]:
        with self._mutex:
            rows = size = count = 0
            for ticket in self._queue:
                rows += len(ticket.entries)
                size += sum(len(entry.row) for entry in ticket.entries)
                if count and (rows > _MAX_ROWS or size > self._max_bytes):
                    break
                count += 1
            taken, self._queue = self._queue[:count], self._queue[count:]
            return taken

    def _serve(self, tickets: list[_Ticket], own: _Ticket) -> None:
        error: BaseException | None = EmsError(
            "the sending thread was interrupted; the message may or may not have landed"
        )
        try:
            self._flush([entry for ticket in tickets for entry in ticket.entries])
            error = None
        except Exception as reason:
            error = reason
        finally:
            for ticket in tickets:
                ticket.done = True
                ticket.error = ticket.error_of_entries(error)
            if own.done:
                self._pass_on(own)  # first: the other threads, once awake, would delay the next leader
            for ticket in tickets:
                if ticket is not own:
                    ticket.turn.release()

    def _pass_on(self, ticket: _Ticket) -> None:
        """Make the first in the queue the leader, if this ticket was."""
        with self._mutex:
            if not ticket.leads:
                return
            ticket.leads = False
            if not self._queue:
                self._busy = False
                return
            heir = self._queue[0]
            heir.leads = True
        heir.turn.release()

    # -- one flush -----------------------------------------------------------------------------------------------------

    def _flush(self, entries: list[_Entry]) -> None:
        for wave in _without_repeats(entries):
            self._publish(wave)
        places: dict[int, set[int]] = {}
        for entry in entries:
            if entry.receipt is not None and entry.receipt.partition is not None:
                places.setdefault(entry.topic.id, set()).add(entry.receipt.partition)
        self._notifier.ring_at(places)

    def _publish(self, entries: list[_Entry]) -> None:
        """Place and insert the entries until none is open, and handle what prevented it."""
        deadline = ticks() + self._timeout_s
        obstacle: Exception | None = None
        while todo := [entry for entry in entries if entry.open]:
            if ticks() > deadline:
                raise PublishTimeout(f"not confirmed within {self._timeout_s:g} s: {obstacle}") from obstacle
            obstacle = self._try_to_publish(todo, deadline)

    def _try_to_publish(self, entries: list[_Entry], deadline: float) -> Exception | None:
        batches = self._batches(entries)
        try:
            bases = publish(self._session, [batch for batch, _ in batches], deadline)
        except Conflict as error:  # rolled back, so there is nothing to look up
            return error
        except ConnectionLost as error:
            self._find_landed(entries, deadline, in_doubt=True)
            self._reseed(batches)  # the server that answers now may be a former replica whose partition ends elsewhere
            return error
        except Duplicate as error:
            if not self._find_landed(entries, deadline, in_doubt=False):
                self._reseed(batches)
            return error
        except AssertionBroken as error:
            self._refuse_deleted(batches)
            self._reseed(batches)
            return error
        for (batch, members), base in zip(batches, bases, strict=True):
            self._allocator.landed(batch.topic_id, batch.partition, base, len(members))
            for number, entry in enumerate(members):
                entry.confirm(batch.partition, base + number, created=True)
        return None

    def _batches(self, entries: list[_Entry]) -> list[tuple[PartitionBatch, list[_Entry]]]:
        turn = next(self._spread)  # keyless messages of a flush stay together; the next flush takes the next partition
        groups: dict[tuple[int, int], list[_Entry]] = {}
        for entry in entries:
            groups.setdefault((entry.topic.id, entry.message.place(entry.topic.partitions, turn)), []).append(entry)
        batches = []
        for (topic_id, partition), members in sorted(groups.items(), key=lambda item: item[0]):
            placement = self._patiently(
                partial(self._allocator.place, self._session, topic_id, partition, len(members))
            )
            batches.append((PartitionBatch(topic_id, partition, [entry.row for entry in members], placement), members))
        return batches

    def _patiently(self, work: Callable[[], T], timeout_s: float | None = None) -> T:
        try:
            return until_connected(work, self._timeout_s if timeout_s is None else timeout_s)
        except StoreUnavailable as error:
            text = f"not confirmed within {self._timeout_s:g} s, the messages may or may not have landed: {error}"
            raise PublishTimeout(text) from error.__cause__

    def _find_landed(self, entries: list[_Entry], deadline: float, *, in_doubt: bool) -> bool:
        """Confirm what is in the stream already: by a commit whose answer was lost, or another send of the same id."""
        found_any = False
        for topic_id in {entry.topic.id for entry in entries}:
            members = {entry.message.uid: entry for entry in entries if entry.topic.id == topic_id}
            look = partial(find_uids, self._session, topic_id, list(members))
            for uid, (partition, offset) in self._patiently(look, max(deadline - ticks(), 0.1)).items():
                members[uid].confirm(partition, offset, created=in_doubt or members[uid].in_doubt)
                found_any = True
        for entry in entries:
            entry.in_doubt |= in_doubt
        return found_any

    def _reseed(self, batches: list[tuple[PartitionBatch, list[_Entry]]]) -> None:
        for batch, _ in batches:
            self._patiently(partial(self._allocator.reseed, self._session, batch.topic_id, batch.partition))

    def _refuse_deleted(self, batches: list[tuple[PartitionBatch, list[_Entry]]]) -> None:
        """Fail the entries whose partition is gone; an offset from Redis below the log start offset is no error."""
        for batch, members in batches:
            if self._patiently(partial(next_free_offset, self._session, batch.topic_id, batch.partition)) is None:
                for entry in members:
                    entry.error = TopicDeleted(entry.topic.name)

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _without_repeats(entries: list[_Entry]) -> Iterable[list[_Entry]]:
    """Yield waves in which no uid occurs twice in a topic, so that the second one finds the first in the stream."""
    wave: list[_Entry] = []
    later: list[_Entry] = []
    seen: set[tuple[int, bytes]] = set()
    for entry in entries:
        key = (entry.topic.id, entry.message.uid)
        (later if key in seen else wave).append(entry)
        seen.add(key)
    yield wave
    if later:
        yield from _without_repeats(later)
