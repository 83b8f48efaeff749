"""Adaptive polling interval: backs off while idle."""

from __future__ import annotations

from emsworker.core.process.clock import ticks

_SHARE = 0.1


class PollInterval:
    """Pause between two polls: a share of the idle time, within two bounds.

    Polling thus adds at most that share to any pause of the stream itself, and an idle stream is polled rarely.

    Args:
        shortest_s, longest_s: the bounds, in seconds.
        share: of the idle time, by default a tenth.
    """

    def __init__(self, shortest_s: float, longest_s: float, share: float = _SHARE) -> None:
        self._shortest_s, self._longest_s, self._share = shortest_s, longest_s, share
        self._came_at = ticks()

    def note(self) -> None:
        """Record that something was found; may be called from any thread."""
        self._came_at = ticks()

    def pause_s(self, now: float) -> float:
        """Return the seconds to wait from ``now``, a value of :func:`ticks`."""
        return min(max((now - self._came_at) * self._share, self._shortest_s), self._longest_s)
