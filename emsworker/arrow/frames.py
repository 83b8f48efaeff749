"""The stream for analysts without Spark: record batches, data frames of pandas, lazy frames of Polars."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from emsworker.arrow import planning
from emsworker.arrow.columns import arrow_schema, default_columns
from emsworker.arrow.options import ReadOptions, read_options
from emsworker.arrow.planning import Slice
from emsworker.arrow.profile import open_reading
from emsworker.arrow.pushdown import Comparison, Pushed, find_fault
from emsworker.arrow.scan import columns_of
from emsworker.arrow.servers import read_parts
from emsworker.extending.database import Session
from emsworker.extending.declaration import require
from emsworker.extending.errors import ConfigError, Problem
from emsworker.extending.settings import raise_problems

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_TEXTS = ("subscribe", "subscribepattern", "group", "profile")  # any value could be written as text
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Offsets = str | Mapping[str, Mapping[int, int]]
Times = str | Mapping[str, Mapping[int, int | datetime]]


class ReadArguments(TypedDict, total=False):
    """Options of a batch read with ``format("ems")``, in snake_case; docs/how-to/spark.md explains each."""

    subscribe: str | Sequence[str]
    subscribe_pattern: str
    assign: str | Mapping[str, Sequence[int]]
    starting_offsets: Offsets
    starting_timestamp: int | datetime
    starting_offsets_by_timestamp: Times
    starting_offsets_by_timestamp_strategy: str
    ending_offsets: Offsets
    ending_timestamp: int | datetime
    ending_offsets_by_timestamp: Times
    dataset: str
    group: str
    profile: str
    server: str
    fail_on_data_loss: bool
    fetch_bytes: int | str
    include_headers: bool
    include_meta: bool
    include_cancelled: bool


def read_arrow(
    options: Mapping[str, Any] | None = None,
    /,
    *,
    columns: Sequence[str] | None = None,
    filters: Sequence[tuple[str, str, Any]] = (),
    limit: int | None = None,
    **more: Unpack[ReadArguments],
) -> pa.RecordBatchReader:
    """Read the stream as a :class:`pyarrow.RecordBatchReader`.

    The offsets are planned in this call, as for ``spark.read.format("ems")``: later messages are not read. The rows are
    fetched while the reader is used, over one connection, which is closed with the last batch: one fetch ahead, each of
    at most ``fetch_bytes`` (8 MiB) or one message.

    Args:
        options: options of ``format("ems")`` by the names that they have in Spark.
        columns: the columns to read; others are not fetched from the server. By default those of Kafka's source.
        filters: comparisons that the server applies, ``("offset", ">=", 100)``; all must hold. ``topic``, ``partition``
            and ``group`` are compared by ``==`` and ``in``, ``offset`` and ``timestamp`` by ``==``, ``<``, ``<=``,
            ``>``, ``>=``.
        limit: the number of rows to read at most.
        more: the same options as Python writes them: ``subscribe="orders"``, ``starting_offsets={"orders": {0: 23}}``.
            Times are milliseconds since 1970, or a ``datetime``; without a zone it is UTC.

    Raises:
        ConfigError: names every wrong option, column or filter.
        DataLoss: messages to read have been deleted, here or while the reader is used.
        ExtraMissing: PyArrow is not installed.
        OutOfRange: an offset or a time is beyond the end of a partition.
        UnknownTopic, UnknownGroup: a topic, partition or group does not exist.
    """
    require("arrow", "read_arrow")
    import pyarrow as pa

    read = _plan(_options(options, more), columns, _comparisons(filters), limit)
    return pa.RecordBatchReader.from_batches(read.schema, read.batches())


def read_pandas(
    options: Mapping[str, Any] | None = None,
    /,
    *,
    columns: Sequence[str] | None = None,
    filters: Sequence[tuple[str, str, Any]] = (),
    limit: int | None = None,
    **more: Unpack[ReadArguments],
) -> pd.DataFrame:
    """Read the stream as a pandas data frame, all of it in memory; otherwise as :func:`read_arrow`.

    Raises:
        ExtraMissing: pandas or PyArrow is not installed.
    """
    require("pandas", "read_pandas")
    return read_arrow(options, columns=columns, filters=filters, limit=limit, **more).read_pandas()


def explain_read(
    options: Mapping[str, Any] | None = None,
    /,
    *,
    columns: Sequence[str] | None = None,
    filters: Sequence[tuple[str, str, Any]] = (),
    limit: int | None = None,
    **more: Unpack[ReadArguments],
) -> str:
    """Describe what :func:`read_arrow` would do with the same arguments; the offsets are planned, and no row is read.

    The text is for people: what the server applies, which columns it returns, and the offsets of each partition.

    Raises:
        ConfigError, DataLoss, ExtraMissing, OutOfRange, UnknownTopic, UnknownGroup: as in :func:`read_arrow`.
    """
    require("arrow", "explain_read")
    return _plan(_options(options, more), columns, _comparisons(filters), limit).explain()


def scan_polars(options: Mapping[str, Any] | None = None, /, **more: Unpack[ReadArguments]) -> pl.LazyFrame:
    """Return the stream as a lazy frame of Polars, which is read when it is collected.

    A query reads the columns that it uses. Comparisons of ``topic``, ``partition``, ``offset``, ``timestamp`` and
    ``group`` with constants, and a limit (``head``) below any filter, are pushed to the server.

    Args:
        options, more: as in :func:`read_arrow`.

    Raises:
        ConfigError: names every wrong option.
        ExtraMissing: Polars or PyArrow is not installed.
        UnknownTopic, UnknownGroup: a topic, partition or group does not exist.
    """
    require("polars", "scan_polars")
    import polars as pl
    from polars.io.plugins import register_io_source

    from emsworker.arrow.polars import find_comparisons

    chosen = _options(options, more)
    names = _default(chosen)
    read_parts(chosen, lambda part, session: planning.find_sources(session, part))

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        comparisons = []
        if predicate is not None and n_rows is None:  # with both, the rows are counted before they are filtered
            comparisons = find_comparisons(predicate, chosen.dataset)
        read = _plan(chosen, with_columns or names, comparisons, n_rows)
        for batch in read.batches():
            frame = pl.DataFrame(pl.from_arrow(batch))
            yield frame if predicate is None else frame.filter(predicate)

    schema = pl.DataFrame(pl.from_arrow(arrow_schema(chosen.dataset, names).empty_table())).schema
    return register_io_source(source, schema=schema)


# -- a read ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedRead:
    """A read whose offsets are known.

    Attributes:
        between: of messages only those inserted between two times, in microseconds since 1970.
        limit: the number of rows to read at most.
        pushed: the comparisons that the server applies.
    """

    options: ReadOptions
    schema: pa.Schema
    slices: Sequence[Slice]
    between: tuple[int, int] | None
    limit: int | None
    pushed: Sequence[Comparison]

    def explain(self) -> str:
        """Describe the read for people."""
        fetched = columns_of(self.options.dataset, self.schema.names)
        pushed = [f"{one.column} {one.operator} {one.value!r}" for one in self.pushed]
        pushed += [f"limit {self.limit}"] if self.limit is not None else []
        lines = [
            f"dataset: {self.options.dataset}",
            f"pushed to the server: {', '.join(pushed) or 'nothing'}",
            f"fetched: {', '.join(fetched) or 'nothing'}; packed by the server by columns, up to "
            f"{self.options.fetch_bytes:,} bytes at once; a longer row alone",
            f"constant: {', '.join(name for name in self.schema.names if name not in fetched) or 'nothing'}",
        ]
        return "\n".join([*lines, *map(_told, self.slices)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows over one connection, to one server after another."""
        left = self.limit
        for server, slices in groupby(self.slices, key=lambda one: one.server):
            if left == 0:
                return
            for batch in self._of_server(server, list(slices), left):
                left = None if left is None else left - batch.num_rows
                yield batch

    def _of_server(self, server: str, slices: Sequence[Slice], left: int | None) -> Iterator[pa.RecordBatch]:
        from emsworker.arrow.batches import read_from

        options = self.options
        with open_reading(options.profile, server) as reading:
            for one in slices:
                if left == 0:
                    return
                if options.dataset == "messages":
                    reading.wait_for(one.offsets)
                for batch in read_from(
                    reading.database,
                    options.dataset,
                    self.schema,
                    one,
                    limit=left,
                    fail_on_data_loss=options.fail_on_data_loss,
                    between=self.between,
                    cancelled=options.include_cancelled,
                    fetch_bytes=options.fetch_bytes,
                ):
                    left = None if left is None else left - batch.num_rows
                    yield batch


