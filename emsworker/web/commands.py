"""``ems web``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from emsworker.extending.console import WrongUsage, open_wanted, stream_options

if TYPE_CHECKING:
    from emsworker.web.access import AccessRule, Level
    from emsworker.web.site import Dashboard

_UNSAFE = (
    "--host {}: without authentication the dashboard listens on this machine only; give --password-file, "
    "--trust-proxy or --oidc-issuer"
)
_LEVELS = click.Choice(["viewer", "reader", "operator"])


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8800, show_default=True, help="0 for any free one.")
@click.option(
    "--access",
    "level",
    type=_LEVELS,
    help="What anybody on this machine may do, without a password; viewer by default.",
)
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Ask for name and password; `ems web password` makes the lines of this file.",
)
@click.option(
    "--trust-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Believe this proxy's header with the user's name; repeatable.",
)
@click.option(
    "--user-header", default="X-Forwarded-User", show_default=True, help="The header with the name of the user."
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME=LEVEL",
    help="The level of a user whom the proxy names; * for everybody; repeatable.",
)
@click.option(
    "--oidc-issuer",
    "issuer",
    metavar="URL",
    help="Let people sign in at this OpenID Connect provider; EMS_WEB_OIDC_SECRET has the client's secret.",
)
@click.option("--oidc-client-id", "client_id", metavar="ID", help="The dashboard's client id at the provider.")
@click.option(
    "--oidc-level",
    "claims",
    multiple=True,
    metavar="CLAIM=VALUE:LEVEL",
    help="The level of people whose ID token has this value, like groups=ops:operator; *:LEVEL for everybody; "
    "repeatable.",
)
@click.option(
    "--oidc-scope", "scopes", multiple=True, metavar="NAME", help="Ask for this besides openid, profile and email."
)
@click.option(
    "--public-url",
    metavar="URL",
    help="The dashboard's address as browsers see it, behind a proxy; with a path, it is served below that path.",
)
@stream_options
@click.pass_context
def web(
    ctx: click.Context,
    host: str,
    port: int,
    level: Level | None,
    password_file: Path | None,
    proxies: Sequence[str],
    user_header: str,
    users: Sequence[str],
    issuer: str | None,
    client_id: str | None,
    claims: Sequence[str],
    scopes: Sequence[str],
    public_url: str | None,
) -> None:
    """Run the dashboard, a web site.

    It reads as the user of EMS_URL: one with the grants of viewer, or of reader to show bodies, headers and errors. It
    changes things only if EMS_WEB_OPERATOR_URL names a user with the grants of operator, and for operators only. Of
    several servers (EMS_SERVERS) it shows all on one page, and each on its own; --server shows one.

    \b
    viewer    lists, lag, traces and charts
    reader    bodies, headers and errors as well
    operator  may requeue, delete, cancel, pause, limit, reset, skip, replay
    """  # noqa: D301 - click wants the character itself
    if ctx.invoked_subcommand is not None:
        return
    from emsworker.extending.administration import configure_logging
    from emsworker.extending.apps import Ems
    from emsworker.extending.declaration import require
    from emsworker.extending.settings import MAIN

    require("web", "ems web")
    from emsworker.web.access import public_path
    from emsworker.web.serve import below, serve
    from emsworker.web.site import ems_web

    path = public_path(public_url) if public_url is not None else ""
    if issuer is not None:
        _only_one(issuer, level, password_file, proxies)
        rule = _openid(issuer, client_id, claims, scopes, public_url or _own_url(host, port))
    elif client_id is not None or claims or scopes:
        raise click.UsageError("--oidc-client-id, --oidc-level and --oidc-scope need --oidc-issuer.")
    else:
        rule = _rule(host, level, password_file, proxies, user_header, users)
    streams = open_wanted()
    if len(streams) > 1:
        main = streams[MAIN]
        site = ems_web(Ems("ems", url=main.url, servers=main.settings.servers, read_url=main.read_url), access=rule)
    else:
        (stream,) = streams.values()
        stream.reading()
        site = ems_web(stream.read_url or stream.url, access=rule, replica=stream.read_url is not None)
    _check(site.state.dashboard)
    site = below(path, site) if path else site

    def tell(address: str) -> None:
        click.echo(f"The dashboard is at {f'{public_url}, and listens on {address}' if public_url else address}")
        if not os.environ.get("EMS_WEB_OPERATOR_URL"):
            click.echo("It only reads: EMS_WEB_OPERATOR_URL names no database user for changes.", err=True)

    configure_logging("warning")
    serve(site, host, port, tell)


def _check(dashboard: Dashboard) -> None:
    """Refuse to begin if changes would go elsewhere; if a server is away, the first change is checked instead."""
    from emsworker.extending.errors import ConfigError, EmsError
    from emsworker.extending.settings import redact

    try:
        dashboard.check()
    except ConfigError:
        raise
    except EmsError as error:
        click.echo(f"EMS_WEB_OPERATOR_URL is checked before the first change: {redact(str(error))}", err=True)


def _rule(
    host: str,
    level: Level | None,
    password_file: Path | None,
    proxies: Sequence[str],
    user_header: str,
    users: Sequence[str],
) -> AccessRule:
    """Return the rule of access that the options give."""
    from emsworker.web.access import Local, Passwords, ProxyUsers, check_level, is_loopback

    _only_one(None, level, password_file, proxies)
    if bool(users) != bool(proxies):
        raise click.UsageError("--user and --trust-proxy belong together: the proxy names users, --user their levels.")
    if password_file is not None:
        return Passwords(password_file)
    if proxies:
        if wrong := [one for one in users if not one.partition("=")[0] or "=" not in one]:
            raise click.BadParameter(f"{wrong[0]!r} is not a user; write NAME=LEVEL.", param_hint="--user")
        levels = {name: check_level(f"user {name}", level) for name, _, level in (one.rpartition("=") for one in users)}
        return ProxyUsers(proxies, levels, user_header)
    if not is_loopback(host):
        raise WrongUsage([_UNSAFE.format(host)])
    return Local(level or "viewer")


def _only_one(issuer: str | None, level: str | None, password_file: Path | None, proxies: Sequence[str]) -> None:
    if sum((level is not None, password_file is not None, bool(proxies), issuer is not None)) > 1:
        raise click.UsageError("Give one of --access, --password-file, --trust-proxy and --oidc-issuer.")


def _openid(
    issuer: str, client_id: str | None, claims: Sequence[str], scopes: Sequence[str], public_url: str
) -> AccessRule:
    from emsworker.extending.declaration import require

    require("oidc", "--oidc-issuer")
    from emsworker.web.access import check_level
    from emsworker.web.oidc import OpenIdUsers

    if client_id is None or not claims:
        raise click.UsageError("--oidc-issuer needs --oidc-client-id and --oidc-level, like groups=ops:operator.")
    if wrong := [one for one in claims if not all(one.rpartition(":"))]:
        raise click.BadParameter(f"{wrong[0]!r} is not a level; write CLAIM=VALUE:LEVEL.", param_hint="--oidc-level")
    levels = {
        claim: check_level(f"level of {claim}", level) for claim, _, level in (one.rpartition(":") for one in claims)
    }
    return OpenIdUsers(
        issuer,
        client_id,
        public_url=public_url,
        levels=levels,
        secret=os.environ.get("EMS_WEB_OIDC_SECRET") or None,
        scopes=scopes,
        session_key=os.environ.get("EMS_WEB_SESSION_KEY") or None,
    )


def _own_url(host: str, port: int) -> str:
    """Return the address of a dashboard for this machine only."""
    from emsworker.web.access import is_loopback

    if not is_loopback(host) or port == 0:
        raise click.UsageError("--oidc-issuer needs --public-url: the provider sends browsers back to that address.")
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@web.command()
@click.argument("name")
@click.option("--access", "level", type=_LEVELS, default="viewer", show_default=True, help="What the user may do.")
@click.option("--password", help="Asked for if it is not given, which is safer.")
def password(name: str, level: Level, password: str | None) -> None:
    """Print the line of the user NAME for the file of --password-file.

    If standard input is no terminal, the password is its first line.
    """
    from emsworker.extending.declaration import require

    require("web", "ems web")
    from emsworker.web.access import password_line

    click.echo(password_line(name, level, _asked_password() if password is None else password))


def _asked_password() -> str:
    if sys.stdin.isatty():
        asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return asked
    if not (line := sys.stdin.readline().rstrip("\r\n")):
        raise click.UsageError("Standard input is no terminal and has no password in its first line.")
    return line
