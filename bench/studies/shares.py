"""A share of a core for a process, by the kernel's control groups: one machine then holds several small servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000  # short, so that a server that has used up its share does not rest for long
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def limited(pid: int, share: float) -> Iterator[None]:
    """Hold a process to a share of one core.

    Raises:
        OSError: this user may not, or the kernel cannot.
    """
    one = (_ROOT / "cpu").is_dir()  # version 1 of control groups
    parent = _ROOT / "cpu" if one else _ROOT
    quota = round(share * _PERIOD_US)
    if not one:
        (parent / "cgroup.subtree_control").write_text("+cpu")
    group = parent / f"ems-bench-{os.getpid()}-{pid}"
    group.mkdir()
    try:
        if one:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def used_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
