"""Large bodies in MySQL: sent beside their messages, and read when a handler asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from emsworker.core.errors import MessageTooLarge
from emsworker.core.large import LARGE_BYTES, LargeBody, LargeMessage, put_beside
from emsworker.core.model import NewMessage, Receipt, Topic
from emsworker.publish.outbox import Outbox
from emsworker.store.engine.database import Database
from emsworker.store.stream import large


def send_large(
    outbox: Outbox,
    send: Callable[[Topic, Sequence[NewMessage]], list[Receipt]],
    topic: Topic,
    messages: Sequence[NewMessage],
    transaction: Any = None,
) -> list[Receipt]:
    """Store messages of which some have large bodies.

    A body and its message are written in one transaction, by the outbox. What could be written to the stream at once
    goes in its order: each large message in a transaction of its own, and what stands between two of them together.

    Args:
        send: writes messages to the stream at once.

    Raises:
        MessageTooLarge: the topic is archived; nothing was sent.
    """
    if topic.archive_first:
        raise MessageTooLarge(
            f"topic {topic.name!r} is archived before messages are deleted, and archives hold no body of more than "
            f"{LARGE_BYTES} bytes; nothing was sent (lower max_message_bytes, or change archive_first)"
        )
    if transaction is not None or not all(one.is_direct for one in messages):
        return _store(outbox, topic, messages, transaction)
    receipts: list[Receipt] = []
    for is_large, some in groupby(messages, _is_large):
        if is_large:
            for message in some:
                receipts += _store(outbox, topic, [message])
        else:
            receipts += send(topic, list(some))
    return receipts


def _is_large(message: NewMessage) -> bool:
    return len(message.body) > LARGE_BYTES


def _store(outbox: Outbox, topic: Topic, messages: Sequence[NewMessage], transaction: Any = None) -> list[Receipt]:
    stored = [put_beside(one) if _is_large(one) else one for one in messages]
    beside = [one for one in stored if isinstance(one, LargeMessage)]
    return outbox.send(topic, stored, transaction, beside)


def load_large(database: Database, raw: bytes, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """Return the body that a message refers to, and the headers by which it is decoded.

    Raises:
        DecodeError: the reference is damaged, or the body is not there.
    """
    reference = LargeBody.decode(raw)
    return database.call(lambda session: large.read(session, reference)), reference.restore(headers)
