"""``./dev bench-arrow``: rows that are read in a second without Spark, beside raw PyMySQL in the same rounds."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import read, report
from bench.spark import raw
from bench.spark.figure import Figure, table
from bench.stage import DEFAULT, NotRight, Servers
from emsworker.arrow import read_arrow, read_pandas, scan_polars
from emsworker.core.errors import EmsError
from emsworker.local import ServerFailed, ServerMissing


def main() -> None:
    """Start a server, measure, print a table."""
    parser = argparse.ArgumentParser(prog="./dev bench-arrow", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", choices=("mariadb", "mysql"), default="mariadb")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="ems-bench-") as name, Servers(Path(name), given.server) as servers:
            with servers.stage(DEFAULT) as stage:
                read.fill(stage, given.rows, given.size)
                figures = _measure(stage.url, given.rows, given.rounds)
            header = report.header(servers)
            print(", ".join(f"{key} {value}" for key, value in header.items()))
            print(table(figures))
    except (NotRight, EmsError, ServerMissing, ServerFailed) as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)


def _measure(url: str, rows: int, rounds: int) -> list[Figure]:
    ways: dict[str, Callable[[], int]] = {
        "raw PyMySQL": lambda: raw.read(raw.Part(url, 1, rows + 1)),
        "`read_arrow`, the same columns": lambda: sum(
            batch.num_rows for batch in read_arrow(subscribe="bench", columns=read.COLUMNS)
        ),
        "`read_arrow`, `offset` alone": lambda: sum(
            batch.num_rows for batch in read_arrow(subscribe="bench", columns=["offset"])
        ),
        "`read_pandas`, the same columns": lambda: len(read_pandas(subscribe="bench", columns=read.COLUMNS)),
        "`scan_polars`, the same columns": lambda: scan_polars(subscribe="bench").select(read.COLUMNS).collect().height,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            if (count := way()) != rows:
                raise NotRight(f"{name}: {count} rows were read of {rows}")
            found[name].append(rows / (time.perf_counter() - began))
    reference, *others = ways
    return [Figure("arrow", name, "rows/s", found[name], reference, found[reference], least=5) for name in others]


if __name__ == "__main__":
    main()
