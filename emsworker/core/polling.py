"""How often a poller looks: often while something comes, the more seldom the longer nothing has."""

from __future__ import annotations

from emsworker.core.clock import ticks

_SHARE = 10


class PollInterval:
    """The pause between two looks: a tenth of how long nothing has come, between two bounds.

    So looking adds a tenth at most to any pause that a stream makes by itself, and what is quiet is left alone.

    Args:
        shortest_s, longest_s: the bounds, in seconds.
    """

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self._came_at = ticks()

    def note(self) -> None:
        """Something came; for any thread."""
        self._came_at = ticks()

    def pause_s(self, now: float) -> float:
        """How long to wait, from ``now`` of :func:`ticks` on."""
        return min(max((now - self._came_at) / _SHARE, self._shortest_s), self._longest_s)
