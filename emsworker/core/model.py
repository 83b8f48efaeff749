"""The things of the stream as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

from emsworker.core.clock import ticks
from emsworker.core.codec import Decoder, decode_headers
from emsworker.core.errors import ConfigError, DecodeError, Problem
from emsworker.core.filters import EVERYTHING, Filter
from emsworker.core.ids import decode_key, uid_text
from emsworker.core.ladder import Dead, Decision, RetryIn
from emsworker.core.partitioner import numbered, partition_of
from emsworker.core.priority import PRIORITIES, levels_of
from emsworker.core.run import UNWATCHED, Run

TASK_HEADER, EXPIRES_HEADER, SLOT_HEADER, PRIORITY_HEADER = "ems-task", "ems-expires", "ems-slot", "ems-priority"
RESERVED_HEADERS = ("ems-", "content-", "compression")


def priority_header(priority: int | None) -> dict[str, str]:
    """The header that carries a priority, if there is one."""
    return {} if priority is None else {PRIORITY_HEADER: str(priority)}


def priority_of(headers: Mapping[str, str]) -> int:
    """The priority that a message was sent with; without one it is 0.

    Raises:
        DecodeError: the header that carries it is damaged.
    """
    text = headers.get(PRIORITY_HEADER, "0")
    if text not in map(str, PRIORITIES):
        raise DecodeError(f"header {PRIORITY_HEADER} = {text[:100]!r} is no number from 0 to 9")
    return int(text)


class TopicKind(StrEnum):
    """Who gets a message: one client of each group, or every client."""

    CLUSTER = "cluster"
    BROADCAST = "broadcast"


class TopicRule(StrEnum):
    """What a topic allows at present."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"
    NONE = "none"

    @property
    def writable(self) -> bool:
        """Whether messages may be sent."""
        return "w" in self.value

    @property
    def readable(self) -> bool:
        """Whether messages may be claimed."""
        return "r" in self.value


class Order(StrEnum):
    """What of a group's messages runs strictly one after another, retries included.

    ``none``: claims follow the stream, but several run at once. ``partition``: all of a partition. ``key``: those of a
    partition that have the same key; a message without a key is in nobody's way.
    """

    NONE = "none"
    PARTITION = "partition"
    KEY = "key"


class ClaimState(StrEnum):
    """``start``: a client works on it; ``waiting``: free to be adopted; ``done``: all of it is finished."""

    START = "start"
    WAITING = "waiting"
    DONE = "done"


class Isolation(IntEnum):
    """Under how much suspicion a claim is: each crash narrows it down, and only ``ALONE`` charges anybody."""

    NONE = 0
    FEW = 1  # claimed by a few dozen, after a first crash
    ALONE = 2  # claimed one by one, each written down before it starts, no two at once in a process


class ClaimSource(StrEnum):
    """Where a claim's messages come from: a range of the stream, or due retries."""

    STREAM = "stream"
    RETRY = "retry"


class Entry(StrEnum):
    """What a guard finds: nobody did it, it is done, somebody does it, or somebody began it and died."""

    FIRST = "first"
    DONE = "done"
    BUSY = "busy"
    UNCERTAIN = "uncertain"


class Outcome(StrEnum):
    """How one attempt at a message ended, as ``ems_attempt`` tells it."""

    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    ORPHANED = "orphaned"
    IGNORED = "ignored"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Topic:
    """A named stream.

    Attributes:
        retention_s: seconds for which messages are kept, or ``None`` for ever.
        trim_done: messages are deleted as soon as every group is done with them.
        age_wins: what is older than ``retention_s`` is deleted even if a group has not claimed it yet.
        priorities: how many levels of priority it tells apart, 1 for none; each has partitions of its own.
        archive_first: retention drops nothing by itself; the job ``archive`` does, when it has copied it.
    """

    id: int
    name: str
    kind: TopicKind
    partitions: int
    rule: TopicRule
    max_message_bytes: int
    retention_s: float | None
    trim_done: bool = False
    age_wins: bool = False
    priorities: int = 1
    archive_first: bool = False

    def partition_numbers(self) -> list[int]:
        """The numbers of all its partitions, those of higher priority included."""
        levels = levels_of(self.priorities)
        return [numbered(level, partition) for level in levels for partition in range(self.partitions)]

    def check_kind(self, kind: TopicKind) -> Topic:
        """Return it if it is of that kind.

        Raises:
            ConfigError: it is of the other one.
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


@dataclass(frozen=True)
class Group:
    """A named set of clients that share the work of a topic."""

    id: int
    topic_id: int
    name: str
    timeout_s: float
    ladder: str
    max_attempts: int
    paused: bool
    filter: Filter = EVERYTHING
    order: Order = Order.NONE


@dataclass(slots=True)
class NewMessage:
    """A message on its way into the stream.

    Attributes:
        partition: of its level, chosen by the sender; by default its key decides.
        level: of priority, one of :func:`levels_of` the topic's.
    """

    uid: bytes
    key: bytes | None
    tag: bytes | None
    headers: bytes
    body: bytes
    partition: int | None = None
    level: int = 0

    def place(self, partitions: int, otherwise: int) -> int:
        """The number of the partition that it goes to.

        Args:
            partitions: how many the topic has for each level of priority.
            otherwise: decides for a message that has neither a partition nor a key.
        """
        if self.partition is not None:
            return numbered(self.level, self.partition)
        return numbered(self.level, otherwise % partitions if self.key is None else partition_of(self.key, partitions))


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a confirmed send returns.

    Args:
        id: the message's uid.
        offset: its place, or ``None`` while it is delayed.
        created: false if a message with this id was in the topic already.
    """

    id: str
    topic: str
    partition: int | None
    offset: int | None
    created: bool = True


