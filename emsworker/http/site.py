"""ASGI application: access, limits, and answers to errors."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emsworker.extending.apps import Ems
from emsworker.extending.consuming import PullConsumer
from emsworker.extending.database import check_server
from emsworker.extending.errors import EmsError
from emsworker.extending.processes import ticks
from emsworker.http.asked import CheckedRequest
from emsworker.http.faults import HttpFault, fault_of
from emsworker.http.measures import HttpMetrics
from emsworker.http.openapi import document
from emsworker.http.operations import OPERATIONS, HttpOperation
from emsworker.http.pulls import GroupPulls
from emsworker.http.schemas import check, read_json
from emsworker.http.tokens import HttpToken, TokenFile
from emsworker.http.workers import CallThreads
from emsworker.web.events import Events, EventStream

_log = logging.getLogger(__name__)
T = TypeVar("T")
_CALL_THREADS, _MOST_CALLS = 8, 500
_READY_S = 10.0
_STREAM_THREADS, _LONGEST_STREAM_S = 2, 60.0
_READ_ON = 4  # times the most of a body: a client that has sent all of it reads the answer
_GOOD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,189}")


@dataclass(frozen=True)
class HttpLimits:
    """Bounds of what clients can take of a server.

    Args:
        body_bytes: the most of a request's body.
        groups: the most groups that are open at once; each has four connections to the database.
        waiting: the most clients that wait for messages.
        streams: the most streams of events.
        in_hand: the most messages of a group in hand.
        grace_s: seconds for which clients may settle what they have when the server stops.
    """

    body_bytes: int = 8 << 20
    groups: int = 16
    waiting: int = 500
    streams: int = 200
    in_hand: int = 1000
    grace_s: float = 10.0


class HttpSite:
    """The interface of one stream.

    Args:
        app: the app by which messages are sent and fetched.
        tokens: who may do what.
        lease_s: seconds that a message may be in hand if the client does not say.
        limits: bounds of what clients can take.
    """

    def __init__(self, app: Ems, tokens: TokenFile, lease_s: float, limits: HttpLimits) -> None:
        self.app, self.lease_s = app, lease_s
        self._tokens, self._limits = tokens, limits
        self.pulls = GroupPulls(self._open, limits.groups, limits.waiting, limits.in_hand)
        self._calls = CallThreads("ems-http-call", _CALL_THREADS, _MOST_CALLS)
        self._reads = CallThreads("ems-http-events", _STREAM_THREADS, limits.streams)
        self._streams = 0
        self._stops = False
        self._metrics = HttpMetrics(self.pulls, lambda: self._streams)

    def _open(self, topic: str, group: str) -> PullConsumer:
        most = self._limits.in_hand
        consumer = PullConsumer(
            self.app.streams.kept_by(topic),
            self.app.name,
            topic,
            group,
            prefetch=most,
            timeout=self.lease_s,
            asks=False,
        )
        return consumer.open()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [Route(one.path, self._endpoint(one), methods=[one.method]) for one in OPERATIONS]
        for path, show in (("/livez", self._live), ("/readyz", self._ready), ("/metrics", self._show_metrics)):
            routes.append(Route(path, self._guarded(path[1:], show), methods=["GET"]))
        routes.append(Route("/openapi.json", self._show_document, methods=["GET"]))
        return Starlette(routes=routes, exception_handlers={HTTPException: _answer_http})

    async def end(self) -> None:
        """End what waits, let clients settle what they have in hand, and give the rest back."""
        self._stops = True
        await self.pulls.end(self._limits.grace_s)

    def close(self) -> None:
        """End the threads, and close the connections."""
        self._calls.close()
        self._reads.close()
        self.app.close()

    # -- for operations ------------------------------------------------------------------------------------------------

    async def call(self, call: Callable[[], T]) -> T:
        """Run a call that blocks on one of a few threads."""
        return await self._calls.run(call)

    def tell(self, text: str, *values: object) -> None:
        """Log what a client has changed."""
        _log.info(text, *values)

    def stream(self, stream: EventStream) -> EventStream:
        """Let a stream of events go on for a minute, after which the client comes again.

        Raises:
            HttpFault: there are too many.
        """
        if self._streams >= self._limits.streams:
            raise HttpFault(503, "busy", f"{self._limits.streams} streams of events are open; ask again later")
        stream.run = self._read
        stream.longest_s = _LONGEST_STREAM_S
        stream.body_iterator = self._counted(stream.body_iterator)
        return stream

    async def _read(self, read: Callable[[], Events]) -> Events:
        if self._stops:
            return Events(b"", is_last=True)
        return await self._reads.run(read)

    async def _counted(self, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        self._streams += 1
        try:
            async for part in parts:
                yield part
        finally:
            self._streams -= 1

    # -- requests ------------------------------------------------------------------------------------------------------

    def _endpoint(self, operation: HttpOperation) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            token = self._admit(request, operation.role)
            path = {name: str(value) for name, value in request.path_params.items()}
            _check_path(path, token)
            query = _read_query(request, operation)
            body = None
            if operation.body is not None:
                body = read_json(await self._read_body(request))
                check(body, operation.body)
            gone = partial(_wait_until_gone, request)
            last = request.headers.get("last-event-id", "")
            found = await operation.run(self, CheckedRequest(token, path, query, body, last, gone))
            if isinstance(found, Response):
                return found
            raw = await self.call(lambda: json.dumps(found).encode())
            return Response(raw, media_type="application/json")

        return self._guarded(operation.name, answer)

    def _guarded(
        self, name: str, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that answers each error in JSON, and counts."""

        async def endpoint(request: Request) -> Response:
            began = ticks()
            try:
                response = await answer(request)
            except HttpFault as fault:
                response = fault.response()
            except EmsError as error:
                response = fault_of(error).response()
            except ClientDisconnect:
                response = Response(status_code=400)  # nobody reads it
            except Exception:
                _log.exception("the request %s failed", name)
                response = HttpFault(500, "failed", "that failed; the log of the server tells why").response()
            response.headers["cache-control"] = "no-store"
            response.headers["x-content-type-options"] = "nosniff"
            self._metrics.count(name, response.status_code, ticks() - began)
            return response

        return endpoint

    def _admit(self, request: Request, role: str) -> HttpToken:
        """Return the token of a request.

        Raises:
            HttpFault: it has none that is known, or one that may not do this.
        """
        given = request.headers.get("authorization", "")
        token = self._tokens.find(given)
        if token is None and given:
            raise HttpFault(401, "unknown_token", "no such token, or it was revoked; it is sent as: Bearer ems_...")
        if token is None:
            raise HttpFault(401, "no_token", "send a token: Authorization: Bearer ems_...")
        if not token.may(role):
            told = f"this needs a token of the role {role}; that of {token.name!r} is of the role {token.role}"
            raise HttpFault(403, "role", told)
        return token

    async def _read_body(self, request: Request) -> bytes:
        most = self._limits.body_bytes
        told = request.headers.get("content-length", "0")
        if told.isdigit() and int(told[:19]) > _READ_ON * most:
            raise _too_large(most)
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HttpFault(415, "not_json", f"content-type = {kind[:100]!r}: must be application/json")
        body, size = bytearray(), 0
        async for part in request.stream():
            size += len(part)
            if size <= most:
                body += part
            elif size > _READ_ON * most:
                break
        if size > most:
            raise _too_large(most)
        return bytes(body)

    # -- beside the operations -----------------------------------------------------------------------------------------

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def _ready(self, request: Request) -> Response:
        if self._stops:
            raise HttpFault(503, "stopping", "this server stops")
        try:
            await asyncio.wait_for(self.call(lambda: self.app.stream.database.call(check_server)), _READY_S)
        except TimeoutError:
            raise HttpFault(503, "unavailable", f"the database has not answered for {_READY_S:g} s") from None
        return JSONResponse({"ok": True})

    async def _show_metrics(self, request: Request) -> Response:
        self._admit(request, "reader")
        return self._metrics.response()

    async def _show_document(self, request: Request) -> Response:
        return JSONResponse(document())


