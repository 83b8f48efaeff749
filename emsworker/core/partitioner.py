"""Which partition a message goes to."""

from __future__ import annotations

from zlib import crc32


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: CRC-32 modulo their number, the same in every language."""
    return crc32(key) % partitions
