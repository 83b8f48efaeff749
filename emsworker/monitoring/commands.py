"""``ems monitoring``."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from emsworker.extending.console import (
    json_option,
    listen,
    open_databases,
    print_done,
    read_address,
    stream_options,
)


@click.group()
@stream_options
def monitoring() -> None:
    """Serve the metrics of a stream; write a dashboard and rules for them."""


@monitoring.command()
@click.argument("address", default="127.0.0.1:9100", envvar="EMS_HTTP", metavar="[[HOST:]PORT]", callback=read_address)
@stream_options
def serve(address: tuple[str, int]) -> None:
    """Serve the metrics of all groups, and the number of workers that each needs, until SIGTERM or Ctrl-C.

    \b
    /metrics                    lag, ages, dead letters and demand of every group, for Prometheus
    /scale/TOPIC/GROUP?age=30s  lag, oldest, running, and workers wanted, as JSON, for KEDA
    /livez, /readyz             of this program

    One for a stream is enough, and one for several servers (EMS_SERVERS): their metrics have the label server.
    It reads only, as role viewer. It listens at EMS_HTTP, or else 127.0.0.1:9100; there is no authentication, so the
    host is 127.0.0.1 unless it is given.
    """  # noqa: D301 - click wants the character itself
    from emsworker.extending.administration import configure_logging
    from emsworker.monitoring.routes import stream_routes

    configure_logging("warning")
    ended = threading.Event()  # noqa: TID251 - this program forks no child
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    databases = open_databases()
    with listen(address, stream_routes(databases)) as server:
        click.echo(f"Ready: {server.url}/metrics")
        ended.wait()


@monitoring.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option
def export(folder: Path, force: bool, as_json: bool) -> None:
    """Write a Grafana dashboard, rules for Prometheus, and the rules' own tests into FOLDER.

    They go by the metrics of `ems worker --http` and `ems monitoring serve`. Import the dashboard in Grafana; name the
    rules in rule_files of Prometheus; `promtool test rules ems-rules-test.yml` runs the tests.
    """
    from emsworker.monitoring.export import exported_files

    files = {folder / name: text for name, text in exported_files().items()}
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        raise click.UsageError(f"{', '.join(there)} would be replaced; give --force, or another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    names = [str(path) for path in files]
    print_done({"written": names}, f"Wrote {', '.join(names)}.", as_json)
