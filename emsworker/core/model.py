"""Data types of the stream: topics, groups, messages, claims and their states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from emsworker.core.codec import LARGE_MARK, Decoder, decode_headers
from emsworker.core.durations import format_duration
from emsworker.core.errors import ConfigError, DecodeError, EmsError, Problem
from emsworker.core.ids import decode_key, uid_text
from emsworker.core.ladder import DEFAULT_LADDER, DEFAULT_MAX_ATTEMPTS, Dead, Decision, Ladder, RetryIn
from emsworker.core.options import at_most, choice, flag, of_type, seconds, text, whole
from emsworker.core.partitioner import MAX_PARTITIONS, partition_number, partition_of
from emsworker.core.priority import PRIORITIES, levels_of
from emsworker.core.process.clock import ticks
from emsworker.core.run import UNWATCHED, Run
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.core.settings import setting
from emsworker.core.times import NO_TIME, utc

TASK_HEADER, EXPIRES_HEADER, SLOT_HEADER, PRIORITY_HEADER = "ems-task", "ems-expires", "ems-slot", "ems-priority"
GROUP_HEADER = "ems-group"  # of a task's call: the group that the task was declared in
FOLLOW_HEADER = "ems-follow"  # of a task's call: which extension is told of its end, and a word for it: NAME:WORD


def priority_header(priority: int | None) -> dict[str, str]:
    """Return the header that carries a priority; empty if there is none."""
    return {} if priority is None else {PRIORITY_HEADER: str(priority)}


def priority_of(headers: Mapping[str, str]) -> int:
    """Return the priority that a message was sent with; 0 if it was sent without one.

    Raises:
        DecodeError: the header of the priority is damaged.
    """
    text = headers.get(PRIORITY_HEADER, "0")
    if text not in map(str, PRIORITIES):
        raise DecodeError(f"header {PRIORITY_HEADER} = {text[:100]!r} is not a number from 0 to 9")
    return int(text)


class TopicKind(StrEnum):
    """Delivery of a topic's messages: to one client of each group, or to every client."""

    CLUSTER = "cluster"
    BROADCAST = "broadcast"


class TopicRule(StrEnum):
    """Operations that a topic allows at present."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"
    NONE = "none"

    @property
    def writable(self) -> bool:
        """True if messages may be sent."""
        return "w" in self

    @property
    def readable(self) -> bool:
        """True if messages may be claimed."""
        return "r" in self


class Order(StrEnum):
    """Order of a group: the messages that run strictly one after another, retries included.

    ``none``: claims follow the stream, but several run at once. ``partition``: all messages of a partition. ``key``:
    the messages of a partition that have the same key; a message without a key blocks no other.
    """

    NONE = "none"
    PARTITION = "partition"
    KEY = "key"


class ClaimState(StrEnum):
    """State of a claim: ``start``: a client works on it; ``waiting``: free to be adopted; ``done``: all finished."""

    START = "start"
    WAITING = "waiting"
    DONE = "done"


class Isolation(IntEnum):
    """Poison isolation of a claim: each death of its process raises it by one, unless the message was charged for it.

    From ``ALONE`` on a message has its process to itself for :attr:`room_s`, and is recorded meanwhile; a process that
    dies then has died of it. Each further level is for a message that had company when its process died.
    """

    NONE = 0
    FEW = 1  # a few dozen messages per claim
    ALONE = 2  # one message per claim
    LONGER = 3
    LONG = 4
    LAST = 5

    @property
    def alone(self) -> bool:
        """True if a message has its process to itself."""
        return self >= Isolation.ALONE

    @property
    def room_s(self) -> float:
        """Seconds for which other messages of the process wait before it starts, and again while it runs."""
        return math.inf if self is Isolation.LAST else 8.0 ** (self - Isolation.ALONE)

    @property
    def raised(self) -> Isolation:
        """The isolation after another death."""
        return Isolation(min(self + 1, Isolation.LAST))


class ClaimSource(StrEnum):
    """Source of a claim's messages: a range of the stream, or due retries."""

    STREAM = "stream"
    RETRY = "retry"


class OnceState(StrEnum):
    """State of an idempotency key: not begun, done, in progress elsewhere, or begun by a process that died."""

    FIRST = "first"
    DONE = "done"
    BUSY = "busy"
    UNCERTAIN = "uncertain"


