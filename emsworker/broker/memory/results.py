"""Results of tasks in memory: kept until they expire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from emsworker.broker.memory.log import Now
from emsworker.core.flush import ResultRow
from emsworker.core.run import Progress


class MemoryResults:
    """Results of one test; they do not wait.

    Args:
        now: returns the time.
    """

    patience_s: float | None = 0.0

    def __init__(self, now: Now) -> None:
        self._now = now
        self._rows: dict[bytes, tuple[ResultRow, datetime]] = {}

    def put(self, row: ResultRow) -> None:
        """Keep a result until it expires."""
        self._rows[row.uid] = row, self._now() + timedelta(seconds=row.ttl_s)

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return the results that exist and have not expired."""
        now = self._now()
        return {uid: self._rows[uid][0] for uid in uids if uid in self._rows and now < self._rows[uid][1]}

    def load(self, row: ResultRow) -> bytes:
        """Return the value of a result as JSON."""
        return row.body or b"null"

    def find_buried(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        """Return nothing: no process is killed here, so every message that ended has its result."""
        return {}

    def find_progress(self, uids: Sequence[bytes]) -> dict[bytes, Progress]:
        """Return nothing: nothing runs while somebody asks."""
        return {}

    def forget(self, uids: Sequence[bytes]) -> None:
        """Delete results before they expire."""
        for uid in uids:
            self._rows.pop(uid, None)
