"""A stream in memory: topics, groups, claims, retries and dead letters of one process, with a clock that can be moved.

It keeps the contract of the stream in MySQL where that makes sense without a server: messages are claimed in ranges,
whatever ends something is fenced, retries and delayed messages wait for their time, keys run in order, a message with
a uid or a dedup key that is known is not stored twice. Its limits: one partition in each priority level, and nobody
dies, so there are no leases and no recovery. It is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from emsworker.broker.channel import Send
from emsworker.core.codec import Decoder, decode_headers
from emsworker.core.config import Settings
from emsworker.core.errors import EmsError, FenceLost
from emsworker.core.ids import check_name, new_claim_id, parse_uid, uid_text
from emsworker.core.model import (
    Claim,
    ClaimSource,
    Entry,
    Failure,
    Group,
    Isolation,
    Message,
    NewMessage,
    Order,
    Receipt,
    Topic,
    TopicKind,
    TopicRule,
)
from emsworker.core.partitioner import numbered
from emsworker.core.priority import PRIORITIES
from emsworker.core.process.threads import ThreadPool
from emsworker.core.run import Progress
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.publish.cancel import unknown_message
from emsworker.publish.catalog import check_declared
from emsworker.publish.outbox import OutboxTransaction, Sender
from emsworker.publish.outgoing import Outgoing, admit
from emsworker.publish.transaction import Transaction
from emsworker.store.cluster.once import Begun
from emsworker.store.engine.schema import ServerRun
from emsworker.store.groups.claims import AvailableWork, Claimant, NothingClaimed, PollAnswer
from emsworker.store.groups.progress import Flush
from emsworker.store.groups.results import ResultRow

T = TypeVar("T")
Now = Callable[[], datetime]
Place = tuple[int, int]  # partition and offset
DedupPlace = tuple[int, bytes]  # topic id and key
Holder = tuple[bytes, datetime]  # uid, and the end of the window


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


@dataclass
class KeptMessage:
    """A message of the stream, or on its way there.

    Attributes:
        partition, offset: its place; the offset is 0 until it is due.
        due_at: the time from which it may be read.
    """

    topic: Topic
    new: NewMessage
    due_at: datetime
    partition: int = 0
    offset: int = 0
    cancelled: bool = False

    def read(self, decoder: Decoder, attempt: int) -> Message:
        """Return the message as a handler gets it."""
        new, born_at = self.new, self.due_at.replace(tzinfo=None).isoformat()
        row = (self.offset, new.uid, new.key, new.tag, new.headers, new.body, born_at)
        return Message(self.topic.name, self.partition, row, decoder, attempt)


@dataclass
class _Retry:
    """A message of one group that waits for its next attempt; without ``due_at``, for an earlier one of its key."""

    attempt: int
    due_at: datetime | None
    key: bytes | None
    claim_id: int | None = None
    isolation: Isolation = Isolation.NONE


@dataclass
class _HeldClaim:
    """A claim as it is stored; without ``client_id`` it waits for an owner."""

    claim_id: int
    hi: int
    acked_to: int
    source: ClaimSource
    client_id: str | None
    isolation: Isolation = Isolation.NONE
    detached: bool = False


@dataclass
class _GroupState:
    """The cursors, claims and retries of a group."""

    group: Group
    cursors: dict[int, int] = field(default_factory=dict)
    claims: dict[Place, _HeldClaim] = field(default_factory=dict)  # by partition and first offset
    retries: dict[Place, _Retry] = field(default_factory=dict)

    def is_finished(self, kept: KeptMessage) -> bool:
        """Return whether the group will not run a message any more."""
        place = (kept.partition, kept.offset)
        if not self.group.filter.matches(kept.new.tag, decode_headers(kept.new.headers)):
            return True
        if kept.offset >= self.cursors.get(kept.partition, 1) or place in self.retries:
            return False
        return not any(
            partition == kept.partition and held.source is ClaimSource.STREAM and held.acked_to < kept.offset <= held.hi
            for (partition, _), held in self.claims.items()
        )


@dataclass
class _HeldSend:
    """Messages that an open transaction has sent, and the previous holders of the keys that it took."""

    messages: list[tuple[Topic, NewMessage]] = field(default_factory=list)
    keys: dict[DedupPlace, Holder | None] = field(default_factory=dict)


class MemoryBroker:
    """A stream in memory; see :class:`emsworker.broker.port.Broker`.

    Args:
        settings: the app's.
        kind_of: returns the kind with which a topic is created.
        connection: a PyMySQL connection for the SQL of transactions.
        on_send: called when messages were accepted.

    Attributes:
        accepted: every message that was sent, in order.
        dead: the dead letters: the group's id, the message, and its last failure.
    """

    def __init__(
        self,
        settings: Settings,
        kind_of: Callable[[str], TopicKind],
        connection: Any = None,
        on_send: Callable[[], None] = lambda: None,
    ) -> None:
        self.pool = ThreadPool(0)  # an eager run in a thread could wait for the thread that its handler sends with
        self._settings = settings
        self._kind_of = kind_of
        self._connection = connection
        self._on_send = on_send
        self._offset_s = timedelta()
        self._numbers = itertools.count(1)
        self._topics: dict[str, Topic] = {}
        self._groups: dict[tuple[str, str], _GroupState] = {}
        self._log: dict[Place, list[KeptMessage]] = {}  # by topic id and partition
        self._outbox: list[tuple[datetime, int, KeptMessage]] = []
        self._by_uid: dict[tuple[int, bytes], KeptMessage] = {}
        self._dedup: dict[DedupPlace, Holder] = {}
        self._open: dict[Transaction, _HeldSend] = {}
        self._results = MemoryResults(self.now)
        self._keys = MemoryKeys(self.now)
        self.decoder = Decoder(settings.accept, settings.budget)
        self.accepted: list[KeptMessage] = []
        self.dead: list[tuple[int, KeptMessage, Failure]] = []

    # -- time ----------------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """Return the clock, in UTC: real time plus what was added to it."""
        return datetime.now(UTC) + self._offset_s

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._offset_s += timedelta(seconds=seconds)

    def next_due(self) -> datetime | None:
        """Return when the next retry or delayed message is due, or ``None``."""
        waiting = [one.due_at for state in self._groups.values() for one in state.retries.values() if not one.claim_id]
        return min([*(at for at in waiting if at is not None), *(at for at, _, _ in self._outbox[:1])], default=None)

    # -- topics and groups ---------------------------------------------------------------------------------------------

    def prepare(self, topic: str | None = None) -> None:
        """Do nothing: there is no connection."""

    def topic(self, name: str) -> Topic:
        """Return a topic; every topic exists, and cluster topics have priorities."""
        if name not in self._topics:
            check_name("topic", name)
            kind = self._kind_of(name)
            levels = len(PRIORITIES) if kind is TopicKind.CLUSTER else 1
            size = self._settings.max_message_bytes
            topic = Topic(len(self._topics) + 1, name, kind, 1, TopicRule.READ_WRITE, size, None, priorities=levels)
            self._topics[name] = topic
        return self._topics[name]

    def group(self, topic: Topic, name: str, declared: Filter | None = None, order: Order = Order.NONE) -> Group:
        """Return a group of a topic, made at its first use; it reads the topic from the start."""
        state = self._groups.get((topic.name, name))
        if state is None:
            s, number = self._settings, len(self._groups) + 1
            check_name("group", name)
            group = Group(
                number,
                topic.id,
                name,
                s.timeout_s,
                str(s.ladder),
                s.max_attempts,
                False,
                declared or EVERYTHING,
                order,
            )
            state = self._groups[topic.name, name] = _GroupState(group)
        check_declared(topic, state.group, declared, order)
        return state.group

    def _groups_of(self, topic: Topic) -> list[_GroupState]:
        return [state for (name, _), state in self._groups.items() if name == topic.name]

    def _state(self, group_id: int) -> _GroupState:
        return next(state for state in self._groups.values() if state.group.id == group_id)

    # -- the way in ----------------------------------------------------------------------------------------------------

    def send(
        self, topic: str, outgoing: Sequence[Outgoing], messages: Sequence[NewMessage], transaction: Any = None
    ) -> list[Receipt]:
        """Store messages, or hold them until their transaction ends."""
        found = self.topic(check_name("topic", topic))
        for one, message in zip(outgoing, messages, strict=True):
            admit(found, one, message)
        held = None if transaction is None else self._held_by(transaction)
        receipts = [self._send_one(found, message, held) for message in messages]
        if isinstance(transaction, OutboxTransaction):
            transaction.sent += [(one, receipt, found) for one, receipt in zip(outgoing, receipts, strict=True)]
        if held is None:
            self._on_send()
        return receipts

    def _send_one(self, topic: Topic, message: NewMessage, held: _HeldSend | None) -> Receipt:
        holder = self._take_key(topic, message, held)
        if holder is not None:
            return Receipt(uid_text(holder), topic.name, None, None, created=False)
        if held is not None:
            held.messages.append((topic, message))
            return Receipt(uid_text(message.uid), topic.name, None, None)
        receipt = self._accept(topic, message)
        return receipt if message.dedup_key is None else replace(receipt, partition=None, offset=None)

    def _accept(self, topic: Topic, message: NewMessage) -> Receipt:
        known = self._by_uid.get((topic.id, message.uid))
        if known is not None:
            return Receipt(uid_text(message.uid), topic.name, known.partition, known.offset or None, created=False)
        now = self.now()
        kept = KeptMessage(topic, message, message.due_at or now + timedelta(seconds=message.delay_s))
        self._by_uid[topic.id, message.uid] = kept
        self.accepted.append(kept)
        if kept.due_at > now:
            heapq.heappush(self._outbox, (kept.due_at, next(self._numbers), kept))
            return Receipt(uid_text(message.uid), topic.name, None, None)
        self._append(kept)
        return Receipt(uid_text(message.uid), topic.name, kept.partition, kept.offset)

    def _append(self, kept: KeptMessage) -> None:
        kept.partition = numbered(kept.new.level, 0)
        log = self._log.setdefault((kept.topic.id, kept.partition), [])
        log.append(kept)
        kept.offset = len(log)

    def _relay(self) -> None:
        """Move delayed messages that are due into the stream."""
        while self._outbox and self._outbox[0][0] <= self.now():
            self._append(heapq.heappop(self._outbox)[2])

    def _take_key(self, topic: Topic, message: NewMessage, held: _HeldSend | None) -> bytes | None:
        """Take a deduplication key, as :func:`emsworker.store.stream.dedup.take_key` does."""
        if message.dedup_key is None:
            return None
        place = topic.id, message.dedup_key
        holder = self._dedup.get(place)
        if holder is not None and (holder[0] == message.uid or self._is_taken(topic, *holder)):
            return None if holder[0] == message.uid else holder[0]
        if held is not None:
            held.keys.setdefault(place, holder)
        self._dedup[place] = message.uid, self.now() + timedelta(seconds=message.dedup_window_s)
        return None

    def _is_taken(self, topic: Topic, uid: bytes, until: datetime) -> bool:
        kept = self._by_uid.get((topic.id, uid))
        if self.now() < until or (kept is not None and self._is_unfinished(kept)):
            return True
        return any(
            (place.id, one.uid) == (topic.id, uid) for held in self._open.values() for place, one in held.messages
        )

    def _is_unfinished(self, kept: KeptMessage) -> bool:
        """Return whether a message is not due yet, or a group has not finished it, or there is no group yet."""
        if kept.cancelled:
            return False
        groups = self._groups_of(kept.topic)
        return not kept.offset or not groups or not all(state.is_finished(kept) for state in groups)

    # -- transactions --------------------------------------------------------------------------------------------------

    def _held_by(self, transaction: Any) -> _HeldSend:
        held = self._open.get(transaction) if isinstance(transaction, Transaction) else None
        if held is None:
            raise EmsError(
                f"transaction={type(transaction).__name__}: in memory only the open transaction of a handler or of "
                "`with app.transaction() as tx` can send, because there is no notice when another one is committed; "
                "test this on a real stream with the fixture ems_stream"
            )
        return held

    @contextlib.contextmanager
    def during(self, transaction: Transaction, connection: Any) -> Iterator[None]:
        """Run a transaction: commit at the end or, on any exception, roll back SQL, messages and keys."""
        held = self._open[transaction] = _HeldSend()
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            self._restore_keys(held.keys)
            connection.rollback()
            raise
        finally:
            del self._open[transaction]
        for topic, message in held.messages:
            self._accept(topic, message)

    def _restore_keys(self, keys: Mapping[DedupPlace, Holder | None]) -> None:
        for place, holder in keys.items():
            del self._dedup[place]
            if holder is not None:
                self._dedup[place] = holder

    @contextlib.contextmanager
    def transaction(self, sender: Sender) -> Iterator[OutboxTransaction]:
        """Return a transaction that commits SQL, over the broker's connection, and messages together."""
        connection = self._connection or NoConnection()
        transaction = OutboxTransaction(connection, sender)
        with self.during(transaction, connection):
            yield transaction
        self._on_send()
        sender.after_commit((one for one, _, _ in transaction.sent), (receipt for _, receipt, _ in transaction.sent))

    # -- look-ups ------------------------------------------------------------------------------------------------------

    def cancel(self, message_id: str, topic: str | None) -> bool:
        """Cancel a message that was not run yet.

        Raises:
            UnknownMessage: it is not there.
        """
        uid = parse_uid(message_id)
        found = [kept for (_, known), kept in self._by_uid.items() if known == uid and topic in (None, kept.topic.name)]
        if not found:
            raise unknown_message([topic] if topic else [], message_id)
        kept = found[0]
        if not (kept.cancelled or self._is_unfinished(kept)):
            return False
        if not kept.offset:
            del self._by_uid[kept.topic.id, uid]  # its row is deleted, so its uid can be sent again
            self._outbox = [one for one in self._outbox if one[2] is not kept]
            heapq.heapify(self._outbox)
        kept.cancelled = True
        for state in self._groups_of(kept.topic):
            state.retries.pop((kept.partition, kept.offset), None)
        return True

    def results(self, topics: Sequence[str], group: str | None) -> MemoryResults:
        """Return the results of calls; they do not wait, so the calls must have run."""
        return self._results

    def keys(self, backend: str) -> MemoryKeys | None:
        """Return the idempotency keys."""
        return self._keys if backend in ("mysql", "redis") else None

    def channel(self, *, patient: bool = True) -> MemoryChannel:
        """Open a channel for a thread that consumes."""
        return MemoryChannel(self)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def message(self, topic_id: int, partition: int, offset: int) -> KeptMessage:
        """Return a message of the stream by its place."""
        return self._log[topic_id, partition][offset - 1]

    def find_work(self, group_ids: Sequence[int]) -> PollAnswer:
        """Find the work available to groups, as :func:`emsworker.store.groups.claims.find_work` does."""
        self._relay()
        found = {group_id: self._work_of(self._state(group_id)) for group_id in group_ids}
        return PollAnswer({group_id: work for group_id, work in found.items() if work})

    def _work_of(self, state: _GroupState) -> AvailableWork:
        waiting = [partition for (partition, _), held in state.claims.items() if held.client_id is None]
        due = {partition for (partition, _), retry in state.retries.items() if self._is_due(retry)}
        fresh = {
            partition
            for (topic_id, partition), log in self._log.items()
            if topic_id == state.group.topic_id and state.cursors.get(partition, 1) <= len(log)
        }
        if state.group.order is not Order.NONE:
            return AvailableWork(partitions=tuple(sorted({*fresh, *due, *waiting}, reverse=True)))
        return AvailableWork(
            bool(waiting), bool(due), tuple(sorted(fresh, reverse=True)), highest_waiting=max(waiting, default=0)
        )

    def _is_due(self, retry: _Retry) -> bool:
        return retry.claim_id is None and retry.due_at is not None and retry.due_at <= self.now()


