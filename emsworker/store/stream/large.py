"""Bodies that are kept beside their messages, in chunks: written with them, read by handlers, deleted after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from emsworker.core.errors import DecodeError
from emsworker.core.large import CHUNK_BYTES, LargeBody, LargeMessage, chunks_of
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Part, Sql, Statements, fill, identifier, insertion, literal

# The id in a reference, see LargeBody.encode().
_REFERS = {f"refers_{table}": f"SUBSTRING({table}.body, 31, 32) = LOWER(HEX(b.body_id))" for table in "pmd"}
_SQL = Statements(__name__, **_REFERS)
_CHUNKS_A_READ = 8
_FIRST, _LAST = b"", b"\xff" * 16


def insert_texts(database: str, topic_id: int, message: LargeMessage) -> Iterator[Sql]:
    """Yield complete statements that write the body of a message, in the transaction that writes the message.

    Each is short enough for every server, and can be repeated.
    """
    named: dict[str, Part] = {"database": identifier(database), "body_id": literal(message.body_id)}
    size = len(message.whole)
    head = fill(_SQL.insert_body, {**named, "topic_id": topic_id, "uid": literal(message.uid), "size": size})
    yield insertion(head, (), _SQL.note_again)
    for number, data in enumerate(message.chunks()):
        yield fill(_SQL.insert_chunk, {**named, "chunk": number, "data": literal(data)})


def read(session: Session, large: LargeBody) -> bytes:
    """Read a body.

    Raises:
        DecodeError: it is not there.
    """
    whole = _read(session, large, _SQL.read_chunks)
    if len(whole) != large.size:
        raise DecodeError(
            f"the body of {large.size} bytes that is kept beside the message is not there ({large.body_id.hex()}): "
            "the message was deleted, or this is a copy of it, such as from an archive"
        )
    return whole


def read_result(session: Session, large: LargeBody) -> bytes:
    """Read a result that is kept beside its row.

    Raises:
        DecodeError: it is not there.
    """
    whole = _read(session, large, _SQL.read_result_chunks)
    if len(whole) != large.size:
        raise DecodeError(f"the result of {large.size} bytes was deleted meanwhile ({large.body_id.hex()})")
    return whole


def _read(session: Session, large: LargeBody, statement: Sql) -> bytes:
    parts: list[bytes] = []
    count = -(-large.size // CHUNK_BYTES)
    for first in range(0, count, _CHUNKS_A_READ):
        last = min(first + _CHUNKS_A_READ, count) - 1
        rows = session.rows(statement, {"body_id": large.body_id, "first": first, "last": last})
        if len(rows) != last + 1 - first:
            break
        parts += [data for (data,) in rows]
    return b"".join(parts)


def add_result(packet: Packet, topic_id: int, uid: bytes, body_id: bytes, whole: bytes) -> None:
    """Append the statements that write a result beside its row to the transaction that writes the row."""
    packet.add(_SQL.insert_result_body, {"body_id": body_id, "topic_id": topic_id, "uid": uid, "size": len(whole)})
    for number, data in enumerate(chunks_of(whole)):
        packet.add(_SQL.insert_result_chunk, {"body_id": body_id, "chunk": number, "data": data})


class FoundBodies(NamedTuple):
    """Some bodies in the order of their ids.

    Attributes:
        last: the last one; ``None`` after the end.
        unused: those that no message needs.
    """

    last: bytes | None
    unused: list[bytes]


def look(session: Session, after: bytes | None, limit: int) -> FoundBodies:
    """Look at the next bodies after one of them, at the first ones by default."""
    found = session.rows(_SQL.list_bodies, {"after": after or _FIRST, "last": _LAST, "limit": limit})
    last = bytes(found[-1][0]) if len(found) == limit else None
    return FoundBodies(last, [bytes(body_id) for body_id, is_needed in found if not is_needed])


def delete_unused(session: Session, body_id: bytes) -> bool:
    """Delete a body, unless a message needs it by now, or its sender is just writing it again."""

    def work(session: Session) -> bool:
        if not session.rows(_SQL.lock_body, {"body_id": body_id}):
            return False
        before = (int.from_bytes(body_id) - 1).to_bytes(16) if any(body_id) else _FIRST
        ((_, is_needed),) = session.rows(_SQL.list_bodies, {"after": before, "last": body_id, "limit": 1})
        if is_needed:
            return False
        session.execute(_SQL.delete_chunks, {"body_id": body_id})
        session.execute(_SQL.delete_result_chunks, {"body_id": body_id})
        session.execute(_SQL.delete_body, {"body_id": body_id})
        return True

    return session.transaction(work)
