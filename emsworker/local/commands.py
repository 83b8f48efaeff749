"""``ems local``."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from emsworker.extending.console import (
    common_options,
    duration_option,
    print_done,
    print_json,
    print_rows,
    stream_options,
)

if TYPE_CHECKING:
    from emsworker.local.server import Server
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


_LEAST_S = 1.0  # no server starts or stops in less


def _check_timeout(timeout_s: float) -> None:
    if timeout_s < _LEAST_S:
        raise click.BadParameter(f"{timeout_s:g} s is too short; at least {_LEAST_S:g} s.", param_hint="--timeout")


@local.command()
@duration_option("--timeout", default="60s", help="The time to wait for each server")
@common_options
def start(timeout: float, as_json: bool) -> None:
    """Start the servers, if they do not run, and create the tables of EMS."""
    from emsworker.extending.database import Database, migrate
    from emsworker.extending.declaration import extensions

    _check_timeout(timeout)
    stack = _stack()
    stack.start(timeout)
    database = Database(stack.database.url)
    database.call(lambda session: migrate(session, extensions().values()))
    database.thread_session().close()
    redis = "with Redis" if stack.redis_url else "without Redis, which is not installed (workers poll instead)"
    text = f"The local stream runs in {stack.folder}, {redis}.\nCommands and apps use it while EMS_URL is not set; "
    print_done(stack.status(), f"{text}`ems local stop` ends it.", as_json)


@local.command()
@duration_option("--timeout", default="30s", help="The time to wait for each server")
@common_options
def stop(timeout: float, as_json: bool) -> None:
    """Stop the servers cleanly; the data stays."""
    _check_timeout(timeout)
    stack = _stack()
    stack.stop(timeout)
    print_done(stack.status(), f"The local stream in {stack.folder} is stopped.", as_json)


@local.command()
@common_options
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
@common_options
def url(redis: bool, as_json: bool) -> None:
    """Print the address of the running local stream, with its password: for EMS_URL."""
    stack = _stack()
    server = _running(stack.redis if redis else stack.database)
    print_done({"url": server.url}, server.url, as_json)


@local.command()
@common_options
def env(as_json: bool) -> None:
    """Print EMS_URL and EMS_REDIS_URL of the running local stream, for a shell: eval "$(ems local env)"."""
    stack = _stack()
    _running(stack.database)
    addresses = {"EMS_URL": stack.url, "EMS_REDIS_URL": stack.redis_url}
    if as_json:
        print_json(addresses)
        return
    for name, value in addresses.items():
        click.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")


@local.command()
@click.argument("sql", required=False)
@click.option("-e", "--execute", "statements", metavar="SQL", help="Run these statements, like the argument SQL.")
@common_options
def sql(sql: str | None, statements: str | None, as_json: bool) -> None:
    """Open an SQL client on the local database, or run statements: SQL, or those of standard input.

    Statements are separated by semicolons. Rows are printed with their columns separated by tabs.
    """
    from emsworker.local.client import client_command, run_statements

    if sql is not None and statements is not None:
        raise click.UsageError("Give the statements once: as an argument, or with -e.")
    statements = sql if statements is None else statements
    database = _stack().database
    _running(database)
    if statements is None and sys.stdin.isatty():
        command = client_command(database)
        os.execv(command[0], command)
    results = run_statements(database, sys.stdin.read() if statements is None else statements)
    if as_json:
        print_json([{"columns": result.columns, "rows": result.rows} for result in results])
        return
    for result in results:
        for row in (result.columns, *result.rows):
            click.echo("\t".join(map(_cell, row)))


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def _running(server: Server) -> Server:
    """Return the server if it runs.

    Raises:
        StoreUnavailable: it does not.
    """
    from emsworker.extending.errors import StoreUnavailable

    if not server.alive:
        raise StoreUnavailable(f"it does not run in {server.folder}; run `ems local start`")
    return server
