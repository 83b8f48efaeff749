"""``ems http``."""

from __future__ import annotations

from pathlib import Path

import click

from emsworker.extending.console import CommandFailure, duration_option, open_wanted, stream_options

_CLIENTS = {"js": "ems.mjs", "go": "ems.go"}
_OPEN = (
    "Tokens and messages are not encrypted here: put a proxy with TLS before this server, and let nobody else reach it."
)


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8810, show_default=True, help="0 for any free one.")
@click.option(
    "--tokens",
    "token_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of tokens; `ems http token` makes its lines. It is read again when it changes.",
)
@duration_option("--lease", "lease_s", default="1m", help="The time that a message may be in hand by default")
@duration_option("--grace", "grace_s", default="10s", help="The time for clients to settle when the server stops")
@click.option(
    "--groups",
    type=click.IntRange(1, 1000),
    default=16,
    show_default=True,
    help="The most groups that are read at once; each takes about four connections to the database.",
)
@click.option(
    "--waiting",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="The most clients that wait for messages.",
)
@click.option(
    "--streams", type=click.IntRange(1, 100_000), default=200, show_default=True, help="The most streams of events."
)
@click.option(
    "--in-hand",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="The most messages of a group in hand.",
)
@click.option(
    "--max-body",
    type=click.IntRange(1024, 1 << 30),
    default=8 << 20,
    show_default=True,
    help="The most bytes of a request.",
)
@click.option("--auto-create", is_flag=True, help="Create topics and groups that clients name; otherwise they get 404.")
@stream_options
@click.pass_context
def http(
    ctx: click.Context,
    host: str,
    port: int,
    token_path: Path | None,
    lease_s: float,
    grace_s: float,
    groups: int,
    waiting: int,
    streams: int,
    in_hand: int,
    max_body: int,
    auto_create: bool,
) -> None:
    """Serve messages by HTTP, for programs in any language.

    Clients fetch, ack, nack, extend and send, call tasks, signal flows, and follow results. /openapi.json describes it;
    `ems http client` prints a client for JavaScript or Go.

    \b
    reader    results, progress and flows
    producer  sends, calls and signals as well
    worker    fetches and settles as well
    """  # noqa: D301 - click wants the character itself
    if ctx.invoked_subcommand is not None:
        return
    from emsworker.extending.administration import configure_logging
    from emsworker.extending.apps import Ems
    from emsworker.extending.declaration import require
    from emsworker.extending.settings import MAIN

    require("http", "ems http")
    if token_path is None:
        raise click.UsageError("Give --tokens, the file of tokens; `ems http token NAME` makes a line of it.")
    from emsworker.http.site import HttpLimits, HttpSite
    from emsworker.http.tokens import TokenFile
    from emsworker.web.access import is_loopback
    from emsworker.web.serve import serve

    tokens = TokenFile(token_path)
    if lease_s < 1:
        raise click.BadParameter("must be 1 second or more.", param_hint="--lease")
    found = open_wanted()
    main = found.get(MAIN) or next(iter(found.values()))
    main.database()  # what is wrong with it is told now
    servers = main.settings.servers if len(found) > 1 else ""
    app = Ems("http", url=main.url, redis_url=main.settings.redis_url, servers=servers, auto_create=auto_create)
    site = HttpSite(app, tokens, lease_s, HttpLimits(max_body, groups, waiting, streams, in_hand, grace_s))

    def tell(address: str) -> None:
        click.echo(f"The HTTP interface is at {address}")
        if not is_loopback(host):
            click.echo(_OPEN, err=True)

    configure_logging("info")
    serve(site.application(), host, port, tell, site.end)
    site.close()


@http.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["reader", "producer", "worker"]),
    default="worker",
    show_default=True,
    help="What the client may do.",
)
@click.option("--topics", default="*", show_default=True, help="The topics it may use: names or patterns, with commas.")
@click.option(
    "--to",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the line to this file, and print the token alone.",
)
def token(name: str, role: str, topics: str, path: Path | None) -> None:
    """Make a token for the client NAME, and the line of it for the file of --tokens.

    The file has the hash of the token; the token itself is shown once.
    """
    from emsworker.http.tokens import new_token

    made, line = new_token(name, role, topics)
    if path is None:
        click.echo(line)
        click.echo(f"The token of this line: {made}", err=True)
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        raise CommandFailure([f"cannot write to {path}: {error.strerror or error}"]) from None
    click.echo(made)


@http.command()
@click.argument("language", type=click.Choice(list(_CLIENTS)))
def client(language: str) -> None:
    """Print the client for a LANGUAGE, a file to put into your program."""
    click.echo((Path(__file__).parent / "clients" / _CLIENTS[language]).read_text(encoding="utf-8"), nl=False)
