"""Servers whose disks are full, as far as this process has seen: a write that fails for want of space tells it.

Reads and small changes go on while the disk is full, so that nothing else notices it but those who send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from emsworker.core.process.clock import ticks

Servers = Sequence[tuple[str, int]]
_REMEMBERED_S = 60.0  # after the last write that failed, twice the pause of the beat's probe; its success ends it


@dataclass
class _Seen:
    since: datetime
    last: float
    text: str


_seen: dict[tuple[tuple[str, int], ...], _Seen] = {}


def note(servers: Servers, text: str) -> None:
    """Note that a server has refused a write because its disk is full.

    Args:
        servers: those of the address that was used.
        text: the server's words.
    """
    before = _seen.get(tuple(servers))
    since = before.since if before is not None and full(servers) else datetime.now(UTC)
    _seen[tuple(servers)] = _Seen(since, ticks(), text)


def note_room(servers: Servers) -> None:
    """Note that a write of some size has succeeded."""
    _seen.pop(tuple(servers), None)


def full(servers: Servers) -> str:
    """Return the server's words if its disk is full; empty if it has room, as far as is known."""
    seen = _seen.get(tuple(servers))
    return seen.text if seen is not None and ticks() - seen.last < _REMEMBERED_S else ""


def full_s(servers: Servers) -> float:
    """Return for how many seconds the disk has been full; 0 if it has room, as far as is known."""
    seen = _seen.get(tuple(servers))
    return (datetime.now(UTC) - seen.since).total_seconds() if seen is not None and full(servers) else 0.0
