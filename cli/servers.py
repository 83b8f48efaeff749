"""``ems servers``."""

from __future__ import annotations

import click

from .common import CommandFailure, common_options, open_each, stream_options
from .output import print_rows

_COUNTED = 10_000


@click.group()
@stream_options
def servers() -> None:
    """List the servers of EMS_SERVERS, and what is on each."""


@servers.command("list")
@common_options
def list_(as_json: bool) -> None:
    """List the servers: where each is, whether it answers, and what waits there.

    TOPICS and GROUPS are those that the server keeps; LAG is what their groups have not finished (retries are counted
    up to 10,000 a partition), and OLDEST the age of the oldest message of it. WORKERS are live clients. The exit code
    is 1 if a server cannot be used. On a server with more than 2,000 partitions and groups x partitions, these are
    numbers of the latest samples of the beat there.
    """
    from emsworker.admin.servers import Servers, list_servers

    views = list_servers(Servers(open_each()), _COUNTED)
    if len(views) == 1 and views[0].error is not None:
        raise views[0].error
    rows = [
        {
            "server": view.name,
            "address": view.address,
            "reachable": view.reachable,
            "version": view.version or None,
            "topology": view.topology or None,
            **{
                name: getattr(view, name) if view.usable else None
                for name in ("topics", "groups", "lag", "oldest_s", "workers", "beat", "age_s")
            },
            "error": view.problem or None,
        }
        for view in views
    ]
    columns = ["server", "address", "reachable", "topology", "topics", "groups", "lag", "oldest_s", "workers", "beat"]
    print_rows(rows, columns, as_json, "", spare=["groups", "beat", "workers", "topology"])
    if lines := [f"server {view.name}: {view.problem}" for view in views if not view.usable]:
        raise CommandFailure(lines)
