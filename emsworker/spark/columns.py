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

_MESSAGE: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
_META: dict[str, DataType] = {
    "uid": StringType(),
    "kind": StringType(),
    "tag": BinaryType(),
    "rawHeaders": BinaryType(),
    "size": IntegerType(),
    "producer": StringType(),
}
_CLAIM: dict[str, DataType] = {
    "group": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "lo": LongType(),
    "hi": LongType(),
    "ackedTo": LongType(),
    "state": StringType(),
    "source": StringType(),
    "isolation": IntegerType(),
    "client": StringType(),
    "claimId": LongType(),
    "claimedAt": TimestampType(),
    "progressAt": TimestampType(),
}
_ATTEMPT: dict[str, DataType] = {
    "group": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "attempt": IntegerType(),
    "outcome": StringType(),
    "ranMs": LongType(),
    "client": StringType(),
    "error": StringType(),
    "endedAt": TimestampType(),
}
_RETRY: dict[str, DataType] = {
    "group": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "attempt": IntegerType(),
    "dueAt": TimestampType(),
    "key": BinaryType(),
    "error": StringType(),
}
_DEAD: dict[str, DataType] = {
    "group": StringType(),
    **_MESSAGE,
    "uid": StringType(),
    "tag": BinaryType(),
    "producer": StringType(),
    "attempts": IntegerType(),
    "reason": StringType(),
    "error": StringType(),
    "deadAt": TimestampType(),
}
KNOWN: dict[str, dict[str, DataType]] = {
    "messages": {**_MESSAGE, "headers": HEADERS, **_META},
    "claims": _CLAIM,
    "attempts": _ATTEMPT,
    "retries": _RETRY,
    "deadletters": {**_DEAD, "headers": HEADERS, "rawHeaders": BinaryType()},
}
_DEFAULT = {
    "messages": _MESSAGE,
    "claims": _CLAIM,
    "attempts": _ATTEMPT,
    "retries": _RETRY,
    "deadletters": _DEAD,
}


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
