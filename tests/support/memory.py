"""Memory of processes, as Linux counts it."""

import re
from collections.abc import Iterable
from pathlib import Path

from emsworker.core.budget import MAX_BYTES, MAX_OBJECTS

# What the worst body within the limits takes, as core/budget.py has measured an object; and its text, twice while it is
# joined. A body beyond the limits takes less, because nothing is built from it.
MOST_OF_A_BODY = 85 * MAX_OBJECTS + 2 * MAX_BYTES


def peaks(pids: Iterable[int]) -> dict[int, int]:
    """The most resident memory that each process has ever had, in bytes."""
    texts = {pid: Path(f"/proc/{pid}/status").read_text() for pid in pids}
    return {pid: int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) << 10 for pid, text in texts.items()}


def growth(before: dict[int, int]) -> int:
    """The most that one of the processes has grown beyond an earlier peak, in bytes."""
    return max(now - before[pid] for pid, now in peaks(before).items())
