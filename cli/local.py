"""``ems local``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .common import json_option, stream_options
from .output import print_json, print_rows

if TYPE_CHECKING:
    from emsworker.local.stack import LocalStack


@click.group()
@stream_options
def local() -> None:
    """Run a private MySQL and Redis for development.

    They live in one folder ($EMS_LOCAL_DIR, or else ems/local in your data folder), listen on this machine only, keep
    every commit, and never touch a server of the system. Without EMS_URL, commands and apps use them.
    """


def _stack() -> LocalStack:
    from emsworker.local.stack import LocalStack

    return LocalStack()


@local.command()
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds to wait for each server.")
@json_option
@stream_options
def start(timeout: float, as_json: bool) -> None:
    """Start the servers, if they do not run, and create the tables of EMS."""
    from emsworker.store.database import Database
    from emsworker.store.schema import migrate

    stack = _stack()
    stack.start(timeout)
    database = Database(stack.url)
    database.call(migrate)
    database.thread_session().close()
    if as_json:
        print_json(stack.status())
        return
    redis = "with Redis" if stack.redis_url else "without Redis, which is not installed (workers poll instead)"
    click.echo(f"The local stream runs in {stack.folder}, {redis}.")
    click.echo("Commands and apps use it while EMS_URL is not set; `ems local stop` ends it.")


@local.command()
@click.option("--timeout", type=float, default=30.0, show_default=True, help="Seconds to wait for each server.")
@json_option
@stream_options
def stop(timeout: float, as_json: bool) -> None:
    """Stop the servers cleanly; the data stays."""
    stack = _stack()
    stack.stop(timeout)
    if as_json:
        print_json(stack.status())
    else:
        click.echo(f"The local stream in {stack.folder} is stopped.")


@local.command()
@json_option
@stream_options
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show what runs where; exit code 1 if the database does not run."""
    stack = _stack()
    about = stack.status()
    if as_json:
        print_json(about)
    else:
        empty = {"kind": None, "version": None, "pid": None, "port": None, "url": None, "missing": None}
        rows = []
        for name in ("database", "redis"):
            part = about[name]
            assert isinstance(part, dict)
            rows.append({"server": name, **empty, **part})
        click.echo(f"In {about['folder']}:")
        print_rows(rows, ["server", "running", "kind", "version", "pid", "url"], False, "")
        for row in rows:
            if row["missing"]:
                click.echo(row["missing"], err=True)
    ctx.exit(0 if stack.database.alive else 1)


@local.command()
@click.option("--redis", is_flag=True, help="The address of Redis instead.")
@json_option
@stream_options
def url(redis: bool, as_json: bool) -> None:
    """Print the address of the running local stream, with its password: for EMS_URL."""
    from emsworker.core.errors import StoreUnavailable

    stack = _stack()
    server = stack.redis if redis else stack.database
    if not server.alive:
        raise StoreUnavailable(f"it does not run in {server.folder}; run `ems local start`")
    if as_json:
        print_json({"url": server.url})
    else:
        click.echo(server.url)
