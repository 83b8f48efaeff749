"""Size of claims: about half a second of work each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BatchSizer:
    """Claim size that adapts to the run time of a group's messages: one for slow messages, hundreds for fast ones.

    Args:
        target_s: seconds of work that a claim should hold.
        largest: the maximum number of messages in a claim.
    """

    target_s: float
    largest: int
    size: int = 1
    _average_s: float = 0.0

    def record(self, messages: int, seconds: float) -> None:
        """Record the run time of a finished claim; the size grows at most eightfold at a time and falls at once."""
        if messages <= 0:
            return
        sample = seconds / messages
        # A rise takes effect at once: a large claim keeps work from other clients, a small one only costs a commit.
        self._average_s = max(sample, 0.7 * self._average_s + 0.3 * sample)
        fitting = int(self.target_s / max(self._average_s, 1e-7))
        self.size = max(1, min(self.largest, fitting, self.size * 8))
