"""Which partition a message goes to."""

from __future__ import annotations

from zlib import crc32

MAX_PARTITIONS = 1000  # of each level of priority


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: CRC-32 modulo their number, the same in every language."""
    return crc32(key) % partitions


def numbered(level: int, partition: int) -> int:
    """The number of a partition of a level of priority: 7003 is partition 3 of the level that begins at priority 7.

    It depends on no setting of the topic, so that partitions and levels can be added to a topic in use.
    """
    return level * MAX_PARTITIONS + partition


def level_of(number: int) -> int:
    """The level of priority whose partition has this number."""
    return number // MAX_PARTITIONS
