"""Server of the stand-alone dashboard: uvicorn, on one address."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from emsworker.core.errors import ConfigError, Problem


def below(path: str, app: Starlette) -> Starlette:
    """Return an application that has the dashboard below a path, like ``/ems``."""
    return Starlette(routes=[Mount(path, app)])


def serve(app: Starlette, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    Headers of proxies are not believed here, because they would change the address that access rules see.

    Args:
        port: 0 for any free one.
        ready: called with the address once connections are accepted.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    listener = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listener.getsockname()[1]}/"
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, proxy_headers=False, server_header=False, lifespan="off", ws="none"
    )
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # uvicorn ends on them, and then gives them to the handlers of before
        signal.signal(number, lambda *_: None)
    ready(address)
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family, backlog=128)
    except OSError as error:
        fix = f"cannot be listened on ({error.strerror or error}); choose another --host or --port"
        raise ConfigError([Problem("address", f"{host}:{port}", fix)]) from None
