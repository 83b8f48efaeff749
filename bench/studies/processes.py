"""Processes as the kernel sees them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(folder.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    return list(_below(pid, children))


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, ()):
        yield from _below(child, children)


def _fields(pid: int) -> list[str]:
    """Of ``/proc/PID/stat``, from the state on; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def processor_s(pid: int) -> float:
    """Seconds of a processor that it has used."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def resident_mib(pid: int) -> float:
    """Its resident memory."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(found[0]) / 1024 if found else 0.0
