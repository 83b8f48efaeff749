"""Results of tasks: written with the watermark of their claim, read by whoever asks, swept by the beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.store.session import Packet, Session
from emsworker.store.sql import Statements

_SQL = Statements("results")
_ERROR_CHARACTERS = 8000


@dataclass(frozen=True, slots=True)
class ResultRow:
    """How a message ended, as it is kept.

    Attributes:
        uid: of the message.
        body: the value as JSON, or ``None`` if it failed.
        error_type, error, traceback: of the exception, or ``None`` if it ended well.
        ttl_s: how many seconds to keep it.
    """

    uid: bytes
    body: bytes | None
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None
    ttl_s: float = 0.0


def add_results(packet: Packet, topic_id: int, group_id: int, results: Sequence[ResultRow]) -> None:
    """Append the results of a claim's messages to an open transaction, in one statement."""
    if not results:
        return
    shape = (
        "(%(topic_id)s,%(uid)s,%(group_id)s,%(state)s,%(body)s,%(error_type)s,%(error)s,%(traceback)s,"
        "NOW(6),NOW(6) + INTERVAL %(ttl_s)s SECOND)"
    )
    rows = [
        packet.session.mogrify(
            shape,
            {
                "topic_id": topic_id,
                "uid": row.uid,
                "group_id": group_id,
                "state": "done" if row.error_type is None else "failed",
                "body": row.body,
                "error_type": row.error_type,
                "error": row.error,
                "traceback": row.traceback,
                "ttl_s": row.ttl_s,
            },
        )
        for row in sorted(results, key=lambda row: row.uid)
    ]
    packet.add_escaped(f"{_SQL.insert_results} {','.join(rows)} {_SQL.insert_results_end}")


def storable(text: str) -> str:
    """The end of an error's text; half a surrogate pair has no UTF-8 form."""
    return text[-_ERROR_CHARACTERS:].encode(errors="backslashreplace").decode()


def find(
    session: Session, topic_ids: Sequence[int], uids: Sequence[bytes], group: str | None
) -> dict[bytes, ResultRow]:
    """The results that are known, by uid."""
    if not topic_ids or not uids:
        return {}
    args = {"topic_ids": list(topic_ids), "uids": list(uids), "group": group}
    found: dict[bytes, ResultRow] = {}
    for uid, _, body, error_type, error, traceback in session.rows(_SQL.find_results, args):
        found.setdefault(uid, ResultRow(uid, body, error_type, error, traceback))
    return found


def find_buried(
    session: Session, topic_ids: Sequence[int], uids: Sequence[bytes], group: str | None
) -> dict[bytes, ResultRow]:
    """The messages that are dead letters, by uid."""
    if not topic_ids or not uids:
        return {}
    args = {"topic_ids": list(topic_ids), "uids": list(uids), "group": group}
    found: dict[bytes, ResultRow] = {}
    for uid, reason, error in session.rows(_SQL.find_buried, args):
        kind, _, text = (error.strip().splitlines() or [reason])[-1].partition(": ")
        found[uid] = ResultRow(uid, None, kind.rsplit(".", 1)[-1][:255] or "DeadLetter", text or reason, error)
    return found


def forget(session: Session, topic_ids: Sequence[int], uids: Sequence[bytes]) -> int:
    """Delete results; returns how many."""
    if not topic_ids or not uids:
        return 0
    args = {"topic_ids": list(topic_ids), "uids": list(uids)}
    return session.change(_SQL.delete_results, args)


def sweep(session: Session, limit: int) -> int:
    """Delete up to ``limit`` results whose time has passed; returns how many."""
    return session.change(_SQL.delete_expired, {"limit": limit})
