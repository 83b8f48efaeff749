"""The outbox of one server, as seen by what forwards its messages to the topics of another server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from emsworker.broker.mysql import MysqlBroker
from emsworker.core.batches import in_batches
from emsworker.core.codec import LARGE_MARK
from emsworker.core.large import carry, reference_of
from emsworker.core.model import NewMessage
from emsworker.core.servers import ForwardTopic
from emsworker.store.cluster import clients
from emsworker.store.stream import forwards, large, outbox
from emsworker.store.stream.messages import row_bytes

_BATCH, _BYTES = 200, 4 << 20


class ForwardedOutbox:
    """Reads messages for another server, and deletes them when that has them; one process leads at a time.

    Args:
        source: the stream on the server with the outbox, which may be away.
        target: the name of the other server.
        holder: this process.
    """

    def __init__(self, source: MysqlBroker, target: str, holder: str) -> None:
        self._source, self._target, self._holder = source, target, holder
        self._service = f"forward:{target}"[:64]

    def try_to_lead(self, lease_s: float) -> bool:
        """Return whether this process forwards, for ``lease_s`` seconds from now."""
        return self._source.database.call(
            lambda session: clients.try_to_lead(session, self._service, self._holder, lease_s), lease_s
        )

    def resign(self) -> None:
        """Let another process lead at once."""
        self._source.database.call(lambda session: clients.resign(session, self._service, self._holder), 1.0)

    def topics(self) -> list[ForwardTopic]:
        """Return the topics for which messages wait."""
        return self._source.database.call(lambda session: forwards.find_waiting(session, self._target))

    def batches(self, topic_id: int) -> Iterator[list[NewMessage]]:
        """Yield the first messages of a topic, a few megabytes at a time; one whose body is large goes alone."""
        messages = self._source.database.call(lambda session: forwards.read(session, topic_id, _BATCH, _BYTES))
        return in_batches(messages, _weight, _BYTES)

    def with_body(self, message: NewMessage) -> NewMessage:
        """Return a message with the body that is kept beside it, which the other server has to have, too.

        Raises:
            DecodeError: it is not there.
        """
        found = reference_of(message)
        if found is None:
            return message
        return carry(message, found, self._source.database.call(partial(large.read, large=found)))

    def refuse(self, topic_id: int, uid: bytes, why: str) -> None:
        """Set a message aside that the other server does not take."""
        self._source.database.call(partial(outbox.refuse, topic_id=topic_id, uid=uid, why=why))

    def delete(self, topic: ForwardTopic, messages: Sequence[NewMessage]) -> bool:
        """Delete messages that the other server has; return false, and delete none, if the topic has moved since."""
        uids = [message.uid for message in messages]
        return self._source.database.call(
            partial(forwards.delete, topic_id=topic.topic_id, uids=uids, last_move=topic.last_move)
        )


def _weight(message: NewMessage) -> int:
    return _BYTES + 1 if message.body.startswith(LARGE_MARK) else row_bytes(message)
