"""Idempotency keys in memory: an effect is done until its key expires."""

from __future__ import annotations

from datetime import datetime, timedelta

from emsworker.broker.memory.log import Now
from emsworker.core.model import Begun, OnceState


class MemoryKeys:
    """Keys of :meth:`Ems.once`; no process dies here, so a key that has begun is finished or cancelled.

    Args:
        now: returns the time.
    """

    def __init__(self, now: Now) -> None:
        self._now = now
        self._done_until: dict[bytes, datetime] = {}

    def begin(self, key: bytes, ttl_s: float, running_s: float) -> Begun:
        """Begin an effect, unless it is done."""
        until = self._done_until.get(key)
        return Begun(OnceState.DONE if until is not None and self._now() < until else OnceState.FIRST, b"")

    def finish(self, key: bytes, token: bytes, ttl_s: float) -> bool:
        """Record that the effect has happened."""
        self._done_until[key] = self._now() + timedelta(seconds=ttl_s)
        return True

    def cancel(self, key: bytes, token: bytes) -> None:
        """Record that the effect has not happened."""
        self._done_until.pop(key, None)
