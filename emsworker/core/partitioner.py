"""Partition numbers: from a key, and from a priority level."""

from __future__ import annotations

from zlib import crc32

MAX_PARTITIONS = 1000  # of each priority level


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: CRC-32 modulo the number of partitions, equal in every language."""
    return crc32(key) % partitions


def partition_number(level: int, partition: int) -> int:
    """Return the number of a partition of a priority level: 7003 is partition 3 of the level that begins at 7.

    The number depends on no setting of the topic, so that partitions and levels can be added to a topic in use.
    """
    return level * MAX_PARTITIONS + partition


def level_of(number: int) -> int:
    """Return the priority level of the partition with this number."""
    return number // MAX_PARTITIONS
