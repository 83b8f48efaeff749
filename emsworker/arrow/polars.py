"""Predicates of Polars as comparisons, by the public methods of its expressions alone."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars as pl

from emsworker.arrow.pushdown import Comparison, find_fault

_MAKE: dict[str, Callable[[Any, Any], pl.Expr]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda column, values: column.is_in(values),
}
_LOOSE = {"<": "<=", ">": ">="}


def find_comparisons(predicate: pl.Expr, dataset: str) -> list[Comparison]:
    """Return comparisons that every row has for which the predicate is true; the predicate is still to be applied.

    The operator of an expression is not public. It is the one that makes an equal expression from the same parts.
    """
    parts = predicate.meta.pop()
    if len(parts) == 3:
        return _between(predicate, parts, dataset)
    if len(parts) != 2:
        return []
    right, left = parts
    if (left & right).meta.eq(predicate):
        return find_comparisons(left, dataset) + find_comparisons(right, dataset)
    for name, make in _MAKE.items():
        if make(left, right).meta.eq(predicate):
            return _comparison(left, name, right, dataset)
    return []


def _between(predicate: pl.Expr, parts: list[pl.Expr], dataset: str) -> list[Comparison]:
    high, low, column = parts
    closings = ("both", "left", "right", "none")
    if not any(column.is_between(low, high, closed=closed).meta.eq(predicate) for closed in closings):  # type: ignore[arg-type]
        return []
    return _comparison(column, ">=", low, dataset) + _comparison(column, "<=", high, dataset)


def _comparison(column: pl.Expr, name: str, constant: pl.Expr, dataset: str) -> list[Comparison]:
    if not column.meta.is_column() or constant.meta.root_names():
        return []
    value = pl.select(constant).to_series()[0]
    if isinstance(value, pl.Series):
        value = value.to_list()
    if isinstance(
        value, datetime
    ):  # in microseconds, but the constant may have nanoseconds: accept all of the last one
        name = _LOOSE.get(name, name)
    one = Comparison(column.meta.output_name(), name, value)
    return [] if find_fault(one, dataset) else [one]
