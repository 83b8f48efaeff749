"""Arrow arrays of what the server has packed: one of each column, made of whole buffers and not row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from emsworker.arrow.scan import Packed


@dataclass(frozen=True)
class Unpacked:
    """Columns by their names: numbers as 64-bit integers, all others as binary.

    Attributes:
        complete: the number of rows that nothing of is cut; if it is less than there are rows, there are no columns.
    """

    complete: int
    columns: dict[str, pa.Array]


def unpack(packed: Packed, most_bytes: int, order: Sequence[str]) -> Unpacked:
    """Make arrays of packed rows, in order; of none if they have more bytes than allowed in their texts.

    Args:
        order: the columns that order the rows; the server returns them as it finds them, which is nearly always so.
    """
    if not packed.count:
        kinds = dict.fromkeys(packed.numbers, pa.int64()) | dict.fromkeys(packed.texts, pa.binary())
        return Unpacked(0, {name: pa.array([], kind) for name, kind in kinds.items()})
    numbers = _numbers(packed)
    lengths = dict(zip(packed.texts, numbers.columns[len(packed.numbers) :], strict=True))
    ends = {name: pc.cumulative_sum(pc.fill_null(length, 0)) for name, length in lengths.items()}
    complete = min([numbers.num_rows, *(_until(ends[name], len(text)) for name, text in packed.texts.items())])
    if packed.size > most_bytes:
        complete = min(complete, _until(_sum(list(ends.values())), most_bytes))
    if complete < packed.count:
        return Unpacked(complete, {})
    columns = dict(zip(packed.numbers, numbers.columns, strict=False))
    columns |= {name: _binary(lengths[name], ends[name], text) for name, text in packed.texts.items()}
    return Unpacked(complete, _in_order(columns, order))


def _numbers(packed: Packed) -> pa.RecordBatch:
    """Parse the lines that are complete."""
    names = [*packed.numbers, *(f"length of {name}" for name in packed.texts)]
    end = packed.lines.rfind(b"\n") + 1
    if not end:
        return pa.RecordBatch.from_arrays([pa.array([], pa.int64())] * len(names), names=names)
    (batch,) = csv.read_csv(
        pa.BufferReader(pa.py_buffer(packed.lines).slice(0, end)),
        csv.ReadOptions(column_names=names, use_threads=False, block_size=end + 1),
        csv.ParseOptions(quote_char=False),
        csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int64())),
    ).to_batches()
    return batch


def _until(ends: pa.Array, most: int) -> int:
    """Return how many of some rising numbers are not above a limit."""
    if not ends or ends[-1].as_py() <= most:
        return len(ends)
    return int(pc.sum(pc.less_equal(ends, most)).as_py() or 0)


def _sum(columns: Sequence[pa.Array]) -> pa.Array:
    total, *others = columns
    for one in others:
        total = pc.add(total, one)
    return total


def _binary(lengths: pa.Array, ends: pa.Array, text: bytes) -> pa.Array:
    """Make an array of values that lie one after another, without a copy of them."""
    starts = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    valid = pc.is_valid(lengths) if lengths.null_count else None
    buffers = [None if valid is None else valid.buffers()[1], starts.buffers()[1], pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers, lengths.null_count)


def _in_order(columns: dict[str, pa.Array], order: Sequence[str]) -> dict[str, pa.Array]:
    first = columns[order[0]]
    count = len(first)
    if count < 2 or pc.all(pc.less(first.slice(0, count - 1), first.slice(1))).as_py():
        return columns
    keys = pa.RecordBatch.from_arrays([columns[name] for name in order], names=list(order))
    places = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in order])
    return {name: column.take(places) for name, column in columns.items()}
