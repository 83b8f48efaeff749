"""Memory of processes, as Linux counts it."""

import re
from collections.abc import Iterable
from pathlib import Path

from emsworker.core.budget import MAX_BYTES, MAX_OBJECTS

# A body over the limits is unpacked up to them, and then nothing is built from it: its text, twice while it is joined.
MOST_REFUSED = 2 * MAX_BYTES
# What the worst body within the limits takes besides, as core/budget.py has measured an object.
MOST_DECODED = MOST_REFUSED + 85 * MAX_OBJECTS


def peaks(pids: Iterable[int]) -> dict[int, int]:
    """The most resident memory that each process has ever had, in bytes."""
    texts = {pid: Path(f"/proc/{pid}/status").read_text() for pid in pids}
    return {pid: int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) << 10 for pid, text in texts.items()}


def growth(before: dict[int, int]) -> int:
    """The most that one of the processes has grown beyond an earlier peak, in bytes."""
    return max(now - before[pid] for pid, now in peaks(before).items())
