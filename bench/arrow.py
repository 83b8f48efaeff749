"""``./dev bench-arrow``: rows that are read in a second without Spark, beside raw PyMySQL in the same rounds."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import read, report
from bench.spark import raw
from bench.spark.beside import cpu_s
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
                assert servers.database.pid is not None
                figures = _measure(stage.url, servers.database.pid, given.rows, given.rounds)
            header = report.header(servers)
            print(", ".join(f"{key} {value}" for key, value in header.items()))
            print(table(figures))
    except (NotRight, EmsError, ServerMissing, ServerFailed) as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)


@dataclass
class _Way:
    """One way to read, and what each round of it took: rows in a second, and microseconds of a processor for a row."""

    read: Callable[[], int]
    rates: list[float] = field(default_factory=list)
    reader_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)

    def run(self, rows: int, server: int) -> None:
        """Read all rows once, on the server of that process."""
        before = time.perf_counter(), time.process_time(), cpu_s(server)
        if (count := self.read()) != rows:
            raise NotRight(f"{count} rows were read of {rows}")
        after = time.perf_counter(), time.process_time(), cpu_s(server)
        elapsed, reader, served = (b - a for a, b in zip(before, after, strict=True))
        self.rates.append(rows / elapsed)
        self.reader_us.append(reader / rows * 1e6)
        self.server_us.append(served / rows * 1e6)

    @property
    def cost(self) -> str:
        """For people: what a row took of the processors of both."""
        return f"reader {median(self.reader_us):.2f} us, server {median(self.server_us):.2f} us a row"


def _measure(url: str, server: int, rows: int, rounds: int) -> list[Figure]:
    def arrow(columns: list[str]) -> int:
        return sum(batch.num_rows for batch in read_arrow(subscribe="bench", columns=columns))

    ways = {
        "raw PyMySQL": _Way(lambda: raw.read(raw.Part(url, 1, rows + 1))),
        "`read_arrow`, the same columns": _Way(lambda: arrow(read.COLUMNS)),
        "`read_arrow`, `offset` alone": _Way(lambda: arrow(["offset"])),
        "`read_pandas`, the same columns": _Way(lambda: len(read_pandas(subscribe="bench", columns=read.COLUMNS))),
        "`scan_polars`, the same columns": _Way(
            lambda: scan_polars(subscribe="bench").select(read.COLUMNS).collect().height
        ),
    }
    for _ in range(rounds):
        for way in ways.values():
            way.run(rows, server)
    (name, reference), *others = ways.items()
    against = f"{name}: {reference.cost}"
    return [
        Figure("arrow", what, "rows/s", way.rates, against, reference.rates, least=5, note=way.cost)
        for what, way in others
    ]


if __name__ == "__main__":
    main()
