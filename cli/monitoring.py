"""``ems monitoring``."""

from __future__ import annotations

import signal
import threading

import click

from .common import open_stream, stream_options
from .http import listen, read_address


@click.group()
@stream_options
def monitoring() -> None:
    """Serve the metrics of a stream; write dashboards and rules for Prometheus and Grafana."""


@monitoring.command()
@click.argument("address", default="127.0.0.1:9100", envvar="EMS_HTTP", metavar="[HOST:]PORT", callback=read_address)
@stream_options
def serve(address: tuple[str, int]) -> None:
    """Serve the metrics of all groups, and the number of workers that each needs, until SIGTERM or Ctrl-C.

    \b
    /metrics                    lag, ages, dead letters and demand of every group, for Prometheus
    /scale/TOPIC/GROUP?age=30s  lag, oldest, running, and workers wanted, as JSON, for KEDA
    /livez, /readyz             of this program

    One for a stream is enough. It reads only, as role reader. There is no authentication, so the host is 127.0.0.1
    unless it is given.
    """  # noqa: D301 - click wants the character itself
    from emsworker.observe.stream_routes import stream_routes

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    database = open_stream().database()
    with listen(address, stream_routes(database)) as server:
        click.echo(f"Ready: {server.url}/metrics")
        ended.wait()
