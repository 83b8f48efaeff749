"""Server of the stand-alone dashboard and of `ems http`: uvicorn, on one address."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import select
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from emsworker.extending.administration import OUT_OF_RESOURCES
from emsworker.extending.errors import ConfigError, Problem

_log = logging.getLogger(__name__)
_SILENT_S = 1.0  # before a connection without a request makes room for others
_REQUEST_S = 10.0  # for a request to arrive, its form included
_ANSWER_S = 30.0  # for a client to take some of its answer
_RESERVE = 24  # descriptors for database connections and files, so that admitted connections get their pages


def below(path: str, app: Starlette) -> Starlette:
    """Return an application that has the dashboard below a path, like ``/ems``."""
    return Starlette(routes=[Mount(path, app)])


async def _end_at_once() -> None:
    """Nothing has to be ended."""


def serve(
    app: Starlette,
    host: str,
    port: int,
    ready: Callable[[str], None],
    end: Callable[[], Awaitable[None]] = _end_at_once,
) -> None:
    """Serve an application until SIGINT or SIGTERM.

    Headers of proxies are not believed here, because they would change the address that access rules see.

    Args:
        port: 0 for any free one.
        ready: called with the address once connections are accepted.
        end: ends what the application has begun; requests are still answered meanwhile.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    listener = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listener.getsockname()[1]}/"
    config = uvicorn.Config(
        _Framed(app),
        loop="asyncio",  # uvloop accepts without asking the listener
        http=_Connection,
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
    _Server(config, end).run(sockets=[listener])


class _Framed:
    """Refuses requests with two lengths, and closes their connections.

    A proxy before this server may go by the other one, and what it takes for a body would be a request here (RFC 9112,
    section 6.1).
    """

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:
            refused = PlainTextResponse("A request has one length.\n", 400, {"connection": "close"})
            await refused(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    """Server that logs one line whenever it pauses accepting.

    Args:
        end: awaited before the server closes.
    """

    def __init__(self, config: uvicorn.Config, end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._end = end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept."""
        asyncio.get_running_loop().set_exception_handler(_log_error)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what the application has begun, and close."""
        await self._end()
        await super().shutdown(sockets)


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES:
        _log.warning("no connection is accepted for a second: %s", error)
    else:
        loop.default_exception_handler(context)


class _Connection(H11Protocol):
    """Connection that is closed if its request does not arrive in time, however often the client sends a byte.

    uvicorn has a timeout for connections that had a request, and none for those that never send one.
    """

    waiting: ClassVar[dict[_Connection, asyncio.TimerHandle]] = {}  # for a request or its rest, longest first

    @classmethod
    def close_one(cls) -> bool:
        """Close the connection that has waited longest for a silent client; false if there is none.

        One is silent after a second, if nothing of it has come that is not read yet: on a busy machine a request may be
        on its way for as long.
        """
        silent = (
            one for one, timer in cls.waiting.items() if one._waited_s(timer) >= _SILENT_S and not one._has_more()
        )
        longest = next(silent, None)
        if longest is not None:
            longest._give_up()
        return longest is not None

    def _waited_s(self, timer: asyncio.TimerHandle) -> float:
        return self.loop.time() - (timer.when() - _REQUEST_S)

    def _has_more(self) -> bool:
        look = select.poll()
        look.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(look.poll(0))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._note()

    def data_received(self, data: bytes) -> None:
        """Go on with the request."""
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _note(self) -> None:
        """Begin to wait for the client unless its whole request is being answered; a byte does not begin it anew."""
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            self._stop_waiting()
        elif self not in self.waiting and not self.transport.is_closing():
            self.waiting[self] = self.loop.call_later(_REQUEST_S, self._give_up)

    def _stop_waiting(self) -> None:
        if (timer := self.waiting.pop(self, None)) is not None:
            timer.cancel()

    def _give_up(self) -> None:
        self._stop_waiting()
        self.transport.abort()


class _Listener(socket.socket):
    """Listening socket that runs out of descriptors while some are left for the pages.

    A connection that waits for its client makes room for the next one.
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
            if _Connection.close_one():
                raise BlockingIOError  # it is closed in the loop's next turn, which accepts again
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = _Listener(fileno=socket.create_server(place[:2], family=family, backlog=128).detach())
    except OSError as error:
        fix = f"cannot be listened on ({error.strerror or error}); choose another --host or --port"
        raise ConfigError([Problem("address", f"{host}:{port}", fix)]) from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it; a client that reads nothing is cut off
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _ANSWER_S))
    return listener
