"""Lines that handlers logged, by attempt: written by workers that keep them, shown with the trace of a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from emsworker.core.log_lines import AttemptLog
from emsworker.core.terminal_text import in_utf8
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)

Place = tuple[int, int, int, int]
"""Of an attempt: the id of its group, partition, offset and the number of the attempt."""


def write(session: Session, logs: Mapping[Place, AttemptLog]) -> None:
    """Write the logs of some attempts over those that were written before; again changes nothing."""

    def attempt() -> None:
        packet = session.packet()
        packet.insert_many(_SQL.upsert_logs, _SQL.log_row, _rows(logs), _SQL.upsert_logs_end)
        packet.send()

    session.retry_on_conflict(attempt)


def _rows(logs: Mapping[Place, AttemptLog]) -> Iterator[dict[str, Any]]:
    for (group_id, partition, offset, attempt), log in sorted(logs.items(), key=lambda pair: pair[0]):
        place = {"group_id": group_id, "partition": partition, "offset": offset, "attempt": attempt}
        yield place | {"log_lines": in_utf8(log.lines), "left_out": log.left_out}


def delete_old(session: Session, keep_s: float, limit: int) -> int:
    """Delete logs that were written longer ago than this, at most ``limit``; return how many."""
    return session.change(_SQL.delete_old, {"keep_s": keep_s, "limit": limit})
