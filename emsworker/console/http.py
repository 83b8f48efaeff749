"""The address at which a command serves HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from emsworker.console.failures import CommandFailure

if TYPE_CHECKING:
    from emsworker.observe.http import HttpServer, Route


def read_address(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Turn an address on the command line into host and port."""
    if value is None:
        return None
    from emsworker.observe.http import parse_address

    try:
        return parse_address(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


http_option = click.option(
    "--http",
    envvar="EMS_HTTP",
    metavar="[HOST:]PORT",
    callback=read_address,
    help="Serve /livez, /readyz, /startupz and /metrics here; the host is 127.0.0.1 unless it is given, because "
    "there is no authentication. EMS_HTTP does the same.",
)


def listen(address: tuple[str, int], routes: Mapping[str, Route]) -> HttpServer:
    """Return a server that is bound to an address.

    Raises:
        CommandFailure: it cannot listen there.
    """
    from emsworker.observe.http import HttpServer

    host, port = address
    try:
        return HttpServer(host, port, routes)
    except OSError as error:
        why = error.strerror or str(error)
        raise CommandFailure(
            [f"cannot listen at {host}:{port}: {why}; choose another address (--http or EMS_HTTP)"]
        ) from None
