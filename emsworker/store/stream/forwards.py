"""Messages of the outbox whose topic is kept on another server: read here, accepted there once, deleted here.

Between the acceptance and the deletion either server may fail, and then the messages are offered again. Therefore the
accepting server keeps each message's id for a week, as a deduplication key of the topic, in the transaction that puts
the message into its own outbox: longer than any message that is done stays in a topic without retention. A server
accepts nothing for a topic that it keeps no longer, so that what the servers before it have accepted is known for
certain when a topic has moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.core.batches import in_batches
from emsworker.core.model import NewMessage, Topic
from emsworker.store.engine.errors import Duplicate
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements, nest
from emsworker.store.stream import outbox
from emsworker.store.stream.guards import kept_topic_id_text
from emsworker.store.stream.messages import row_bytes

_SQL = Statements(__name__)
_REMEMBERED_S = 7 * 86_400
_KEY = b"\0forwarded "  # no dedup key of a sender begins like that: theirs are text
_STATEMENT_BYTES, _PACKET_SLACK = 2 << 20, 8192
_RACES = 10


@dataclass(frozen=True)
class ForwardTopic:
    """A topic of another server, with messages in the outbox of this one."""

    topic_id: int
    topic: str


def find_waiting(session: Session, server: str) -> list[ForwardTopic]:
    """Find the topics that a server keeps and that have messages in the outbox here; one index dive for each topic."""
    return [ForwardTopic(*row) for row in session.rows(_SQL.find_waiting, {"server": server})]


def is_any_waiting(session: Session, topic_id: int) -> bool:
    """Return whether a topic has messages in the outbox, due or not."""
    return bool(session.rows(_SQL.is_any_waiting, {"topic_id": topic_id}))


def read(session: Session, topic_id: int, limit: int) -> list[NewMessage]:
    """Read the first messages of a topic, due or not, with what is left of their delays."""
    return [
        NewMessage(
            uid, key, tag, headers, body, partition, level, max(0.0, float(left_s)), producer_id=str(producer_id)
        )
        for uid, partition, key, tag, headers, body, producer_id, level, left_s in session.rows(
            _SQL.read_first, {"topic_id": topic_id, "limit": limit}
        )
    ]


def accept(session: Session, topic: Topic, messages: Sequence[NewMessage]) -> int:
    """Put messages into the outbox here, except those that were accepted before; return how many were new.

    Raises:
        AssertionBroken: the topic was deleted, or has moved to another server; nothing was accepted.
        Duplicate: other processes offered the same again and again at the same time; nothing was accepted.
    """
    for left in reversed(range(_RACES)):
        try:
            return session.again_on_conflict(lambda: _accept(session, topic, messages))
        except Duplicate:
            if not left:
                raise
    raise AssertionError("it has returned or raised")


def _accept(session: Session, topic: Topic, messages: Sequence[NewMessage]) -> int:
    accepted = find_accepted(session, topic.id, [message.uid for message in messages])
    new = [message for message in messages if message.uid not in accepted]
    if not new:
        return 0
    packet = session.packet()
    packet.begin()
    common = {"topic_id": topic.id, "remembered_s": _REMEMBERED_S}
    first, *others = [common | {"key": _KEY + message.uid, "uid": message.uid} for message in new]
    guarded_row = nest(_SQL.remembered_row, "topic_id", kept_topic_id_text(session.database, topic.id))
    rows = [session.mogrify(guarded_row, first), *session.mogrify_all(_SQL.remembered_row, others)]
    packet.add_rows(_SQL.remember, rows)
    most = min(_STATEMENT_BYTES, session.most_bytes - _PACKET_SLACK)
    for part in in_batches(new, row_bytes, most):
        packet.add(outbox.insert_text(session.database, topic.id, part))
    packet.commit()
    packet.send()
    return len(new)


def find_accepted(session: Session, topic_id: int, uids: Sequence[bytes]) -> set[bytes]:
    """Return those messages that were accepted here in the last week."""
    keys = [_KEY + uid for uid in uids]
    found = session.rows(_SQL.find_accepted, {"topic_id": topic_id, "keys": keys}) if keys else ()
    return {bytes(key).removeprefix(_KEY) for (key,) in found}


def list_waiting(session: Session, topic_id: int) -> list[bytes]:
    """List the ids of a topic's messages in the outbox, due or not."""
    return [bytes(uid) for (uid,) in session.rows(_SQL.list_waiting, {"topic_id": topic_id})]


def delete(session: Session, topic_id: int, uids: Sequence[bytes]) -> None:
    """Delete messages that another server has accepted."""
    for text in outbox.delete_texts(topic_id, list(uids)):
        session.change(text)
