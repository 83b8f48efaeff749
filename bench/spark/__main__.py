"""``./dev bench-spark [LINE]...``: what Spark reads in a second, each beside what it is compared with, in one run.

- *read*: our source and ``read_arrow`` beside raw PyMySQL and Spark's JDBC source (MariaDB Connector/J; Debian:
  libmariadb-java), the same four columns;
- *stream*: a query over a million rows, into Parquet with a checkpoint, beside a batch of the JDBC source;
- *fresh*: from an insert to ``foreachBatch``;
- *beside*: workers that drain a topic, without and with a reader of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import report, worker
from bench.spark import beside, figure, raw
from bench.spark.figure import Figure
from bench.spark.motion import EndToEnd, insert_to_batch
from bench.spark.reading import JAR, Reading
from bench.spark.session import session
from bench.stage import DEFAULT, NotRight, Servers, Stage
from emsworker import Ems
from emsworker.admin import Admin
from emsworker.core.errors import EmsError
from emsworker.local import ServerFailed, ServerMissing

LINES = ("read", "stream", "fresh", "beside")
_PATIENCE_S = 60.0
_RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Args:
        rows, size: of a read, and the bytes of a body.
        rounds: of reads and streams.
        singles: rows one by one.
        windows: pairs of them beside workers.
    """

    rows: int
    size: int
    rounds: int
    singles: int
    windows: int


def main() -> None:
    """Start a server, measure, print a table, write JSON."""
    given = _arguments()
    extent = Extent(given.rows, given.size, given.rounds, 20, given.windows)
    if given.quick:
        extent = Extent(min(given.rows, 100_000), given.size, 1, 5, 2)
    for name in [name for name in os.environ if name.startswith("EMS_") and name != "EMS_MYSQL_ROOT"]:
        del os.environ[name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the servers are stopped, then, too
    try:
        with tempfile.TemporaryDirectory(prefix="ems-bench-") as name, Servers(Path(name), given.server) as servers:
            figures = Run(servers, Path(name), extent).measure(given.lines or LINES)
            _write(servers, extent, figures, given.json)
    except (NotRight, EmsError, ServerMissing, ServerFailed) as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench-spark", description=__doc__)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"one or more of {', '.join(LINES)}; else all")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=5, help="of reads and streams")
    parser.add_argument("--windows", type=int, default=6, help="pairs of windows beside workers")
    parser.add_argument("--quick", action="store_true", help="one short round of everything: its figures mean little")
    parser.add_argument("--server", choices=("mariadb", "mysql"), default="mariadb")
    parser.add_argument("--json", type=Path, help="where the JSON goes")
    given = parser.parse_args()
    if wrong := [name for name in given.lines if name not in LINES]:
        parser.error(f"there is no line {wrong[0]!r}; there are {', '.join(LINES)}")
    return given


def _beat(stage: Stage, rows: int) -> None:
    """What a beat does behind every stream: it notes up to where there is no hole."""
    command = [sys.executable, "-m", "emsworker", "beat"]
    with subprocess.Popen(command, env=worker.environment(stage), stderr=subprocess.DEVNULL) as beat:
        try:
            until = time.monotonic() + _PATIENCE_S
            while stage.value("SELECT MIN(high_watermark) FROM ems_partition") <= rows:
                if time.monotonic() > until:
                    raise NotRight("the beat did not look at the stream")
                time.sleep(0.1)
        finally:
            beat.terminate()


class Run:
    """The lines that were asked for, one after another."""

    def __init__(self, servers: Servers, folder: Path, extent: Extent) -> None:
        self._servers, self._folder, self._extent = servers, folder, extent
        self._profiles = folder / "profiles.ini"
        os.environ["EMS_PROFILES"] = str(self._profiles)

    def measure(self, lines: tuple[str, ...]) -> list[Figure]:
        """Everything that is asked for."""
        figures: list[Figure] = []
        if "beside" in lines:  # first, while no session of ours idles beside it
            with self._line("beside"), self._stage() as stage:
                figures = beside.measure(stage, self._servers, self._extent.windows, _say)
        spark = session(self._folder) if set(lines) - {"beside"} else None
        try:
            return self._with_spark(spark, lines) + figures
        finally:
            if spark is not None:
                spark.stop()

    def _with_spark(self, spark: Any, lines: tuple[str, ...]) -> list[Figure]:
        extent, figures = self._extent, []
        if {"read", "stream"} & set(lines):
            if not JAR.exists():
                _say(f"{JAR} is not there: Spark's JDBC source is left out")
            with self._stage() as stage:
                self._fill(stage)
                reading = Reading(spark, stage.url, extent.rows, stage.folder)
                if "read" in lines:
                    with self._line("read"):
                        figures += reading.measure(extent.rounds, _say)
                if "stream" in lines:
                    with self._line("stream"):
                        jdbc = reading.jdbc if JAR.exists() else None
                        figures += EndToEnd(spark, extent.rows, stage.folder, jdbc).measure(extent.rounds, _say)
        if "fresh" in lines:
            with self._line("fresh"), self._stage() as stage:
                figures += insert_to_batch(spark, stage, extent.singles)
        return figures

    def _fill(self, stage: Stage) -> None:
        app = Ems("bench", url=stage.url)
        assert Admin(app).create_topic("bench").id == 1
        app.close()
        raw.fill(stage.url, 1, self._extent.rows, self._extent.size)
        _beat(stage, self._extent.rows)

    @contextmanager
    def _stage(self) -> Iterator[Stage]:
        with self._servers.stage(DEFAULT) as stage:
            self._profiles.write_text(f"[bench]\nurl = {stage.url}\n", encoding="utf-8")
            yield stage

    @contextmanager
    def _line(self, name: str) -> Iterator[None]:
        _say(name)
        began = time.monotonic()
        yield
        _say(f"  {name} took {time.monotonic() - began:.0f} s")


def _write(servers: Servers, extent: Extent, figures: list[Figure], json_file: Path | None) -> None:
    result = report.header(servers) | {"pyspark": version("pyspark"), "spark": figure.as_json(figures)}
    result["spark_size"] = vars(extent)
    print(figure.table(figures))
    target = json_file or _RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-spark-{servers.database.flavor}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    _say(f"written to {target}")
    if missed := [one.what for one in figures if one.met is False]:
        _say(f"not met: {'; '.join(missed)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
