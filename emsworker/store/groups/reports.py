"""Progress reports of running messages, written with the acked offset behind its fence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emsworker.core.model import Claim
from emsworker.core.run import Progress, ProgressReport
from emsworker.core.times import utc
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.results import questions

_SQL = Statements(__name__)


def add_reports(
    packet: Packet, claim: Claim, topic_id: int, reports: Sequence[ProgressReport], ended: Sequence[bytes]
) -> None:
    """Append the reports of a claim's messages to an open transaction, and remove those of messages that have ended."""
    if reports:
        common = {"topic_id": topic_id, "group_id": claim.group_id, "client_id": claim.client_id}
        rows = (
            common | {"uid": one.uid, "attempt": one.attempt, "fraction": one.fraction, "text": one.text}
            for one in sorted(reports, key=lambda one: one.uid)
        )
        packet.insert_many(_SQL.upsert_reports, _SQL.report_row, rows, _SQL.upsert_reports_end)
    if ended:
        packet.add(_SQL.delete_reports, {"topic_id": topic_id, "uids": sorted(ended), "group_id": claim.group_id})


def find(
    session: Session, topic_ids: Sequence[int], uids: Sequence[bytes], group: str | None = None
) -> dict[bytes, Progress]:
    """Return the last report of each of these messages that is running, by uid."""
    found: dict[bytes, Progress] = {}
    for args in questions(topic_ids, uids, group):
        found |= {row[0]: _progress(row) for row in session.rows(_SQL.find_reports, args)}
    return found


def list_by_client(session: Session) -> dict[str, list[Progress]]:
    """Return the reports of running messages by client, the latest last."""
    found: dict[str, list[Progress]] = {}
    for row in session.rows(_SQL.list_reports):
        found.setdefault(row[0], []).append(_progress(row))
    return found


def _progress(row: tuple[Any, ...]) -> Progress:
    _, fraction, text, attempt, client_id, reported_at = row
    return Progress(None if fraction is None else float(fraction), text, attempt, client_id, utc(reported_at))


def sweep(session: Session, limit: int) -> int:
    """Delete at most ``limit`` reports that are a day old; returns how many."""
    return session.change(_SQL.delete_old, {"limit": limit})
