"""Splitting of rows into batches that a statement can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_batches(
    rows: Iterable[T], weigh: Callable[[T], int], most_bytes: int, *, most: int | None = None
) -> Iterator[list[T]]:
    """Split rows, in their order, into lists of at most ``most`` rows and ``most_bytes`` bytes.

    A row that is larger stands alone.
    """
    batch: list[T] = []
    size = 0
    for row in rows:
        weight = weigh(row)
        if batch and (len(batch) == most or size + weight > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += weight
    if batch:
        yield batch
