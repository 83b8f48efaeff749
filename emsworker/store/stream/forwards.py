"""Messages of the outbox whose topic is kept on another server: read here, accepted there once, deleted here.

Between the acceptance and the deletion either server may fail, and then there are two copies of a message. Therefore a
server that accepts one keeps its id for a week, as a deduplication key of the topic, in the transaction that puts the
message into its own outbox: longer than any message that is done stays in a topic without retention. A server that
hands a message on forgets that id with the message itself, so that it may come back.

Copies are in the order in which their servers have kept the topic, and each yields to later ones only: two that yield
to each other would both be gone. So the last copy is deleted only when it has been handed on or sent.

The topic may move at any moment, and a process may be stopped between any two statements. So both the acceptance and
the deletion do nothing if the topic has come to their server or left it since the message was read.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from emsworker.core.batches import in_batches
from emsworker.core.errors import Duplicate
from emsworker.core.large import LargeMessage
from emsworker.core.model import NewMessage
from emsworker.core.servers import ForwardTopic, KeptTopic
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements, insertion
from emsworker.store.stream import large, outbox
from emsworker.store.stream.columns import MESSAGE
from emsworker.store.stream.dedup import FORWARDED
from emsworker.store.stream.guards import hold_unmoved
from emsworker.store.stream.messages import row_bytes

_SQL = Statements(__name__, **MESSAGE)
_REMEMBERED_S = 7 * 86_400
_STATEMENT_BYTES, _PACKET_SLACK = 2 << 20, 8192
_RACES = 10


def find_waiting(session: Session, server: str) -> list[ForwardTopic]:
    """Find the topics that a server keeps and that have messages in the outbox here; one index dive for each topic."""
    return [ForwardTopic(*row) for row in session.rows(_SQL.find_waiting, {"server": server})]


def find_kept(session: Session, topic: str) -> KeptTopic | None:
    """Return under which circumstances this server keeps a topic; ``None`` if it does not."""
    rows = session.rows(_SQL.find_kept, {"topic": topic})
    return KeptTopic(rows[0][0], tuple(rows[0][1].split()), rows[0][2]) if rows else None


def is_any_waiting(session: Session, topic_id: int) -> bool:
    """Return whether a topic has messages in the outbox, due or not."""
    return bool(session.rows(_SQL.is_any_waiting, {"topic_id": topic_id}))


def read(session: Session, topic_id: int, limit: int, most_bytes: int) -> list[NewMessage]:
    """Read the first messages of a topic, due or not, with what is left of their delays.

    Args:
        most_bytes: of headers and bodies, except that one message is read whatever it has.
    """
    return [
        NewMessage.of(
            columns, partition=partition, level=level, delay_s=max(0.0, float(left_s)), producer_id=str(producer_id)
        )
        for partition, producer_id, level, left_s, *columns in session.rows(
            _SQL.read_first, {"topic_id": topic_id, "limit": limit, "most_bytes": most_bytes}
        )
    ]


def accept(session: Session, kept: KeptTopic, messages: Sequence[NewMessage]) -> bool:
    """Put messages into the outbox here, except those that were accepted before.

    Returns:
        False if the topic has been moved or deleted since; nothing was accepted.

    Raises:
        Duplicate: other processes accepted some of them again and again at the same time; nothing was accepted.
    """
    tries = itertools.count(1)
    while True:
        try:
            return session.transaction(lambda session: _accept(session, kept, messages))
        except Duplicate:
            if next(tries) == _RACES:
                raise


def _accept(session: Session, kept: KeptTopic, messages: Sequence[NewMessage]) -> bool:
    topic_id = kept.topic_id
    if not hold_unmoved(session, topic_id, kept.last_move):
        return False
    accepted = find_accepted(session, topic_id, [message.uid for message in messages])
    new = [message for message in messages if message.uid not in accepted]
    if new:
        common = {"topic_id": topic_id, "remembered_s": _REMEMBERED_S}
        keys = [common | {"key": FORWARDED + message.uid, "uid": message.uid} for message in new]
        session.execute(insertion(_SQL.remember, session.mogrify_all(_SQL.remembered_row, keys)))
    most = min(_STATEMENT_BYTES, session.most_bytes - _PACKET_SLACK)
    for part in in_batches(new, row_bytes, most):
        session.execute(outbox.insert_text(session.database, topic_id, part))
    for message in new:
        if isinstance(message, LargeMessage):
            for text in large.insert_texts(session.database, topic_id, message):
                session.execute(text)
    return True


def find_accepted(session: Session, topic_id: int, uids: Sequence[bytes]) -> set[bytes]:
    """Return those messages that were accepted here in the last week."""
    keys = [FORWARDED + uid for uid in uids]
    found = session.rows(_SQL.find_accepted, {"topic_id": topic_id, "keys": keys}) if keys else ()
    return {bytes(key).removeprefix(FORWARDED) for (key,) in found}


def list_waiting(session: Session, topic_id: int) -> list[bytes]:
    """List the ids of a topic's messages in the outbox, due or not."""
    return [bytes(uid) for (uid,) in session.rows(_SQL.list_waiting, {"topic_id": topic_id})]


def delete(session: Session, topic_id: int, uids: Sequence[bytes], last_move: int) -> bool:
    """Delete messages that another server has accepted, and forget that they were accepted here.

    Returns:
        False if the topic has been moved or deleted since; nothing was deleted.
    """

    def work(session: Session) -> bool:
        if not hold_unmoved(session, topic_id, last_move):
            return False
        for text in outbox.delete_texts(topic_id, list(uids)):
            session.execute(text)
        session.execute(_SQL.forget, {"topic_id": topic_id, "keys": [FORWARDED + uid for uid in uids]})
        return True

    return not uids or session.transaction(work)