def _too_large(most: int) -> HttpFault:
    return HttpFault(413, "too_large", f"the body of a request has at most {most} bytes (--max-body)")


def _check_path(path: Mapping[str, str], token: HttpToken) -> None:
    for name, value in path.items():
        if not _GOOD_NAME.fullmatch(value):
            raise HttpFault(400, "invalid", f"{name} = {value[:100]!r} is no name: letters, digits and . _ : - only")
    if "topic" in path and not token.reaches(path["topic"]):
        raise HttpFault(403, "topic", f"the token {token.name!r} is not for topic {path['topic']!r}")


def _read_query(request: Request, operation: HttpOperation) -> dict[str, str]:
    given = dict(request.query_params)
    if unknown := [name for name in given if name not in operation.query]:
        raise HttpFault(400, "invalid", f"the parameter {unknown[0][:100]!r} is not known here")
    for name, schema in operation.query.items():
        if name in given:
            check(given[name], schema, name)
        elif not schema.get("optional"):
            raise HttpFault(400, "invalid", f"the parameter {name!r} is missing")
    return given


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "no_such_path", 405: "wrong_method"}
    told = f"{request.method} {request.url.path[:200]}: see /openapi.json for what there is"
    return HttpFault(error.status_code, codes.get(error.status_code, "refused"), told).response()
