"""A message on its way in: its options, their checks, and its encoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypedDict

from emsworker.core.codec import CALL, encode_body, encode_headers
from emsworker.core.config import Settings
from emsworker.core.durations import parse_duration
from emsworker.core.errors import ConfigError, EncodeError, InvalidName, MessageTooLarge, Problem, TopicRuleError
from emsworker.core.ids import check_name, encode_key, new_uid, parse_uid
from emsworker.core.model import PRIORITY_HEADER, TASK_HEADER, NewMessage, Topic, TopicKind
from emsworker.core.options import is_whole, refuse_reserved, refuse_unknown
from emsworker.core.priority import check_priority, level_for
from emsworker.core.times import in_utc

_TIMES = ("countdown", "eta", "delay")
_YEARS = range(1970, 9000)  # later years mark rows that wait for something other than a time


class DeliveryOptions(TypedDict, total=False):
    """Options that a message and a task's call have in common; see :class:`Outgoing`."""

    key: str | bytes | None
    partition: int | None
    tag: str | bytes | None
    headers: dict[str, str]
    serializer: str | None
    compression: str | None
    dedup_key: str | bytes | None
    dedup_window: str | float
    priority: int | None
    countdown: float | None
    eta: datetime | None
    delay: str | float | None


class SendOptions(DeliveryOptions, total=False):
    """Options of :meth:`Ems.send`, for type checkers; see :class:`Outgoing`."""

    uid: str | None