class Begun(NamedTuple):
    """Outcome of an attempt to begin an effect.

    Attributes:
        entry: whether to go ahead.
        token: identifies this attempt.
        left_s: seconds that another running attempt may still take.
    """

    entry: OnceState
    token: bytes
    left_s: float = 0.0


class Outcome(StrEnum):
    """Outcome of one attempt at a message, as recorded in ``ems_attempt``."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    ORPHANED = "orphaned"
    IGNORED = "ignored"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


LEVELS = whole(1, len(PRIORITIES))
MESSAGE_BYTES = whole(1, 1 << 30)  # the largest max_allowed_packet
ATTEMPTS = whole(1, 65535)
TIMEOUT = seconds(0.1)
LADDER = text(Ladder.parse, at_most(1000))


@dataclass(frozen=True)
class Topic:
    """A named stream and its settings.

    Attributes:
        server: the name of the server that keeps it; ``None`` for the one that was asked.
        former: the servers that kept it before the one that was asked, and may know messages that are sent again.
    """

    id: int
    name: str
    kind: TopicKind = setting(
        TopicKind.CLUSTER,
        choice(TopicKind),
        help="delivery of messages: cluster: to one client of each group; broadcast: to every worker process",
        listed=True,
        changed=False,
    )
    partitions: int = setting(
        1,
        whole(1, MAX_PARTITIONS),
        help="number of partitions of each priority level; it can only grow, and then keys are spread anew",
        listed=True,
    )
    rule: TopicRule = setting(
        TopicRule.READ_WRITE,
        choice(TopicRule),
        help="allowed operations: rw: sending and claiming; r: only claiming; w: only sending; none",
        listed=True,
    )
    max_message_bytes: int = setting(
        4 << 20,
        MESSAGE_BYTES,
        help="maximum size of an encoded body; larger ones are refused, and those over 4 MiB are kept beside their "
        "messages",
        listed=True,
    )
    retention_s: float | None = setting(
        None, seconds(1), help="delete messages that are older, once every group has run them"
    )
    keep_done_s: float | None = setting(
        None, seconds(), help="delete messages this long after every group has run them"
    )
    age_wins: bool = setting(
        False, flag(), help="delete messages older than the retention even if a group has not claimed them"
    )
    priorities: int = setting(1, LEVELS, help="number of priority levels, 1 for none; it can only grow", listed=True)
    archive_first: bool = setting(
        False, flag(), help="delete messages only after `ems pipeline archive` has copied them"
    )
    server: str | None = None
    former: tuple[str, ...] = ()

    @property
    def keeps(self) -> str:
        """The time for which messages are kept, in words."""
        bounds = []
        if self.keep_done_s is not None:
            bounds.append(f"{format_duration(self.keep_done_s)} after done" if self.keep_done_s else "until done")
        if self.retention_s is not None:
            bounds.append(format_duration(self.retention_s))
        return " or ".join(bounds) or "for ever"

    def partition_numbers(self) -> list[int]:
        """Return the numbers of all partitions, those of higher priority levels included."""
        levels = levels_of(self.priorities)
        return [partition_number(level, partition) for level in levels for partition in range(self.partitions)]

    def check_kind(self, kind: TopicKind) -> Topic:
        """Return the topic if it is of this kind.

        Raises:
            ConfigError: it is of the other kind.
        """
        if self.kind is kind:
            return self
        fix = (
            "is a broadcast topic, which has no groups: every worker process gets every message, with "
            "@app.subscribe(topic, broadcast=True)"
            if self.kind is TopicKind.BROADCAST
            else "is a cluster topic, which groups read: @app.subscribe(topic, group); a broadcast needs a topic "
            "made with `ems topics create NAME --kind broadcast`"
        )
        raise ConfigError([Problem("topic", repr(self.name), fix)])


UNLIMITED_S = 3650 * 86400.0
"""Timeout from which on a group is taken to have none: the program that runs its messages limits their time."""


@dataclass(frozen=True)
class Group:
    """A named set of clients that share the work of a topic, and its settings."""

    id: int
    topic_id: int
    name: str
    timeout_s: float = setting(
        60.0,
        TIMEOUT,
        help="maximum run time of a message; then it is moved to retry",
        listed=True,
        column="timeout_ms",
        to_column=lambda seconds: round(seconds * 1000),
        from_column=lambda milliseconds: milliseconds / 1000,
    )
    ladder: str = setting(
        DEFAULT_LADDER, LADDER, help='delays between attempts, like "10s 1m 5m"; the last one repeats'
    )
    max_attempts: int = setting(
        DEFAULT_MAX_ATTEMPTS, ATTEMPTS, help="maximum number of runs of a message; then it becomes a dead letter"
    )
    paused: bool = setting(
        False,
        flag(),
        help="claim nothing new; this acts at once",
        listed=True,
        created=False,
        switch="--pause/--resume",
    )
    filter: Filter = setting(
        EVERYTHING,
        of_type(Filter, "a Filter, like Filter(tags=['new'])"),
        help="selection of messages by tags and headers",
        switch="",
        to_column=Filter.to_text,
        from_column=Filter.from_text,
    )
    order: Order = setting(
        Order.NONE,
        choice(Order),
        help="messages that run strictly one after another, retries included; it cannot be changed",
        changed=False,
        column="ordering",
        listed=True,
    )


MESSAGE_COLUMNS = ("uid", "key", "tag", "headers", "body")
"""What a sender gives, in the order of the statements: it goes along wherever a message is kept. Bytes, or ``None``."""


class HandlerRow(NamedTuple):
    """A task of a group, or its subscription, whose name is empty; ``None`` stands for the group's own setting.

    Attributes:
        requires: the tags that a worker needs to run the group, with commas between.
    """

    name: str
    on_error: str
    ladder: str | None
    max_attempts: int | None
    requires: str = ""


@dataclass(slots=True)
class NewMessage:
    """Message to be written to the stream.

    Attributes:
        partition: the partition within the level, chosen by the sender; by default the key decides.
        level: the priority level, one of :func:`levels_of` the topic.
        delay_s, due_at: seconds from the server's now, or the time in UTC, before which it is not read.
        dedup_key: the key that only one unfinished message has; kept for ``dedup_window_s`` seconds at least.
        priority: 0 to 9, if it was sent with one; ``level`` follows from it where the topic is known.
        is_call: it calls a task.
        has_own_uid: its sender chose the uid, so an earlier send may have stored it.
        is_urgent: idle consumers are woken for it.
        topic, producer_id: while it is sent: where to, and by whom.
        receipt, error: the end of the send, once it is known.
        in_doubt: it may have been committed, but the answer was lost.
    """

    uid: bytes
    key: bytes | None
    tag: bytes | None
    headers: bytes
    body: bytes
    partition: int | None = None
    level: int = 0
    delay_s: float | None = None
    due_at: datetime | None = None
    dedup_key: bytes | None = None
    dedup_window_s: float = 0.0
    priority: int | None = None
    is_call: bool = False
    has_own_uid: bool = False
    is_urgent: bool = True
    topic: Topic | None = None
    producer_id: str = ""
    receipt: Receipt | None = None
    error: EmsError | None = None
    in_doubt: bool = False

    @classmethod
    def of(cls, columns: Iterable[Any], **more: Any) -> NewMessage:
        """Return the message of a row.

        Args:
            columns: the values of :data:`MESSAGE_COLUMNS`.
            more: other fields.
        """
        return cls(**dict(zip(MESSAGE_COLUMNS, columns, strict=True)), **more)

    @property
    def columns(self) -> tuple[bytes | None, ...]:
        """The values of :data:`MESSAGE_COLUMNS`."""
        return _columns_of(self)

    @property
    def is_delayed(self) -> bool:
        """True if it is to be read later."""
        return self.delay_s is not None or self.due_at is not None

    @property
    def is_direct(self) -> bool:
        """True if it can be written to the stream at once, without the outbox."""
        return self.delay_s is None and self.due_at is None and self.dedup_key is None

    @property
    def is_open(self) -> bool:
        """True if it is neither confirmed nor refused."""
        return self.receipt is None and self.error is None

    def confirm(self, topic: str, partition: int, offset: int, created: bool) -> None:
        """Record that the message is in the stream."""
        self.receipt = Receipt(uid_text(self.uid), topic, partition, offset, created)

    def place(self, partitions: int, otherwise: int) -> int:
        """Return the number of the partition that the message goes to.

        Args:
            partitions: the number of the topic's partitions in each priority level.
            otherwise: selects the partition of a message that has neither a partition nor a key.
        """
        if self.partition is not None:
            return partition_number(self.level, self.partition)
        return partition_number(
            self.level, otherwise % partitions if self.key is None else partition_of(self.key, partitions)
        )


_columns_of: Callable[[NewMessage], tuple[bytes | None, ...]] = attrgetter(*MESSAGE_COLUMNS)


if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    R = _TypeVar("R", covariant=True, default=Any)  # `Receipt` alone is Receipt[Any]
else:
    R = TypeVar("R", covariant=True)


@dataclass(frozen=True, slots=True)
class Receipt(Generic[R]):
    """Result of a confirmed send; for a type checker, ``R`` is what the task that was called returns.

    Args:
        id: the message's uid.
        offset: the message's offset, or ``None`` while it is delayed.
        created: false if a message with this id was in the topic already.
    """

    id: str
    topic: str
    partition: int | None
    offset: int | None
    created: bool = True


class Message:
    """Message as passed to a handler.

    Args:
        row: its offset, the values of :data:`MESSAGE_COLUMNS`, and the time when it was written.

    Attributes:
        topic, partition, offset: its place in the stream.
        attempt: 1 for the first run in this group.
        key_bytes, tag_bytes: the stored bytes, or ``None``; ``key`` and ``tag`` give them as text.
        raw: the encoded body; of one that is kept beside the message, the reference.
        run: the current run: time left, extension of it, progress reports.
    """

    __slots__ = (
        "_body",
        "_born",
        "_decoder",
        "_headers",
        "attempt",
        "key_bytes",
        "offset",
        "partition",
        "raw",
        "run",
        "tag_bytes",
        "topic",
        "uid",
    )

    def __init__(self, topic: str, partition: int, row: tuple[Any, ...], decoder: Decoder, attempt: int = 1) -> None:
        self.topic, self.partition, self.attempt, self._decoder = topic, partition, attempt, decoder
        self._headers: bytes | Mapping[str, str]  # as stored, until they are read
        self.offset, self.uid, self.key_bytes, self.tag_bytes, self._headers, self.raw, self._born = row
        self._body = _UNREAD
        self.run: Run = UNWATCHED

    @property
    def id(self) -> str:
        """The message's uid in the usual UUID notation."""
        return uid_text(self.uid)

    @property
    def key(self) -> str | bytes | None:
        """The key: text, or bytes if it is not UTF-8 (possible only for a key that was sent as bytes)."""
        return decode_key(self.key_bytes)

    @property
    def tag(self) -> str | bytes | None:
        """The tag: text, or bytes if it is not UTF-8."""
        return decode_key(self.tag_bytes)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, including those of EMS; read-only.

        Raises:
            DecodeError: they are damaged.
        """
        headers = self._headers
        if isinstance(headers, bytes):
            self._headers = headers = decode_headers(headers)
        return headers

    @property
    def body(self) -> Any:
        """The decoded body; one that is kept beside the message is read from the server at the first use.

        Raises:
            ContentRefused: its content type is not accepted.
            DecodeError: it is damaged, or it is kept beside the message and no longer there.
            StoreUnavailable: it is kept beside the message, and the server is away.
        """
        if self._body is _UNREAD:
            self._body = self._decoder.decode(self.raw, self.headers)
        return self._body

    @property
    def is_large(self) -> bool:
        """True if its body is kept beside it, so that :attr:`body` reads it from the server."""
        large: bool = self.raw.startswith(LARGE_MARK)
        return large

    @property
    def priority(self) -> int:
        """Priority that the message was sent with, from 0 to 9; 0 if it was sent without one.

        Raises:
            DecodeError: the headers are damaged.
        """
        return priority_of(self.headers)

    @property
    def born_at(self) -> datetime:
        """Time at which the message was written, by the server's clock, in UTC; 1970 if plain SQL has written none."""
        return utc(self._born)

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition}@{self.offset} {self.id}>"