def _plan(
    options: ReadOptions, columns: Sequence[str] | None, comparisons: Sequence[Comparison], limit: int | None
) -> PlannedRead:
    if isinstance(columns, str):
        raise ConfigError([Problem("columns", repr(columns), 'must be a list of columns like ["key", "value"]')])
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise ConfigError([Problem("limit", repr(limit), "must be a whole number, 0 or more")])
    schema = arrow_schema(options.dataset, _default(options) if columns is None else columns)
    pushed = Pushed()
    faults = [(one, find_fault(one, options.dataset)) for one in comparisons]
    if problems := [Problem(f"filter {one.column} {one.operator}", repr(one.value), fix) for one, fix in faults if fix]:
        raise ConfigError(problems)
    for one in comparisons:
        pushed.take(one, options.dataset)

    def plan(part: ReadOptions, session: Session) -> list[Slice]:
        return [one for one in planning.plan(session, part, pushed.narrow) if one.offsets]

    slices = read_parts(options, plan)
    return PlannedRead(options, schema, slices, pushed.between, limit, comparisons)


def _told(one: Slice) -> str:
    group = "" if one.group is None else f", group {one.group.name}"
    offsets = one.offsets
    return f"{one.topic}/{offsets.partition}{group}, server {one.server}: offsets {offsets.start} to {offsets.end - 1}"


