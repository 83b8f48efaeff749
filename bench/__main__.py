"""``./dev bench [LINE...]``: measure, print tables, write JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click

from bench import peers_report, report
from bench.lines import Line
from bench.peers import packages
from bench.peers.arena import Arena
from bench.peers.compare import Comparison, compare
from bench.peers.systems import System
from bench.peers.venvs import CACHE_VARIABLE
from bench.stage import NotRight, Servers, Size
from bench.strangers import Strangers, refuse_workers
from bench.studies import report as studies_report
from bench.studies.finding import Finding, Lab, Study
from bench.suite import NAMES, SIZES, Sizes, Suite, chosen
from emsworker.core.errors import EmsError
from emsworker.local import ServerFailed, ServerMissing
from emsworker.local.engines import Flavor

T = TypeVar("T", Line, System, Study)

_RESULTS = Path(__file__).parent / "results"
_KEPT = ("EMS_MYSQL_ROOT", CACHE_VARIABLE)
_MINUTES = 15.0


@click.command(epilog=f"LINE is one or more of: {', '.join(NAMES)}. Without one, everything is measured.")
@click.argument("names", metavar="[LINE]...", nargs=-1, type=click.Choice(NAMES))
@click.option("--quick", "size", flag_value="quick", help="One short repeat of everything.")
@click.option("--full", "size", flag_value="full", help="More repeats and more messages: this takes hours.")
@click.option("--server", type=click.Choice(["mariadb", "mysql"]), default="mariadb", help="What EMS is measured on.")
@click.option("--minutes", type=float, help="Begin no line after this time; 15 without --full.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Where the JSON goes.")
@click.option("--packages", "only_packages", is_flag=True, help="Print the Debian packages that are missing, and end.")
def main(
    names: tuple[str, ...],
    size: str | None,
    server: Flavor,
    minutes: float | None,
    json_file: Path | None,
    only_packages: bool,
) -> None:
    """Measure EMS beside the raw limit of the same server and beside its peers; every run is checked for loss."""
    suite = chosen(names)
    if only_packages:
        click.echo("".join(f"{name}\n" for name in packages.missing(suite.peers)), nl=False)
        return
    for name in [name for name in os.environ if name.startswith("EMS_") and name not in _KEPT]:
        del os.environ[name]  # only the private servers are measured, with the default settings
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the servers are stopped, then, too
    minutes = minutes or (None if size == "full" else _MINUTES)
    try:
        refuse_workers()
        with tempfile.TemporaryDirectory(prefix="ems-bench-") as folder, Servers(Path(folder), server) as servers:
            run = _Run(servers, Path(folder), SIZES[size or "default"], minutes)
            run.measure(suite, must=bool(names))
            run.write(json_file)
    except (NotRight, Strangers, EmsError, ServerMissing, ServerFailed) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


class _Run:
    """Everything that was asked for, one line after another.

    Args:
        minutes: no line is begun afterwards.
    """

    def __init__(self, servers: Servers, folder: Path, size: Sizes, minutes: float | None) -> None:
        self._servers = servers
        self._folder = folder
        self._size = size
        self._until = time.monotonic() + minutes * 60 if minutes else None
        self._figures: list[report.Figure] = []
        self._comparisons: list[Comparison] = []
        self._findings: list[Finding] = []

    def measure(self, suite: Suite, *, must: bool) -> None:
        """Measure one line after another, and print tables.

        Args:
            must: a server that is missing is an error; else its lines are left out.
        """
        for line in self._in_time(suite.lines):
            if line.redis and self._servers.redis is None:
                _say(f"{line.name}: left out, no Redis server is installed")
                continue
            _say(f"{line.name}: {line.what}")
            self._figures += _measure(self._servers, line, self._size.lines)
        with Arena(self._servers, self._folder) as arena:
            for peer in self._in_time(suite.peers):
                _say(f"{peer.line}: {peer.title}")
                try:
                    self._comparisons.append(compare(arena, peer, self._size.peers, _say))
                except ServerMissing as error:
                    if must:
                        raise
                    _say(f"{peer.line}: left out, {error}")

        for number, study in enumerate(self._in_time(suite.studies)):
            _say(f"{study.name}: {study.what}")
            folder = self._folder / f"study-{number}"
            folder.mkdir()
            self._findings += study.run(Lab(self._servers, folder, self._size.studies, self._size.lines, _say))

    def _in_time(self, lines: Iterable[T]) -> Iterator[T]:
        for line in lines:
            if self._until is not None and time.monotonic() > self._until:
                _say(f"{_name(line)}: left out, the time is over; --minutes gives more")
            else:
                yield line

    def write(self, json_file: Path | None) -> None:
        """Print the tables, and keep everything as JSON."""
        result = report.header(self._servers)
        if self._figures:
            result |= report.as_json(self._figures, self._size.lines)
            click.echo(report.table(self._figures) + "\n")
        if self._comparisons:
            result |= peers_report.as_json(self._comparisons, self._size.peers)
            click.echo(peers_report.table(self._comparisons) + "\n")
        if self._findings:
            result |= studies_report.as_json(self._findings, self._size.studies)
            click.echo(studies_report.table(self._findings) + "\n")
        target = json_file or _RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{self._servers.database.flavor}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(result, indent=2) + "\n")
        _say(f"written to {target}")


def _name(line: Line | System | Study) -> str:
    return line.line if isinstance(line, System) else line.name


def _say(text: str) -> None:
    click.echo(text, err=True)


def _measure(servers: Servers, line: Line, size: Size) -> list[report.Figure]:
    """Raw and EMS in turns, so that both see the same machine."""
    ems, raw = [], []
    for _ in range(size.repeats):
        with servers.stage(size) as stage:
            raw.append(line.limit(stage))
        with servers.stage(size, redis=line.redis) as stage:
            ems.append(line.measure(stage))
    return report.figures(line, ems, raw)


if __name__ == "__main__":
    main(prog_name="python -m bench")
