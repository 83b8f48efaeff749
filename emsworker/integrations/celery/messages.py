"""Messages of kombu as they are stored in the stream, and back, exactly as they were sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from amqp.basic_message import Message as AmqpMessage
from kombu.transport.base import Message
from kombu.utils import json

from emsworker.extending.errors import DecodeError, InvalidName, MessageTooLarge
from emsworker.extending.values import (
    COMPRESSION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    MAX_KEY_BYTES,
    TASK_HEADER,
    TASK_NAME,
    Budget,
    NewMessage,
    count_marks,
    encode_headers,
    new_uid,
)
from emsworker.extending.values import Message as StreamMessage
from emsworker.integrations.celery import bodies
from emsworker.integrations.celery.arguments import number_of

_AMQP = "amqp"
# Of the header. A task of Celery has some 60; all messages of a claim, up to a thousand, are opened together, and an
# object takes up to 85 bytes (core/budget.py).
_MAX_OBJECTS = 10_000
_PROPERTIES = frozenset(name for name, _ in AmqpMessage.PROPERTIES)
Published = dict[str, Any]
"""A message between ``prepare_message`` and ``basic_publish``."""


@dataclass(frozen=True)
class Stored:
    """The parts of a published message that are the same for each queue.

    Attributes:
        priority: from 0 to 9, the highest; eta: the time at which Celery runs it.
    """

    headers: bytes
    body: bytes
    task: str
    priority: int
    eta: datetime | None

    @classmethod
    def of(cls, message: Published, exchange: str, routing_key: str, budget: Budget) -> Stored:
        """Encode a message that is published to an exchange.

        Raises:
            MessageTooLarge: receivers would refuse its body, or its headers.
            InvalidName: its task has a name of more than 190 characters, or one that cannot be printed.
            PreconditionFailed: its expiration is no number of milliseconds.
        """
        headers, properties = message["headers"], message["properties"]
        number_of(properties, "expiration")
        kept = {"headers": headers, "properties": properties, "exchange": exchange, "routing_key": routing_key}
        task = headers.get("task")
        if isinstance(task, str) and not (len(task) <= TASK_NAME and task.isprintable()):
            raise InvalidName(f"task {task!r:.300}: give it a name of at most {TASK_NAME} printable characters")
        texts = {CONTENT_TYPE: message["content-type"], CONTENT_ENCODING: message["content-encoding"]}
        texts |= {COMPRESSION: headers.get(COMPRESSION), TASK_HEADER: task}
        block = {name: text for name, text in texts.items() if isinstance(text, str)} | {_AMQP: _text_of(kept)}
        body = message["body"]
        body = body.encode() if isinstance(body, str) else bytes(body)
        bodies.check_sent(body, headers.get(COMPRESSION), message["content-type"], budget)
        return cls(
            encode_headers(block),
            body,
            task if isinstance(task, str) else "",
            _whole(properties.get("priority")),
            _time(headers.get("eta")),
        )

    def copy(self, tag: str, level: int = 0) -> NewMessage:
        """Return a message for one topic; each has an id of its own, because Celery republishes under one."""
        raw = tag.encode()
        kept = raw if len(raw) <= MAX_KEY_BYTES else None
        return NewMessage(new_uid(), None, kept, self.headers, self.body, level=level)


@dataclass(frozen=True)
class Envelope:
    """A stored message as it was published, before it has a channel."""

    body: bytes
    texts: Mapping[str, str]
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str

    @classmethod
    def open(cls, message: StreamMessage) -> Envelope:
        """Decode a message of the stream; one that was not sent by kombu has empty headers.

        Raises:
            DecodeError: its header ``amqp`` does not hold what kombu writes, or too many objects: anybody may write
                such a row by SQL.
        """
        texts = message.headers
        kept = _kept_in(texts[_AMQP]) if _AMQP in texts else {}
        if not isinstance(kept, dict):
            raise DecodeError(f"its header {_AMQP} holds a {type(kept).__name__}, and not what kombu writes")
        parts: dict[str, Any] = {"headers": kept.get("headers") or {}, "properties": kept.get("properties") or {}}
        parts |= {"exchange": kept.get("exchange", ""), "routing_key": kept.get("routing_key", "")}
        for name, part in parts.items():
            if not isinstance(part, dict if name in ("headers", "properties") else str):
                raise DecodeError(f"{name} in its header {_AMQP} is a {type(part).__name__}, and not what kombu writes")
        return cls(message.raw, texts, **parts)

    @property
    def expires_s(self) -> float | None:
        """Seconds after which it is not delivered; none of a task that expires, which its worker revokes."""
        return _seconds(self.properties.get("expiration")) if self.headers.get("expires") is None else None

    @property
    def priority(self) -> int:
        """Priority, from 0 to 9."""
        return _whole(self.properties.get("priority"))

    def unpack(self, budget: Budget, accept: Collection[str] | None) -> bytes:
        """Return the body as kombu would decompress it, if it is within a budget.

        Args:
            accept: the content types that the consumer takes, or ``None`` if that is not known.

        Raises:
            ContentRefused, DecodeError: see :func:`bodies.unpacked`.
        """
        content_type, encoding = self.texts.get(CONTENT_TYPE), self.texts.get(CONTENT_ENCODING)
        return bodies.unpacked(self.body, self.headers.get(COMPRESSION), content_type, encoding, budget, accept)

    def deliver(self, body: bytes, channel: Any, delivery_tag: int, consumer_tag: str, *, redelivered: bool) -> Message:
        """Return the message for a program.

        Args:
            body: what :meth:`unpack` returns.
        """
        info = {
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            "consumer_tag": consumer_tag,
            "delivery_tag": delivery_tag,
            "redelivered": redelivered,
            "priority": self.properties.get("priority"),
        }
        message = Message(
            body=body,
            channel=channel,
            delivery_tag=delivery_tag,
            content_type=self.texts.get(CONTENT_TYPE),
            content_encoding=self.texts.get(CONTENT_ENCODING),
            delivery_info=info,
            properties={**self.properties, "delivery_info": info, "delivery_tag": delivery_tag},
            postencode="utf-8",
        )
        message.headers = dict(self.headers)  # set here, or kombu would decompress what has been decompressed
        return message


def _text_of(kept: dict[str, Any]) -> str:
    try:
        text = str(json.dumps(kept))
    except TypeError:  # py-amqp sends no property that AMQP does not know, whatever it is
        known = {name: value for name, value in kept["properties"].items() if name in _PROPERTIES}
        text = str(json.dumps(kept | {"properties": known}))
    if _has_too_many_objects(text):
        raise MessageTooLarge(f"its headers have more than {_MAX_OBJECTS} objects; put them into the body")
    return text


def _kept_in(text: str) -> Any:
    if _has_too_many_objects(text):
        raise DecodeError(f"its header {_AMQP} has more than {_MAX_OBJECTS} objects")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"its header {_AMQP} is not JSON: {error}") from error


def _has_too_many_objects(text: str) -> bool:
    return len(text) > _MAX_OBJECTS and count_marks(text.encode()) > _MAX_OBJECTS


def _whole(value: Any) -> int:
    try:
        return max(0, min(int(value), 9))
    except (TypeError, ValueError, OverflowError):  # infinite
        return 0


def _seconds(milliseconds: Any) -> float | None:
    try:
        return None if milliseconds is None else max(0.0, float(milliseconds) / 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def _time(text: Any) -> datetime | None:
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):  # outside of the years 1 to 9999 in UTC
        return None
