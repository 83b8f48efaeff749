"""The number of workers that a group needs, from how long its messages wait and who is busy; without I/O.

A backlog says little: ten thousand messages may be a second of work or a day of it. So workers are added while the
oldest message that could start has waited for longer than it may. They are taken away only as they become idle: a
worker that runs a message counts, though nothing else waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST_GROWTH = 2


@dataclass(frozen=True)
class Demand:
    """Demand of a group for workers.

    Attributes:
        lag: messages that are not finished.
        waiting: messages that a thread could start now: unclaimed ones, those of a worker that died, due retries.
        oldest_s: for how many seconds the oldest of those has waited; 0 if there is none.
        running: messages that workers hold and have not finished; retries that run are not among them.
        busy: workers, by name, of which a thread holds messages of the group.
        threads: the threads of the largest of those, 1 if there is none.
    """

    lag: int
    waiting: int
    oldest_s: float
    running: int
    busy: int
    threads: int

    def workers(self, target_s: float, most: int | None = None) -> int:
        """Return the number of workers that are wanted.

        While messages wait for longer than ``target_s``, it is the number of busy workers times the ratio of the two,
        at most twice as many, and not more than could have a message each. Otherwise it is the number of busy workers;
        at least one if a message waits.

        Args:
            target_s: for how many seconds a message may wait until it starts.
            most: the largest number to return.
        """
        wanted = self.busy
        if self.waiting:
            busy = max(1, self.busy)
            ratio = min(max(1.0, self.oldest_s / target_s), float(_MOST_GROWTH))
            useful = self.busy + math.ceil(self.waiting / self.threads)
            wanted = max(busy, min(math.ceil(busy * ratio), useful))
        return wanted if most is None else min(wanted, most)
