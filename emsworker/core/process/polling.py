"""Adaptive polling interval: backs off while idle."""

from __future__ import annotations

from emsworker.core.process.clock import ticks

_SHARE = 10


class PollInterval:
    """Pause between two polls: a tenth of the idle time, within two bounds.

    Polling thus adds at most a tenth to any pause of the stream itself, and an idle stream is polled rarely.

    Args:
        shortest_s, longest_s: the bounds, in seconds.
    """

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self._came_at = ticks()

    def note(self) -> None:
        """Record that something was found; may be called from any thread."""
        self._came_at = ticks()

    def pause_s(self, now: float) -> float:
        """Return the seconds to wait from ``now``, a value of :func:`ticks`."""
        return min(max((now - self._came_at) / _SHARE, self._shortest_s), self._longest_s)
