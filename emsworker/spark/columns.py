"""Columns of each dataset, with the names of Spark's Kafka source if it has the same column."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from emsworker.core.errors import ConfigError, Problem

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
LOG_APPEND_TIME = 1
"""Kafka's timestamp type for a time set by the server."""
_KINDS: dict[str, DataType] = {
    kind.simpleString(): kind for kind in (BinaryType(), IntegerType(), LongType(), StringType(), TimestampType())
}


def _columns(text: str) -> dict[str, DataType]:
    return {name: _KINDS[kind] for name, kind in map(str.split, text.split(", "))}


_MESSAGE = _columns(
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_META = _columns("uid string, kind string, tag binary, rawHeaders binary, size int, producer string")
_PLACE = _columns("group string, topic string, partition int")
_DEFAULT = {
    "messages": _MESSAGE,
    "claims": _PLACE
    | _columns(
        "lo bigint, hi bigint, ackedTo bigint, state string, source string, isolation int, client string, "
        "claimId bigint, claimedAt timestamp, progressAt timestamp"
    ),
    "attempts": _PLACE
    | _columns(
        "offset bigint, attempt int, outcome string, ranMs bigint, client string, error string, endedAt timestamp"
    ),
    "retries": _PLACE | _columns("offset bigint, attempt int, dueAt timestamp, key binary, error string"),
    "deadletters": _columns("group string")
    | _MESSAGE
    | _columns("uid string, tag binary, producer string, attempts int, reason string, error string, deadAt timestamp"),
}
KNOWN: dict[str, dict[str, DataType]] = _DEFAULT | {
    "messages": {**_MESSAGE, "headers": HEADERS, **_META},
    "deadletters": {**_DEFAULT["deadletters"], "headers": HEADERS, "rawHeaders": BinaryType()},
}


def ddl(dataset: str, columns: str) -> str:
    """Return columns of a dataset, separated by blanks, with their types."""
    return ", ".join(f"`{name}` {KNOWN[dataset][name].simpleString()}" for name in columns.split())


def default_schema(dataset: str, *, headers: bool, meta: bool) -> StructType:
    """Return the columns of a read without a schema.

    Args:
        headers: include ``headers`` if the dataset has them.
        meta: include the columns that Kafka's source does not have.
    """
    columns = dict(_DEFAULT[dataset])
    if headers and "headers" in KNOWN[dataset]:
        columns["headers"] = HEADERS
    if meta and dataset == "messages":
        columns |= _META
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_schema(dataset: str, schema: StructType) -> None:
    """Check that a user's schema selects known columns with their types.

    Raises:
        ConfigError: names every column that is unknown or has another type.
    """
    problems = []
    known = KNOWN[dataset]
    for field in schema.fields:
        if field.name not in known:
            fix = f"dataset={dataset} has no such column; it has {', '.join(known)}"
            problems.append(Problem(f"column {field.name}", field.dataType.simpleString(), fix))
        elif field.dataType.simpleString() != known[field.name].simpleString():
            fix = f"its type is {known[field.name].simpleString()}; cast it afterwards"
            problems.append(Problem(f"column {field.name}", field.dataType.simpleString(), fix))
    if problems:
        raise ConfigError(problems)