class Message:
    """A message as a handler sees it.

    Attributes:
        topic, partition, offset: its place in the stream.
        attempt: 1 for its first run in this group.
        key_bytes, tag_bytes: as they are stored, or ``None``; ``key`` and ``tag`` give them as text.
        raw: the encoded body.
        run: its present run: what time is left, asking for more, telling the progress.
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
        self.offset, self.uid, self.key_bytes, self.tag_bytes, self._headers, self.raw, self._born = row
        self._body = _UNREAD
        self.run: Run = UNWATCHED

    @property
    def id(self) -> str:
        """The message's uid in its usual writing."""
        return uid_text(self.uid)

    @property
    def key(self) -> str | bytes | None:
        """The key: text, or bytes if it is no UTF-8 (which only a key that was sent as bytes can be)."""
        return decode_key(self.key_bytes)

    @property
    def tag(self) -> str | bytes | None:
        """The tag: text, or bytes if it is no UTF-8."""
        return decode_key(self.tag_bytes)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, ours included; read-only.

        Raises:
            DecodeError: they are damaged.
        """
        return decode_headers(self._headers)

    @property
    def body(self) -> Any:
        """The decoded body.

        Raises:
            ContentRefused: its content type is not accepted.
            DecodeError: it is damaged.
        """
        if self._body is _UNREAD:
            self._body = self._decoder.decode(self.raw, self.headers)
        return self._body

    @property
    def priority(self) -> int:
        """As it was sent, from 0, which is also that of a message without one, to 9.

        Raises:
            DecodeError: the headers are damaged.
        """
        return priority_of(self.headers)

    @property
    def born_at(self) -> datetime:
        """When it was written, by the server's clock, in UTC."""
        return datetime.fromisoformat(self._born).replace(tzinfo=UTC)

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition}@{self.offset} {self.id}>"


_UNREAD: Any = object()


@dataclass(slots=True)
class Claim:
    """A range of offsets of one partition, held by one client of one group.

    Attributes:
        lo, hi: first and last offset, both included.
        acked_to: the last finished offset.
        isolation: how carefully to run it, because earlier owners died in it.
        messages: what is to be run, by offset; tombstones are left out.
        gone: offset and attempt of retries whose message is not in the stream any more.
        order: of its group; keys: of its retries by offset, and blocked_keys: the keys that wait for an earlier
            message, both where keys are run in order.
        taken_at: when it was taken, by the server's clock; ``taken_ticks``: by our own.
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

    def server_now(self) -> datetime:
        """The server's time now, without asking: what it was when the claim was taken, and the time since."""
        return datetime.fromisoformat(self.taken_at).replace(tzinfo=UTC) + timedelta(seconds=ticks() - self.taken_ticks)


@dataclass(frozen=True, slots=True)
class Failure:
    """One message that did not end well, as it is to be written down.

    Attributes:
        attempt: which run of the message this was.
        retry_in_s: seconds until the next run, or ``None`` if there is none.
        dead: the reason why it becomes a dead letter, or ``None``.
        ran_s: how long it ran, or ``None``: nobody who lives knows.
        suspect: it took its process or its connection along, so it runs alone from now on.
    """

    offset: int
    attempt: int
    outcome: Outcome
    error: str
    retry_in_s: float | None
    dead: str | None
    ran_s: float | None
    suspect: bool = False

    @classmethod
    def gone(cls, offset: int, attempt: int) -> Failure:
        """A retry whose message is not in the stream any more."""
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
    ) -> Failure:
        """What a decision of the ladder means for a message."""
        retry_in_s = decision.delay_s if isinstance(decision, RetryIn) else None
        dead = decision.reason if isinstance(decision, Dead) else None
        return cls(offset, attempt, outcome, error, retry_in_s, dead, ran_s, suspect)
