"""``ems health``."""

from __future__ import annotations

import json
from typing import Any

import click

from emsworker.console.failures import CommandFailure
from emsworker.console.options import duration_option, json_option
from emsworker.console.output import print_json

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_PORT = 9000
_LONGEST_S = 3600.0


@click.command()
@click.argument("address", required=False, envvar="EMS_HTTP", metavar="[URL | HOST:PORT]")
@click.option("--ready", is_flag=True, help="Ask /readyz, whether it takes messages now, instead of /livez.")
@duration_option("--timeout", "timeout_s", default="5s", help="How long to wait for an answer")
@json_option
def health(address: str | None, ready: bool, timeout_s: float, as_json: bool) -> None:
    """Ask a worker that runs with --http for its health.

    Exit code 0 if it is well, 1 if it is not, for containers without curl. The address is that of --http (EMS_HTTP),
    by default port 9000 of this machine; a URL with a path is asked as it stands. It uses no database.
    """
    if not 0 < timeout_s <= _LONGEST_S:
        raise click.BadParameter(f"must be between 0 and {_LONGEST_S:g} s.", param_hint="--timeout")
    url = _url(address, ready)
    status, text = _get(url, timeout_s)
    found = _read(text)
    if as_json:
        print_json(found if found is not None else {"ok": status == 200, "reason": text.strip()})
    reason = found.get("reason", "") if found is not None else text.strip()
    if status != 200:
        raise CommandFailure([f"{url} answers {status}: {reason}"])
    if not as_json:
        click.echo("ok")


def _url(address: str | None, ready: bool) -> str:
    from urllib.parse import urlsplit

    from emsworker.observe.http import parse_address

    path = "/readyz" if ready else "/livez"
    if address is not None and "://" in address:
        try:
            parts = urlsplit(address)
            _ = parts.port
        except ValueError:
            raise click.BadParameter(f"{address!r} is not a URL, like http://127.0.0.1:9000/livez.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.BadParameter(f"{address!r} is not a URL, like http://127.0.0.1:9000/livez.")
        return address if parts.path.strip("/") else address.rstrip("/") + path
    try:
        host, port = parse_address(address or str(_PORT))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None
    host = _EVERYWHERE.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


def _get(url: str, timeout_s: float) -> tuple[int, str]:
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise CommandFailure([f"{url} cannot be reached: {getattr(error, 'reason', error)}"]) from None


def _read(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
