"""``./dev bench [LINE...]``: measure, print a table, write JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import click

from bench import report
from bench.lines import LINES, Line
from bench.stage import DEFAULT, QUICK, NotRight, Servers, Size
from emsworker.core.errors import EmsError
from emsworker.local import ServerFailed, ServerMissing
from emsworker.local.engines import Flavor

_NAMES = [line.name for line in LINES]
_RESULTS = Path(__file__).parent / "results"


@click.command()
@click.argument("names", metavar="[LINE]...", nargs=-1, type=click.Choice(_NAMES))
@click.option("--quick", is_flag=True, help="One short repeat of everything: under a minute.")
@click.option("--server", type=click.Choice(["mariadb", "mysql"]), default="mariadb", help="What to measure on.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Where the JSON goes.")
def main(names: tuple[str, ...], quick: bool, server: Flavor, json_file: Path | None) -> None:
    """Measure EMS beside the raw limit of the same server; every run is checked for loss.

    LINE is one or more of: send, send-20, send-64, send-many, drain, transactional, latency, latency-redis.
    """
    for name in [name for name in os.environ if name.startswith("EMS_") and name != "EMS_MYSQL_ROOT"]:
        del os.environ[name]  # only the private servers are measured, with the default settings
    lines = [line for line in LINES if not names or line.name in names]
    try:
        with tempfile.TemporaryDirectory(prefix="ems-bench-") as folder, Servers(Path(folder), server) as servers:
            _run(servers, lines, QUICK if quick else DEFAULT, json_file)
    except (NotRight, EmsError, ServerMissing, ServerFailed) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


def _run(servers: Servers, lines: list[Line], size: Size, json_file: Path | None) -> None:
    rows: list[report.Figure] = []
    for line in lines:
        if line.redis and servers.redis is None:
            click.echo(f"{line.name}: left out, no Redis server is installed", err=True)
            continue
        click.echo(f"{line.name}: {line.what}", err=True)
        rows += _measure(servers, line, size)
    click.echo(report.table(rows))
    result = report.as_json(rows, servers, size)
    target = json_file or _RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{servers.database.flavor}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    click.echo(f"\nwritten to {target}", err=True)


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
