"""How many messages a claim should hold: about half a second of work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BatchSizer:
    """Follows the run time of a group's messages, so that slow ones are claimed one by one and fast ones by hundreds.

    Args:
        target_s: seconds of work that a claim should hold.
        largest: the most messages a claim may hold.
    """

    target_s: float
    largest: int
    size: int = 1
    _average_s: float = 0.0

    def record(self, messages: int, seconds: float) -> None:
        """Learn from a finished claim; the size grows at most eightfold at a time and falls at once."""
        if messages <= 0:
            return
        sample = seconds / messages
        # A rise in run time counts at once: hoarding hurts others, a small claim only costs a commit.
        self._average_s = max(sample, 0.7 * self._average_s + 0.3 * sample)
        fitting = int(self.target_s / max(self._average_s, 1e-7))
        self.size = max(1, min(self.largest, fitting, self.size * 8))
