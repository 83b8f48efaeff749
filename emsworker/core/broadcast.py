"""Broadcasts: what a partition holds to read, what a read returned, and who reads under a stable name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReadableExtent:
    """A partition: the first offset that is kept, the one after its last row, and whether it may be read."""

    log_start: int
    end: int
    readable: bool


@dataclass(frozen=True)
class BroadcastBatch:
    """The result of a read from an offset on.

    Attributes:
        hi: the last offset that was read, or ``None`` if there is no row at the requested one.
        log_start: the partition's log start offset; if it is above the requested offset, rows were deleted unread.
        first: the first existing offset, or ``None``.
        rows: the messages, without tombstones and those that the filter excludes.
        now: the server's clock.
    """

    hi: int | None
    log_start: int
    first: int | None = None
    rows: Sequence[tuple[Any, ...]] = ()
    now: str = ""


@dataclass(frozen=True)
class ReaderPosition:
    """A named reader's position in a partition, and how many earlier readers have died there."""

    next_offset: int
    deaths: int


@dataclass(frozen=True)
class NamedReader:
    """A reader with a stable name.

    Args:
        token: identifies this process; another process that takes the name has another token.
    """

    topic_id: int
    name: str
    token: bytes