def _default(options: ReadOptions) -> tuple[str, ...]:
    return default_columns(options.dataset, headers=options.include_headers, meta=options.include_meta)


# -- arguments ---------------------------------------------------------------------------------------------------------


def _comparisons(filters: Sequence[tuple[str, str, Any]]) -> list[Comparison]:
    if not isinstance(filters, list | tuple):
        raise ConfigError([Problem("filters", repr(filters), 'must be a list of tuples like [("offset", ">=", 100)]')])
    found = []
    for one in filters:
        if not isinstance(one, tuple | list) or len(one) != 3 or not all(isinstance(word, str) for word in one[:2]):
            raise ConfigError([Problem("filters", repr(one), 'each must be a tuple like ("offset", ">=", 100)')])
        column, operator, value = one
        found.append(Comparison(column, operator, _in_utc(value) if isinstance(value, datetime) else value))
    return found


def _options(options: Any, more: Mapping[str, Any]) -> ReadOptions:
    if options is not None and not isinstance(options, Mapping):
        fix = 'must be a mapping of options by their names in Spark; name topics by subscribe="orders"'
        raise ConfigError([Problem("options", repr(options), fix)])
    given = dict(options or {}) | {_spark_name(name): value for name, value in more.items()}
    problems = [
        Problem(f"option {name}", repr(one), "must be text" + ", or a list of topics" * (name.lower() == "subscribe"))
        for name, one in given.items()
        if name.lower() in _TEXTS and not _is_text(name, one)
    ]
    raise_problems(problems)
    return read_options({name: _text(name, one) for name, one in given.items() if one is not None}, streaming=False)


def _is_text(name: str, value: Any) -> bool:
    texts = value if isinstance(value, list | tuple) and name.lower() == "subscribe" else [value]
    return value is None or all(isinstance(one, str) for one in texts)


def _spark_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _text(name: str, value: Any) -> str:
    """Return a value as Spark would pass it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return str(_milliseconds(value))
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return json.dumps({topic: _places(places) for topic, places in value.items()}, default=str)
    return str(value)


def _places(places: Any) -> Any:
    if not isinstance(places, Mapping):
        return list(places) if isinstance(places, Sequence | range) else places
    return {number: _milliseconds(one) if isinstance(one, datetime) else one for number, one in places.items()}


def _milliseconds(time: datetime) -> int:
    return (_in_utc(time) - _EPOCH) // timedelta(milliseconds=1)


def _in_utc(time: datetime) -> datetime:
    """Return a time with a zone; without one it is UTC, as everywhere in EMS."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
