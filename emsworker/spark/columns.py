"""Columns of each dataset with the types of Spark."""

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

from emsworker.arrow.columns import COLUMNS, default_columns, unknown_column
from emsworker.extending.errors import ConfigError, Problem

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_KINDS: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (BinaryType(), IntegerType(), LongType(), StringType(), TimestampType(), _HEADERS)
}
KNOWN: dict[str, dict[str, DataType]] = {
    dataset: {name: _KINDS[kind] for name, kind in columns.items()} for dataset, columns in COLUMNS.items()
}


def ddl(dataset: str, columns: str) -> str:
    """Return columns of a dataset, separated by blanks, with their types."""
    return ", ".join(f"`{name}` {COLUMNS[dataset][name]}" for name in columns.split())


def default_schema(dataset: str, *, headers: bool, meta: bool) -> StructType:
    """Return the columns of a read without a schema, as :func:`~emsworker.arrow.columns.default_columns` has them."""
    names = default_columns(dataset, headers=headers, meta=meta)
    return StructType([StructField(name, KNOWN[dataset][name]) for name in names])


def check_schema(dataset: str, schema: StructType) -> None:
    """Check that a user's schema selects known columns with their types.

    Raises:
        ConfigError: names every column that is unknown or has another type.
    """
    problems = []
    known = KNOWN[dataset]
    for field in schema.fields:
        if field.name not in known:
            kind = field.dataType.simpleString()
            problems.append(Problem(f"column {field.name}", kind, unknown_column(dataset)))
        elif field.dataType.simpleString() != known[field.name].simpleString():
            fix = f"its type is {known[field.name].simpleString()}; cast it afterwards"
            problems.append(Problem(f"column {field.name}", field.dataType.simpleString(), fix))
    if problems:
        raise ConfigError(problems)
