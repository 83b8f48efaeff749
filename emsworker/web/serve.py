"""Server of the stand-alone dashboard: uvicorn, on one address."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from emsworker.core.errors import ConfigError, Problem
from emsworker.observe.http import OUT_OF_RESOURCES

_log = logging.getLogger(__name__)
_RESERVE = 24  # descriptors for database connections and files, so that admitted connections get their pages


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
        app,
        loop="asyncio",  # uvloop accepts without asking the listener
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        ws="none",
    )
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # uvicorn ends on them, and then gives them to the handlers of before
        signal.signal(number, lambda *_: None)
    ready(address)
    _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Server that logs one line whenever it pauses accepting."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept."""
        asyncio.get_running_loop().set_exception_handler(_log_error)
        await super().startup(sockets)


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES:
        _log.warning("no connection is accepted for a second: %s", error)
    else:
        loop.default_exception_handler(context)


class _Listener(socket.socket):
    """Listening socket that runs out of descriptors while some are left for the pages.

    When `accept` fails for want of them, asyncio pauses for a second, but first calls it again as often as its backlog
    is long, each time with a traceback in the log and one more timer. So the next call says that nobody is waiting.
    """

    _failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        if self._failed:
            self._failed = False
            raise BlockingIOError
        try:
            self._check_reserve()
            return super().accept()
        except OSError as error:
            self._failed = error.errno in OUT_OF_RESOURCES
            raise

    def _check_reserve(self) -> None:
        lowest = os.dup(self.fileno())  # the number that the connection would get
        os.close(lowest)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most != resource.RLIM_INFINITY and lowest >= most - _RESERVE:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _Listener(fileno=socket.create_server(place[:2], family=family, backlog=128).detach())
    except OSError as error:
        fix = f"cannot be listened on ({error.strerror or error}); choose another --host or --port"
        raise ConfigError([Problem("address", f"{host}:{port}", fix)]) from None