@dataclass(slots=True)
class Outgoing:
    """A message before it is encoded; middleware may still change it.

    Args:
        key: messages with the same key share a partition.
        partition: instead of a key.
        tag: one short word that groups can filter by.
        headers: text by text.
        uid: a UUID of the caller's own; a second message with it is not written.
        serializer, compression: instead of the app's.
        dedup_key: of all messages of the topic with the same key, only the first is written while it is not finished
            in every group, or its window lasts.
        dedup_window: that window, as seconds or text (``"5m"``).
        priority: 0 to 9; higher ones are run first, if the topic distinguishes priorities.
        countdown: seconds before it may be read.
        eta: the time from which it may be read; without a zone it is UTC.
        delay: a duration before it may be read, as text (``"10m"``) or seconds.

    Raises:
        EncodeError: the headers are not a mapping.
        ConfigError: more than one time was given, or a message cannot be read at that time.
    """

    topic: str
    body: Any
    key: str | bytes | None = None
    partition: int | None = None
    tag: str | bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    uid: str | None = None
    serializer: str | None = None
    compression: str | None = None
    dedup_key: str | bytes | None = None
    dedup_window: str | float = "5m"
    priority: int | None = None
    countdown: float | None = None
    eta: datetime | None = None
    delay: str | float | None = None

    def __post_init__(self) -> None:
        if type(self.headers) is not dict and self.headers is not None and not isinstance(self.headers, Mapping):
            raise EncodeError(f"headers = {self.headers!r}: they must be a dict of str by str")
        self.headers = dict(self.headers or ())  # middleware writes here, not into the caller's dict
        if self.is_delayed:
            self._due()

    @property
    def is_delayed(self) -> bool:
        """True if it is to be read later."""
        return self.countdown is not None or self.eta is not None or self.delay is not None

    def _due(self) -> tuple[float | None, datetime | None]:
        """Return the seconds, or the time, before which it is not read."""
        given = [name for name in _TIMES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError([Problem(given[1], str(getattr(self, given[1])), f"give either {' or '.join(given)}")])
        if self.eta is not None:
            return None, _read_eta(self.eta)
        return _read_span(given[0], getattr(self, given[0])), None

    def encode(self, settings: Settings) -> NewMessage:
        """Return the message as it is stored, independently of its topic.

        Raises:
            EncodeError, InvalidName, InvalidPriority, ConfigError: it cannot be stored.
            MessageTooLarge: receivers would refuse its body (``max_decoded_bytes``, ``max_decoded_objects``).
        """
        if (task := self.headers.get(TASK_HEADER)) is not None:
            check_name("task", task)  # whoever sends a call by name only, and not by a task that was declared
        body, headers = encode_body(
            self.body,
            self.serializer or settings.serializer,
            self.compression or settings.compression,
            names=() if task is None else CALL,
            budget=settings.budget,
        )
        headers |= self.headers
        if self.priority is not None:
            check_priority(self.priority)
            headers[PRIORITY_HEADER] = str(self.priority)
        if self.partition is not None and not is_whole(self.partition):
            raise InvalidName(f"partition {self.partition!r:.100}: it must be a whole number")
        uid = new_uid() if self.uid is None else parse_uid(self.uid)
        key, tag = encode_key("key", self.key), encode_key("tag", self.tag)
        message = NewMessage(uid, key, tag, encode_headers(headers), body, self.partition)
        message.priority, message.is_call, message.has_own_uid = self.priority, task is not None, self.uid is not None
        if self.is_delayed:
            message.delay_s, message.due_at = self._due()
        if self.dedup_key is not None:
            message.dedup_key = encode_key("dedup_key", self.dedup_key)
            message.dedup_window_s = _read_span("dedup_window", self.dedup_window)
        return message


MESSAGE_OPTIONS = frozenset(item.name for item in fields(Outgoing)) - {"topic", "body"}
"""The options of a message."""


def admit(topic: Topic, message: NewMessage) -> None:
    """Check that the topic takes a message, and set its priority level.

    Raises:
        TopicRuleError, InvalidName, MessageTooLarge, InvalidPriority: it does not; nothing was sent.
    """
    if not topic.rule.writable:
        raise TopicRuleError(
            f"topic {topic.name!r} has the rule {topic.rule.value!r}; nothing was sent "
            "(`ems topics change` sets the rule)"
        )
    if topic.kind is TopicKind.BROADCAST and message.is_call:
        raise TopicRuleError(
            f"topic {topic.name!r} is a broadcast topic, and tasks are run by groups; nothing was sent "
            "(send it a plain message, or the task to another topic)"
        )
    if message.partition is not None and message.partition not in range(topic.partitions):
        raise InvalidName(
            f"partition {message.partition!r} of topic {topic.name!r} does not exist; "
            f"it has 0 to {topic.partitions - 1}"
        )
    if len(message.body) > topic.max_message_bytes:
        raise MessageTooLarge(
            f"a body of {len(message.body)} bytes is over the limit of topic {topic.name!r}, "
            f"{topic.max_message_bytes} bytes; nothing was sent (`ems topics change` raises its max_message_bytes)"
        )
    message.level = 0 if message.priority is None else level_for(topic.name, topic.priorities, message.priority)


def _read_span(name: str, value: str | float) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ConfigError([Problem(name, repr(value), str(error))]) from None


def _read_eta(eta: Any) -> datetime:
    if not isinstance(eta, datetime):
        raise ConfigError([Problem("eta", repr(eta), "must be a datetime; `countdown` takes seconds")])
    try:
        due_at = in_utc(eta)
        if due_at.year not in _YEARS:
            raise ValueError(f"it lies outside of the years {_YEARS[0]} to {_YEARS[-1]}")
    except ValueError as error:
        raise ConfigError([Problem("eta", eta.isoformat(), str(error))]) from None
    return due_at


def checked(topic: str, body: Any, options: SendOptions) -> Outgoing:
    """Return a message with the options that a user has named, checked.

    Raises:
        ConfigError: an option is unknown, or a header is reserved.
    """
    if options:
        refuse_unknown("send()", options, MESSAGE_OPTIONS)
        refuse_reserved(options.get("headers"))
    return Outgoing(topic, body, **options)


def checked_many(topic: str, bodies: Any, options: SendOptions) -> list[Outgoing]:
    """Return messages of bodies, or of an :class:`Outgoing` each, with the options that a user has named, checked.

    Raises:
        ConfigError: an option is unknown or would not reach a message, a header is reserved, or this is no list.
        InvalidName: a message is for another topic.
    """
    refuse_unknown("send_many()", options, MESSAGE_OPTIONS)
    refuse_reserved(options.get("headers"))
    if isinstance(bodies, str | bytes | Mapping) or not isinstance(bodies, Iterable):
        fix = "must be a list of bodies, or another iterable of them; send() sends a single one"
        raise ConfigError([Problem("bodies", f"a {type(bodies).__name__}", fix)])
    outgoing = [*_outgoing(topic, list(bodies), options)]
    for item in outgoing:
        refuse_reserved(item.headers)
        if item.topic != topic:
            raise InvalidName(f"send_many to topic {topic!r} was given a message for {item.topic!r}; send it apart")
    return outgoing


def _outgoing(topic: str, bodies: list[Any], options: Mapping[str, Any]) -> Iterator[Outgoing]:
    own = any(isinstance(body, Outgoing) for body in bodies)
    if own and (theirs := [name for name in options if name not in _TIMES]):
        fix = "an Outgoing has options of its own, and these would not reach it; give them to each Outgoing"
        raise ConfigError([Problem(name, repr(options[name]), fix) for name in theirs])
    for body in bodies:
        if isinstance(body, Outgoing):
            yield replace(body, **options) if options else body
        else:
            yield Outgoing(topic, body, **options)