class MemoryChannel:
    """The way out of a stream in memory; see :class:`emsworker.broker.channel.Channel`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    # -- claiming ------------------------------------------------------------------------------------------------------

    def take_range(
        self,
        claimant: Claimant,
        partition: int,
        before: Sequence[Flush] = (),
        *,
        wait: bool = False,
        announced: bool = False,
    ) -> Claim | NothingClaimed:
        """Claim the next messages of a partition, in its order if the group has one."""
        state = self._begin(claimant, before)
        if state.group.order is Order.NONE:
            return self._take_fresh(claimant, state, partition)
        if any(
            held.client_id and not held.detached for (number, _), held in state.claims.items() if number == partition
        ):
            return NothingClaimed.EMPTY
        return self._take_ordered(claimant, state, partition)

    def _take_ordered(self, claimant: Claimant, state: _GroupState, partition: int) -> Claim | NothingClaimed:
        waiting = sorted(offset for number, offset in state.retries if number == partition)
        if claimant.group.order is Order.PARTITION and waiting:
            first = state.retries[partition, waiting[0]]
            return self._claim_retries(claimant, state, partition, waiting[:1] if self._may(claimant, first) else [])
        due = [offset for offset in waiting if self._may(claimant, state.retries[partition, offset])]
        if due:
            keys = {state.retries[partition, offset].key for offset in due} - {None}
            behind = [
                o for o in waiting if state.retries[partition, o].key in keys and not self._is_held(state, partition, o)
            ]
            return self._claim_retries(claimant, state, partition, sorted({*due, *behind}))
        given_back = [
            held for (number, _), held in sorted(state.claims.items()) if number == partition and not held.client_id
        ]
        if given_back and given_back[0].isolation > claimant.most_isolation:
            return NothingClaimed.EMPTY
        claim = self._adopt(claimant, state, [partition])
        if not isinstance(claim, Claim):
            claim = self._take_fresh(claimant, state, partition)
        if isinstance(claim, Claim) and claim.order is Order.KEY:
            blocking = {retry.key for (number, _), retry in state.retries.items() if number == partition}
            claim.blocked_keys = frozenset(
                message.key_bytes for message in claim.messages if message.key_bytes in blocking - {None}
            )
        return claim

    def _is_held(self, state: _GroupState, partition: int, offset: int) -> bool:
        return state.retries[partition, offset].claim_id is not None

    def take_waiting(
        self, claimant: Claimant, before: Sequence[Flush] = (), *, from_partition: int = 0
    ) -> Claim | NothingClaimed:
        """Adopt a claim that its owner gave back."""
        state = self._begin(claimant, before)
        partitions = sorted({number for number, _ in state.claims if number >= from_partition}, reverse=True)
        return self._adopt(claimant, state, partitions)

    def take_retries(self, claimant: Claimant, before: Sequence[Flush] = ()) -> Claim | NothingClaimed:
        """Claim due retries of one partition."""
        state = self._begin(claimant, before)
        due = sorted(place for place, retry in state.retries.items() if self._may(claimant, retry))
        if not due:
            return NothingClaimed.EMPTY
        partition = due[-1][0]
        offsets = [offset for number, offset in due if number == partition][: claimant.batch]
        return self._claim_retries(claimant, state, partition, offsets)

    def _may(self, claimant: Claimant, retry: _Retry) -> bool:
        return self._broker._is_due(retry) and retry.isolation <= claimant.most_isolation

    def _begin(self, claimant: Claimant, before: Sequence[Flush]) -> _GroupState:
        for one in before:
            self._fenced(one.claim)  # all or none
        for one in before:
            self.flush(one)
        self._broker._relay()
        return self._broker._state(claimant.group.id)

    def _take_fresh(self, claimant: Claimant, state: _GroupState, partition: int) -> Claim | NothingClaimed:
        lo = state.cursors.get(partition, 1)
        end = len(self._broker._log.get((claimant.topic.id, partition), ()))
        hi = min(end, lo + claimant.batch - 1)
        if hi < lo:
            return NothingClaimed.EMPTY
        state.cursors[partition] = hi + 1
        return self._hold(claimant, state, partition, lo, hi, Isolation.NONE)

    def _adopt(self, claimant: Claimant, state: _GroupState, partitions: Sequence[int]) -> Claim | NothingClaimed:
        for partition in partitions:
            for number, lo in sorted(state.claims):
                held = state.claims[number, lo]
                if number == partition and held.client_id is None and held.isolation <= claimant.most_isolation:
                    hi = min(held.hi, lo + claimant.batch - 1)
                    if hi < held.hi:
                        state.claims[partition, hi + 1] = replace(held, claim_id=new_claim_id(), acked_to=hi)
                    return self._hold(claimant, state, partition, lo, hi, held.isolation)
        return NothingClaimed.EMPTY

    def _hold(
        self, claimant: Claimant, state: _GroupState, partition: int, lo: int, hi: int, isolation: Isolation
    ) -> Claim:
        stored = _HeldClaim(claimant.claim_id, hi, lo - 1, ClaimSource.STREAM, claimant.client_id, isolation)
        state.claims[partition, lo] = stored
        claim = self._claim(claimant, partition, lo, hi, ClaimSource.STREAM, isolation)
        group_filter = state.group.filter
        for offset in range(lo, hi + 1):
            kept = self._broker.message(claimant.topic.id, partition, offset)
            if not kept.cancelled and group_filter.matches(kept.new.tag, decode_headers(kept.new.headers)):
                claim.messages.append(kept.read(claimant.decoder, 1))
        return claim

    def _claim_retries(
        self, claimant: Claimant, state: _GroupState, partition: int, offsets: Sequence[int]
    ) -> Claim | NothingClaimed:
        if not offsets:
            return NothingClaimed.EMPTY
        lo, hi = offsets[0], offsets[-1]
        retries = {offset: state.retries[partition, offset] for offset in offsets}
        isolation = max(retry.isolation for retry in retries.values())
        stored = _HeldClaim(claimant.claim_id, hi, lo - 1, ClaimSource.RETRY, claimant.client_id, isolation)
        state.claims[partition, lo] = stored
        claim = self._claim(claimant, partition, lo, hi, ClaimSource.RETRY, isolation)
        for offset, retry in retries.items():
            retry.claim_id = claimant.claim_id
            kept = self._broker.message(claimant.topic.id, partition, offset)
            claim.messages.append(kept.read(claimant.decoder, retry.attempt + 1))
            claim.keys[offset] = retry.key
        return claim

    def _claim(
        self, claimant: Claimant, partition: int, lo: int, hi: int, source: ClaimSource, isolation: Isolation
    ) -> Claim:
        return Claim(
            claimant.group.id,
            partition,
            lo,
            hi,
            lo - 1,
            claimant.claim_id,
            source,
            isolation,
            claimant.client_id,
            order=claimant.group.order,
            taken_at=self._broker.now().replace(tzinfo=None).isoformat(),
            topic=claimant.topic.name,
            group=claimant.group.name,
        )

    # -- ending --------------------------------------------------------------------------------------------------------

    def _fenced(self, claim: Claim) -> tuple[_GroupState, _HeldClaim]:
        state = self._broker._state(claim.group_id)
        held = state.claims.get((claim.partition, claim.lo))
        if held is None or held.claim_id != claim.claim_id or held.client_id != claim.client_id:
            raise FenceLost(f"the claim of {claim.place} has another owner")
        return state, held

    def flush(self, flush: Flush) -> None:
        """Write the progress of a claim down."""
        claim = flush.claim
        state, held = self._fenced(claim)
        held.acked_to = flush.acked_to
        if flush.finished:
            del state.claims[claim.partition, claim.lo]
        ended = [offset for offset, *_ in flush.done_offsets]
        for failure in flush.failures:
            if self._fail(state, flush, failure):
                ended.append(failure.offset)
        keys = [state.retries.pop((claim.partition, offset), _NO_RETRY).key for offset in ended]
        for offset, key in flush.blocked:
            self._block(state, claim, offset, key)
        self._promote(state, claim.partition, [*keys, *(key for _, key in flush.blocked)])
        for row in flush.results:
            self._broker._results.put(row)

    def _fail(self, state: _GroupState, flush: Flush, failure: Failure) -> bool:
        """Record a failure; return whether the message has ended."""
        place = (flush.claim.partition, failure.offset)
        kept = self._broker.message(flush.topic_id, *place)
        if kept.cancelled:
            return True
        if failure.retry_in_s is None:
            if failure.dead is not None:
                self._broker.dead.append((state.group.id, kept, failure))
            return True
        key = kept.new.key if flush.claim.order is Order.KEY else None
        due_at = self._broker.now() + timedelta(seconds=failure.retry_in_s)
        isolation = max(flush.claim.isolation, Isolation.ALONE) if failure.suspect else Isolation.NONE
        state.retries[place] = _Retry(failure.attempt, due_at, key, isolation=isolation)
        return False

    def _block(self, state: _GroupState, claim: Claim, offset: int, key: bytes | None) -> None:
        place = (claim.partition, offset)
        if claim.source is ClaimSource.RETRY:
            state.retries[place].claim_id = None
        else:
            state.retries[place] = _Retry(0, self._broker.now() if key is None else None, key)

    def _promote(self, state: _GroupState, partition: int, keys: Sequence[bytes | None]) -> None:
        """Make the first waiting message of each of these keys due, unless it has a due time of its own."""
        for key in {key for key in keys if key is not None}:
            behind = sorted(
                offset for (number, offset), retry in state.retries.items() if (number, retry.key) == (partition, key)
            )
            if behind:
                first = state.retries[partition, behind[0]]
                first.due_at = first.due_at or self._broker.now()

    def give_back(self, flush: Flush, last: int, isolation: Isolation = Isolation.NONE) -> None:
        """Write progress down, keep the claim only up to ``last``, and return the rest."""
        claim = flush.claim
        state, held = self._fenced(claim)
        least = max(held.isolation, isolation)
        if last < claim.lo and claim.source is ClaimSource.STREAM:
            state.claims[claim.partition, claim.lo] = replace(held, client_id=None, isolation=least)
            return
        self._cut(state, held, claim, last, least)
        self.flush(flush)

    def _cut(self, state: _GroupState, held: _HeldClaim, claim: Claim, last: int, isolation: Isolation) -> None:
        if claim.source is ClaimSource.RETRY:
            for (number, offset), retry in state.retries.items():
                if number == claim.partition and offset > last and retry.claim_id == claim.claim_id:
                    retry.claim_id = None
        elif last < held.hi:
            rest = replace(held, claim_id=new_claim_id(), acked_to=last, client_id=None, isolation=isolation)
            state.claims[claim.partition, last + 1] = rest
        held.hi = last

    def detach(self, flush: Flush, rest: Claim) -> None:
        """Write progress down, and move the messages that still run to a claim beside the stream."""
        claim = flush.claim
        state, held = self._fenced(claim)
        if claim.source is ClaimSource.RETRY:
            self.flush(flush)
            held.detached = True
            return
        self._cut(state, held, claim, flush.acked_to, claim.isolation)
        for message in rest.messages:
            retry = _Retry(0, self._broker.now(), message.key_bytes, rest.claim_id)
            state.retries[rest.partition, message.offset] = retry
        self.flush(flush)
        stored = _HeldClaim(rest.claim_id, rest.hi, rest.acked_to, ClaimSource.RETRY, rest.client_id, detached=True)
        state.claims[rest.partition, rest.lo] = stored

    def recall(self, claimant: Claimant) -> bool:
        """Return that there is none: no answer is lost here."""
        return False

    def acked_to(self, claim: Claim) -> int | None:
        """Return the acked offset of a claim; ``None`` if its owner no longer has it."""
        with contextlib.suppress(FenceLost):
            return self._fenced(claim)[1].acked_to
        return None

    def was_committed(self, flush: Flush) -> bool:
        """Return that it was not: no answer is lost here."""
        return False

    def server_run(self) -> ServerRun:
        """Return which server answers: always the same."""
        return ServerRun(("memory",), 0)

    def transact(
        self, call: Callable[[Transaction], T], commit: Callable[[T, Send], None], is_cut_short: Callable[[], bool]
    ) -> T:
        """Call a handler in a transaction on the broker's connection, and commit it with the progress of its claim."""
        connection = self._broker._connection
        if connection is None:
            raise EmsError(
                "a transactional handler needs a database: give the test a connection, app.test(connection=...), "
                "or test it on a real stream with the fixture ems_stream"
            )
        transaction = Transaction(connection)
        with self._broker.during(transaction, connection):
            returned = call(transaction)
            commit(returned, self.flush)
        return returned

    def close(self) -> None:
        """Do nothing: there is no connection."""


_NO_RETRY = _Retry(0, None, None)


class MemoryResults:
    """Results of one test; they do not wait.

    Args:
        now: returns the time.
    """

    patience_s: float | None = 0.0

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

    def find_buried(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return nothing: no process is killed here, so every message that ended has its result."""
        return {}

    def find_progress(self, uids: Sequence[bytes]) -> dict[bytes, Progress]:
        """Return nothing: nothing runs while somebody asks."""
        return {}

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results before they expire."""
        for uid in uids:
            self._rows.pop(uid, None)


class MemoryKeys:
    """Keys of :meth:`Ems.once`; no process dies here, so a key that has begun is finished or cancelled.

    Args:
        now: returns the time.
    """

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
