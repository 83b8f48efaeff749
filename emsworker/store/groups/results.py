"""Results of tasks: written with the acked offset of their claim, read by callers, swept by the beat."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from emsworker.core.errors import error_line
from emsworker.core.flush import ResultRow
from emsworker.core.ids import uid_text
from emsworker.core.large import RESULT_BYTES, result_reference
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Sql, Statements, column, fill_rows
from emsworker.store.stream.large import add_result

_SQL = Statements(__name__)
_STATEMENT_BYTES = len(_SQL.insert_results) + len(_SQL.insert_results_end) + 2
_UIDS_A_STATEMENT = 1000  # times the topics, of which 16,000 is the most that MariaDB looks up by an index
_UID = attrgetter("uid")

log = logging.getLogger(__name__)


def add_results(packet: Packet, topic_id: int, group_id: int, results: Sequence[ResultRow]) -> None:
    """Append the results of a claim's messages to an open transaction, in as few statements as the server accepts."""
    if results:
        ordered = sorted(results, key=_UID)
        rows = _done_rows(packet, topic_id, group_id, ordered)
        rows = rows or [_row(packet, topic_id, group_id, row) for row in ordered]
        packet.add_rows(_SQL.insert_results, rows, _SQL.insert_results_end)


def _done_rows(packet: Packet, topic_id: int, group_id: int, results: Sequence[ResultRow]) -> list[Sql]:
    """Return the rows of results of tasks that have all succeeded, which takes a third of the time; else none."""
    ttl_s, most_bytes = results[0].ttl_s, packet.session.most_bytes // 4  # a byte is written as two characters
    most_bytes = min(most_bytes, RESULT_BYTES + 1)
    bodies = [row.body for row in results if row.body is not None and row.ttl_s == ttl_s and len(row.body) < most_bytes]
    if len(bodies) < len(results):
        return []
    common = packet.session.literals({"topic_id": topic_id, "group_id": group_id, "ttl_s": ttl_s})
    return fill_rows(_SQL.done_row, common, {"uid": column([row.uid for row in results]), "body": column(bodies)})


def _row(packet: Packet, topic_id: int, group_id: int, row: ResultRow) -> Sql:
    if row.body_id is not None and row.body is not None:
        add_result(packet, topic_id, row.uid, row.body_id, row.body)
        row = replace(row, body=result_reference(row.body_id, len(row.body)), body_id=None)
    text = packet.session.mogrify(
        _SQL.result_row,
        {
            "topic_id": topic_id,
            "uid": row.uid,
            "group_id": group_id,
            "state": "cancelled" if row.cancelled else "done" if row.error_type is None else "failed",
            "body": row.body,
            "error_type": row.error_type,
            "error": row.error,
            "traceback": row.traceback,
            "ttl_s": row.ttl_s,
        },
    )
    if row.body is None or len(text) + _STATEMENT_BYTES <= packet.session.most_bytes:
        return text
    # The task has succeeded: a value that the server does not accept must neither repeat it nor delay its claim.
    why = f"the result of {len(row.body)} bytes is over the limit of what the server takes (max_allowed_packet)"
    log.warning("%s has no result: %s", uid_text(row.uid), why)
    refused = replace(row, body=None, error_type="EncodeError", error=why, traceback=why)
    return _row(packet, topic_id, group_id, refused)


def find(
    session: Session, topic_ids: Sequence[int], uids: Sequence[bytes], group: str | None
) -> dict[bytes, ResultRow]:
    """Return the known results, by uid."""
    found: dict[bytes, ResultRow] = {}
    for args in questions(topic_ids, uids, group):
        for uid, state, body, error_type, error, traceback in session.rows(_SQL.find_results, args):
            found.setdefault(uid, ResultRow(uid, body, error_type, error, traceback, cancelled=state == "cancelled"))
    return found


def questions(topic_ids: Sequence[int], uids: Sequence[bytes], group: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the arguments of as many statements as all uids need: a caller may hold any number of receipts."""
    for start in range(0, len(uids) if topic_ids else 0, _UIDS_A_STATEMENT):
        yield {"topic_ids": list(topic_ids), "uids": list(uids[start : start + _UIDS_A_STATEMENT]), "group": group}


def find_buried(
    session: Session, topic_ids: Sequence[int], uids: Sequence[bytes], group: str | None
) -> dict[bytes, ResultRow]:
    """Return results for the messages that are dead letters, or were cancelled, by uid."""
    found: dict[bytes, ResultRow] = {}
    for args in questions(topic_ids, uids, group):
        for uid, reason, error in session.rows(_SQL.find_buried, args):
            if error is None:
                found.setdefault(uid, ResultRow(uid, None, cancelled=True))
                continue
            kind, _, text = (error_line(error) or reason).partition(": ")
            found[uid] = ResultRow(uid, None, kind.rsplit(".", 1)[-1][:255] or "DeadLetter", text or reason, error)
    return found


def forget(session: Session, topic_ids: Sequence[int], uids: Sequence[bytes]) -> int:
    """Delete results; returns how many."""
    return sum(session.change(_SQL.delete_results, args) for args in questions(topic_ids, uids))


def sweep(session: Session, limit: int) -> int:
    """Delete at most ``limit`` expired results; returns how many."""
    return session.change(_SQL.delete_expired, {"limit": limit})