_UNREAD: Any = object()


@dataclass(slots=True)
class Claim:
    """Range of offsets of one partition, held by one client of one group.

    Attributes:
        lo, hi: first and last offset, both included.
        acked_to: the last finished offset.
        isolation: the poison isolation, raised because earlier owners died in the claim.
        messages: the messages to run, by offset; tombstones are left out.
        gone: offset and attempt of retries whose message is no longer in the stream.
        order: the order of its group; ``keys``: the keys of its retries by offset; ``blocked_keys``: the keys that wait
            for an earlier message. The last two are set only if keys are run in order.
        taken_at: when it was taken, by the server's clock; ``taken_ticks``: by the local clock.
        topic, group: their names, for logs and errors.
        ends: by topic id and partition, the offset after the last message of the broadcast topics that its claimant
            named: whatever was committed there before a message of this claim is below it.
    """

    group_id: int
    partition: int
    lo: int
    hi: int
    acked_to: int
    claim_id: int
    source: ClaimSource
    isolation: Isolation
    client_id: str
    messages: list[Message] = field(default_factory=list)
    gone: list[tuple[int, int]] = field(default_factory=list)
    order: Order = Order.NONE
    keys: dict[int, bytes | None] = field(default_factory=dict)
    blocked_keys: frozenset[bytes] = frozenset()
    taken_at: str = ""
    taken_ticks: float = field(default_factory=ticks)
    topic: str = ""
    group: str = ""
    ends: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The claim in words: ``offsets 5 to 9 of orders/0, group billing``."""
        offsets = f"offset {self.lo}" if self.lo == self.hi else f"offsets {self.lo} to {self.hi}"
        return f"{offsets} of {self.topic}/{self.partition}, group {self.group}"

    def server_now(self) -> datetime:
        """Return the server's time without a round trip: its time when the claim was taken, plus the time since."""
        return self.server_time(ticks())

    def server_time(self, at: float) -> datetime:
        """Return the server's time at ``at``, a value of :func:`ticks`."""
        return utc(self.taken_at) + timedelta(seconds=at - self.taken_ticks)

    def waited_s(self, message: Message, until: float) -> float | None:
        """Return for how long a message had waited at ``until``, a value of :func:`ticks`; ``None`` if unknown."""
        if not self.taken_at or message.born_at == NO_TIME:
            return None
        return max(0.0, (self.server_time(until) - message.born_at).total_seconds())


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed attempt at a message, as it is to be recorded.

    Attributes:
        attempt: the number of this run of the message.
        retry_in_s: seconds until the next run, or ``None`` if there is none.
        dead: the reason why it becomes a dead letter, or ``None``.
        ran_s: the run time in seconds, or ``None`` if it is unknown, for example because the worker died.
        suspect: its process or its connection was lost with it, so it runs alone from now on.
        error_type: the class of the error, as :func:`class_name` gives it.
        told: hooks are called where the failure is made; otherwise a dead letter gets a notice for them.
        held: the name of its paused task, if it is put aside because of that: then it has not run.
        due_at: when it is due again, if it is put aside because of a limit of its task: then it has not run.
    """

    offset: int
    attempt: int
    outcome: Outcome
    error: str
    retry_in_s: float | None
    dead: str | None
    ran_s: float | None
    suspect: bool = False
    error_type: str = ""
    told: bool = True
    held: str = ""
    due_at: datetime | None = None

    @classmethod
    def postponed(cls, message: Message, error: str, due_at: datetime) -> Failure:
        """Return the end of a message that a limit of its task keeps from running now; no attempt is charged."""
        return cls(message.offset, message.attempt - 1, Outcome.IGNORED, error, 0.0, None, None, due_at=due_at)

    @classmethod
    def held_back(cls, offset: int, attempt: int, task: str) -> Failure:
        """Return the end of a message of a paused task: it has not run, and no attempt is charged."""
        return cls(offset, attempt - 1, Outcome.IGNORED, held_text(task), 0.0, None, None, held=task)

    @classmethod
    def gone(cls, offset: int, attempt: int) -> Failure:
        """Return the failure of a retry whose message is no longer in the stream."""
        return cls(offset, attempt, Outcome.EXPIRED, "the message was deleted before this run", None, None, None)

    @classmethod
    def decided(
        cls,
        offset: int,
        attempt: int,
        outcome: Outcome,
        error: str,
        decision: Decision,
        ran_s: float | None,
        suspect: bool = False,
        error_type: str = "",
        told: bool = True,
    ) -> Failure:
        """Return the failure that records a decision of the ladder."""
        retry_in_s = decision.delay_s if isinstance(decision, RetryIn) else None
        dead = decision.reason if isinstance(decision, Dead) else None
        return cls(offset, attempt, outcome, error, retry_in_s, dead, ran_s, suspect, error_type, told)


def held_text(task: str) -> str:
    """Return what is kept with a message that is put aside because its task is paused."""
    return f"task {task} is paused"


class Notice(NamedTuple):
    """A dead letter of which no hook was told.

    Attributes:
        message: a row of :class:`Message`.
    """

    group_id: int
    partition: int
    message: tuple[Any, ...]
    attempts: int
    reason: str
    error: str
    error_type: str
