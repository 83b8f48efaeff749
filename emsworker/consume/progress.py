"""Buffers the progress reports of a claim's handlers until the next flush."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.core.errors import RunEnded
from emsworker.core.model import Message
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import Mutex
from emsworker.core.run import ProgressReport

_PAUSE_S = 0.5


class ProgressBuffer:
    """The last report of each running message; the owner holds ``lock`` around all methods but :meth:`tell`.

    Attributes:
        closed: the claim belongs to another client, or is finished.
    """

    def __init__(self, lock: Mutex) -> None:
        self._lock = lock
        self._fresh: dict[bytes, ProgressReport] = {}
        self._told: set[bytes] = set()  # uids of running messages that have reported
        self._stale: list[bytes] = []  # uids of those that have ended since
        self._written_at = 0.0
        self.closed = False

    def tell(self, report: ProgressReport) -> None:
        """Keep the last report of a running message for the next flush.

        Raises:
            RunEnded: the message is run elsewhere by now.
        """
        with self._lock:
            if self.closed:
                raise RunEnded("the message is run elsewhere by now")
            self._fresh[report.uid] = report
            self._told.add(report.uid)

    def ended(self, messages: Sequence[Message]) -> None:
        """Schedule the reports of messages that no longer run for removal."""
        if not self._told:
            return
        uids = self._told.intersection(message.uid for message in messages)
        self._told -= uids
        self._stale += uids
        for uid in uids:
            self._fresh.pop(uid, None)

    @property
    def is_due(self) -> bool:
        """True if there is a report, and the last write is long enough ago."""
        return bool(self._fresh) and ticks() - self._written_at >= _PAUSE_S

    @property
    def fresh(self) -> tuple[ProgressReport, ...]:
        """Reports to write."""
        return tuple(self._fresh.values())

    @property
    def stale(self) -> tuple[bytes, ...]:
        """Uids whose reports are to be removed."""
        return tuple(self._stale)

    def written(self, fresh: Sequence[ProgressReport], stale: Sequence[bytes]) -> None:
        """Drop reports and removals that have been committed."""
        del self._stale[: len(stale)]
        for report in fresh:
            self._written_at = ticks()
            if self._fresh.get(report.uid) is report:
                del self._fresh[report.uid]
