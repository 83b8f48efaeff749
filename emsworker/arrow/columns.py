"""Columns of each dataset, with the names of Spark's Kafka source if it has the same column.

A type is named as Spark and Hive write it; :func:`arrow_schema` gives those of Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from emsworker.extending.errors import ConfigError, Problem

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS = "array<struct<key:string,value:binary>>"
LOG_APPEND_TIME = 1
"""Kafka's timestamp type for a time set by the server."""


def parse_columns(text: str) -> dict[str, str]:
    """Parse columns and their types, such as ``topic string, offset bigint``."""
    return dict((name, kind) for name, kind in map(str.split, text.split(", ")))


_MESSAGE = parse_columns(
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_META = parse_columns("uid string, kind string, tag binary, rawHeaders binary, size int, producer string")
_PLACE = parse_columns("group string, topic string, partition int")
_DEFAULT = {
    "messages": _MESSAGE,
    "claims": _PLACE
    | parse_columns(
        "lo bigint, hi bigint, ackedTo bigint, state string, source string, isolation int, client string, "
        "claimId bigint, claimedAt timestamp, progressAt timestamp"
    ),
    "attempts": _PLACE
    | parse_columns(
        "offset bigint, attempt int, outcome string, ranMs bigint, client string, error string, endedAt timestamp"
    ),
    "retries": _PLACE | parse_columns("offset bigint, attempt int, dueAt timestamp, key binary, error string"),
    "deadletters": parse_columns("group string")
    | _MESSAGE
    | parse_columns(
        "uid string, tag binary, producer string, attempts int, reason string, error string, deadAt timestamp"
    ),
}
COLUMNS: dict[str, dict[str, str]] = _DEFAULT | {
    "messages": {**_MESSAGE, "headers": HEADERS, **_META},
    "deadletters": {**_DEFAULT["deadletters"], "headers": HEADERS, "rawHeaders": "binary"},
}
"""Every column of each dataset with its type."""


def default_columns(dataset: str, *, headers: bool, meta: bool) -> tuple[str, ...]:
    """Return the names of the columns of a read that selects none.

    Args:
        headers: include ``headers`` if the dataset has them.
        meta: include the columns that Kafka's source does not have.
    """
    columns = dict.fromkeys(_DEFAULT[dataset])
    if headers and "headers" in COLUMNS[dataset]:
        columns["headers"] = None
    if meta and dataset == "messages":
        columns |= dict.fromkeys(_META)
    return tuple(columns)


def is_number(dataset: str, name: str) -> bool:
    """Return whether the server stores a column as a number, or returns it as one, as times in microseconds."""
    return COLUMNS[dataset][name] in ("int", "bigint", "timestamp")


def unknown_column(dataset: str) -> str:
    """Return what to do about a column that a dataset does not have."""
    return f"dataset={dataset} has no such column; it has {', '.join(COLUMNS[dataset])}"


def arrow_schema(dataset: str, columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of columns of a dataset; times are in microseconds, in UTC.

    Raises:
        ConfigError: names every column that is unknown or named twice; or there is none.
    """
    known = COLUMNS[dataset]
    problems = [Problem("column", repr(name), unknown_column(dataset)) for name in columns if name not in known]
    twice = sorted({name for name in columns if list(columns).count(name) > 1 and name in known})
    problems += [Problem("column", repr(name), "it is named twice; name it once") for name in twice]
    if not columns:
        problems.append(Problem("columns", "[]", "name one or more"))
    if problems:
        raise ConfigError(problems)
    return schema_of({name: known[name] for name in columns})


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of columns, which are given with their types."""
    import pyarrow as pa

    kinds = {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<string>": pa.list_(pa.string()),
        HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
