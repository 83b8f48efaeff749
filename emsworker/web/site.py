"""ASGI application of the dashboard: routes, access, answers to errors."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from emsworker.extending.errors import ConfigError, Problem
from emsworker.extending.processes import after_fork
from emsworker.extending.settings import MAIN
from emsworker.extending.settings import redact as redact_secrets
from emsworker.extending.values import errors
from emsworker.web.access import AccessRule, Local, SignsIn, Visitor, admitted, comes_from_here
from emsworker.web.actions import PAGES as ACTIONS
from emsworker.web.audit import PAGES as AUDIT
from emsworker.web.cluster import PAGES as CLUSTER
from emsworker.web.dead import PAGES as DEAD
from emsworker.web.events import EventStream
from emsworker.web.explorer import PAGES as EXPLORER
from emsworker.web.groups import PAGES as GROUPS
from emsworker.web.lists import PAGES as LISTS
from emsworker.web.overview import PAGES as OVERVIEW
from emsworker.web.page import NOBODY, Redact, Shared, View, Visit, pages_of_extensions
from emsworker.web.several import ServerDashboards, check_all, front_of, operator_urls
from emsworker.web.tasks import PAGES as TASKS
from emsworker.web.trace import PAGES as TRACE

if TYPE_CHECKING:
    from emsworker.extending.apps import Ems

_log = logging.getLogger(__name__)
_THREADS, _DECODING_THREADS, _ACCESS_THREADS = 4, 2, 2
_STREAM_THREADS, _MOST_STREAMS = 2, 50
_DEADLINE_S = 10.0  # for a page that reads; a change ends by itself, and is not left without an answer
_MOST_FORM_BYTES, _MOST_FIELDS = 256 << 10, 5000
_SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_PAGES: tuple[View, ...] = (
    *OVERVIEW,
    *GROUPS,
    *EXPLORER,
    *TRACE,
    *DEAD,
    *LISTS,
    *TASKS,
    *CLUSTER,
    *AUDIT,
    *ACTIONS,
)
_MISSING = (
    errors.UnknownTopic,
    errors.UnknownGroup,
    errors.UnknownMessage,
    errors.UnknownTask,
    errors.UnknownSchedule,
    errors.UnknownAlarm,
)
_STATUS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int, str], ...] = (
    (_MISSING, 404, "Not found"),
    ((errors.ConfigError, errors.InvalidName, errors.InvalidPriority), 400, "That cannot be read"),
    (errors.LoginRefused, 503, "The database server refuses the dashboard's user"),
    (errors.AccessDenied, 403, "The database refuses it"),
    ((errors.StoreUnavailable, errors.TlsError), 503, "MySQL cannot be reached"),
    ((errors.SchemaMissing, errors.ServerUnsupported), 503, "The stream cannot be used"),
    ((errors.GroupInUse, errors.AlreadyExists, errors.TopicInUse), 409, "It is in use"),
    (errors.EmsError, 500, "That failed"),
)


def ems_web(
    stream: Ems | str,
    *,
    access: AccessRule | None = None,
    operator_url: str | None = None,
    redact: Redact | None = None,
    replica: bool = False,
) -> Starlette:
    """Return the dashboard as an ASGI application, to be served, or to be mounted in another one.

    That of an app with several servers (the setting ``servers``) begins with a page of all, and has the pages of each
    below ``/on/NAME/``.

    Args:
        stream: an app, or the URL of its database. The user needs the privileges of the role viewer, and those of
            reader to show bodies, headers and errors.
        access: decides about each request: ``None`` refuses it; ``viewer``, ``reader`` and ``operator`` are the levels.
            A :class:`Visitor` also has a name, which the audit shows. Without a rule, only requests to the names of
            this machine (localhost) are admitted, as viewers.
        operator_url: a database user with the privileges of the role operator, by default ``EMS_WEB_OPERATOR_URL``.
            Without one, nobody can change anything. For several servers it is followed by ``NAME=address`` for each of
            the others on which something may be changed, all separated by spaces. At its first use each is checked:
            that it leads to the stream that is read, and has these privileges; if not, pages say so and nothing can be
            changed.
        redact: hides parts of bodies before they are shown: topic -> paths like ``card.number`` or ``items.*.price``,
            or a callable of the topic's name and the decoded body that returns what may be shown.
        replica: the URL names replicas, and every page says how far the one that is read is behind; an app's setting
            `read_url` does the same.

    Raises:
        ExtraMissing: the extra ``web`` is not installed.
        ConfigError: a URL is wrong.
        StoreUnavailable: the app names no stream, and no local one is running.
    """
    if isinstance(stream, str):
        urls, replicas = {MAIN: stream}, None
    else:
        urls = {name: one.url for name, one in stream.streams.servers.items()}
        replicas = stream.settings.read_url
    changes = operator_url or os.environ.get("EMS_WEB_OPERATOR_URL") or None
    rule = access or Local("viewer")
    if len(urls) == 1:
        shared = Shared(replicas or urls[MAIN], changes, redact, replica=replica or replicas is not None)
        return Dashboard(shared, rule).application()
    return _several(urls, rule, operator_urls(changes), redact, replicas)


def _several(
    urls: Mapping[str, str],
    access: AccessRule,
    changes: Mapping[str, str],
    redact: Redact | None,
    replicas: str | None,
) -> Starlette:
    if unknown := [name for name in changes if name not in urls]:
        fix = f"the setting `servers` names no such server; there are {', '.join(urls)}"
        raise ConfigError([Problem("EMS_WEB_OPERATOR_URL", unknown[0], fix)])
    every: dict[str, Shared] = {}
    for name, url in urls.items():
        read_url = replicas if name == MAIN else None
        every[name] = Shared(read_url or url, changes.get(name), redact, replica=read_url is not None)
        every[name].server = name
    for shared in every.values():
        shared.servers = list(every)
    below = {name: Dashboard(shared, access) for name, shared in every.items()}
    return Dashboard(every[MAIN], access, front_of(ServerDashboards(every)), below).application()


def ems_wsgi(stream: Ems | str, **options: Any) -> Any:
    """Return the dashboard as a WSGI application, for hosts like Flask or Django under gunicorn; as :func:`ems_web`.

    Raises:
        ExtraMissing: the extra ``web`` is not installed.
    """
    from a2wsgi import ASGIMiddleware

    return ASGIMiddleware(cast("Any", ems_web(stream, **options)))


class Dashboard:
    """Dashboard of one stream.

    Args:
        shared: the stream, and what its pages share.
        access: the rule of access.
        pages: what it shows; by default the pages of the dashboard and of the installed extensions.
        below: the dashboards of several servers, of which this is the front.
    """

    def __init__(
        self,
        shared: Shared,
        access: AccessRule,
        pages: Sequence[View] | None = None,
        below: Mapping[str, Dashboard] | None = None,
    ) -> None:
        self._shared, self._access = shared, access
        self._pages = pages or (*_PAGES, *pages_of_extensions())
        self._below = below or {}
        shared.sign_out = access.sign_out if isinstance(access, SignsIn) else None
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._streams = 0
        after_fork(self._forget_pools)

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes: list[BaseRoute] = [
            Route(page.path, self._endpoint(page), methods=[page.method]) for page in self._pages
        ]
        routes += [Mount(f"/on/{name}", one.application()) for name, one in self._below.items()]
        if isinstance(self._access, SignsIn):
            routes += [Route(path, _guarded(show), methods=[way]) for way, path, show in self._access.endpoints()]
        routes.append(Mount("/static", _Static(directory=Path(__file__).parent / "static")))
        app = Starlette(routes=routes, exception_handlers={HTTPException: self._answer_http})
        app.state.dashboard = self
        return app

    def check(self) -> None:
        """Check now, not at the first use, that changes are made on the stream that is read, and may be.

        Raises:
            ConfigError: they are not.
            EmsError: this cannot be told now, because a server is away.
        """
        if self._below:
            check_all(list(self._below.values()))
        else:
            self._shared.check()

    def _forget_pools(self) -> None:
        self._pools = {}  # their threads are the parent's

    async def _run(self, pool: str, threads: int, work: Callable[..., Any], *arguments: object) -> Any:
        """Run on one of a few threads; further requests wait for their turn."""
        if pool not in self._pools:
            self._pools[pool] = ThreadPoolExecutor(threads, thread_name_prefix=pool)
        return await asyncio.get_running_loop().run_in_executor(self._pools[pool], work, *arguments)

    async def _respond(self, page: View, request: Request, form: dict[str, list[str]]) -> Response:
        """Let the rule of access decide, and answer.

        The rule has threads of its own: checking a password takes 50 ms of a processor, and guesses must not hold up
        the pages of those who are in. Each thread for pages has a session of its own.
        """
        try:
            visitor = await self._run("ems-web-access", _ACCESS_THREADS, admitted, self._access, request)
        except Exception:
            _log.exception("the rule of access failed for %s", request.url.path)
            return _secured(PlainTextResponse("The dashboard failed; its log tells why.", 500))
        pool, threads = ("ems-web-bodies", _DECODING_THREADS) if page.decodes else ("ems-web", _THREADS)
        response = await self._run(pool, threads, self._answer, page, request, form, visitor)
        if isinstance(response, EventStream):
            self._let_go_on(response, request)
        return cast("Response", response)

    def _let_go_on(self, stream: EventStream, request: Request) -> None:
        """Let a stream of events go on as long as a page may take; only its beginning if there are many.

        Under WSGI it would hold a worker of the server, so that has beginnings alone.
        """
        stream.run = partial(self._run, "ems-web-events", _STREAM_THREADS)
        if self._streams < _MOST_STREAMS and "wsgi_environ" not in request.scope:
            stream.longest_s = _DEADLINE_S
            stream.body_iterator = self._counted(stream.body_iterator)

    async def _counted(self, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        self._streams += 1
        try:
            async for part in parts:
                yield part
        finally:
            self._streams -= 1

    async def _respond_in_time(self, page: View, request: Request) -> Response:
        """Answer what reads, or say that it takes too long: its thread goes on, and other pages have others.

        A request whose turn has not come by then never begins.
        """
        try:
            return await asyncio.wait_for(self._respond(page, request, {}), _DEADLINE_S)
        except TimeoutError:
            _log.warning("the page %s was not ready after %g s", request.url.path, _DEADLINE_S)
        text = f"This page was not ready after {_DEADLINE_S:g} s: the server is slow, or too much is asked for."
        # Nothing from the database is on a page for nobody, so that it can be made here.
        response = Visit(self._shared, request, NOBODY, {}).error(503, "That takes too long", text)
        response.headers["retry-after"] = "5"
        return _secured(response)

    def _endpoint(self, page: View) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if request.method != "POST":
                return await self._respond_in_time(page, request)
            try:
                form = await _read_form(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            return await self._respond(page, request, form)

        return endpoint

    def _answer(self, page: View, request: Request, form: dict[str, list[str]], visitor: Visitor | None) -> Response:
        """Answer a request; who may do what is decided here and nowhere else."""
        try:
            visit = Visit(self._shared, request, visitor or NOBODY, form)
            if visitor is None:
                response = self._refuse(visit)
            elif request.method == "POST" and not comes_from_here(request):
                text = "This request did not come from a page of the dashboard, so nothing was changed."
                response = visit.error(403, "Refused", text)
            elif not visitor.may(page.level):
                response = visit.error(
                    403, "Not allowed", f"This needs the level {page.level}; yours is {visitor.level}."
                )
            elif page.changes and self._shared.operator is None:
                text = "No database user for changes is set (EMS_WEB_OPERATOR_URL), so this dashboard only reads."
                response = visit.error(403, "Not allowed", text)
            else:
                response = self._show(page, visit)
        except Exception:
            _log.exception("the page %s failed", request.url.path)
            response = PlainTextResponse("The dashboard failed; its log tells why.", 500)
        return _secured(response)

    def _refuse(self, visit: Visit) -> Response:
        if isinstance(self._access, SignsIn):
            return _send_to_sign_in(visit, self._access)
        challenge = getattr(self._access, "challenge", None)
        if challenge:
            response = visit.error(401, "Who are you?", "Name and password are needed.")
            response.headers["www-authenticate"] = challenge
            return response
        return visit.error(403, "Not allowed", "You have no access to this dashboard.")

    def _show(self, page: View, visit: Visit) -> Response:
        try:
            if page.changes and (why := self._refusal()):
                return visit.error(403, "Not allowed", why)
            return page.show(visit)
        except errors.EmsError as error:
            status, title = next((code, title) for kinds, code, title in _STATUS if isinstance(error, kinds))
            response = visit.error(status, title, redact_secrets(str(error)))
            if status == 503:
                response.headers["retry-after"] = "5"
            return response
        except Exception:
            _log.exception("the page %s failed", visit.request.url.path)
            return visit.error(500, "That failed", "The dashboard's log tells why.")

    def _refusal(self) -> str | None:
        """Return why changes are refused; the database for them is checked before its first use."""
        try:
            self._shared.check()
        except errors.ConfigError as error:
            return str(error)
        return None

    async def _answer_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        titles = {404: "There is no such page", 405: "Not this way", 413: "Too large", 400: "That cannot be read"}
        texts = {404: "Look at the address.", 405: "A page is read by GET; a change is made by POST."}
        page = View(request.url.path, lambda visit: visit.error(
            error.status_code, titles.get(error.status_code, "Refused"), texts.get(error.status_code, error.detail)
        ))  # fmt: skip
        return await self._respond_in_time(page, request)


class _Static(StaticFiles):
    """Files that never change under their address, which has their hash."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:
        response = super().file_response(*arguments, **more)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return _secured(response, keep=True)


def _send_to_sign_in(visit: Visit, access: SignsIn) -> Response:
    """Redirect a page of a browser; a part of one, a form or a picture cannot begin a sign-in."""
    headers = visit.request.headers
    page = "hx-request" not in headers and headers.get("sec-fetch-dest", "document") == "document"
    if visit.request.method == "GET" and page:
        return RedirectResponse(visit.front(access.sign_in, back=visit.here), 303)
    return visit.error(401, "You are not signed in", "Load the page again to sign in. Nothing was changed.")


def _guarded(show: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            response = await show(request)
        except Exception:
            _log.exception("the page %s failed", request.url.path)
            response = PlainTextResponse("The dashboard failed; its log tells why.", 500)
        return _secured(response)

    return endpoint


def _secured(response: Response, keep: bool = False) -> Response:
    response.headers.update(_SECURITY)
    if not keep:
        response.headers["cache-control"] = "no-store"
    return response


async def _read_form(request: Request) -> dict[str, list[str]]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(400, "A change is sent as a form (application/x-www-form-urlencoded).")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            raise HTTPException(413, f"A form has at most {_MOST_FORM_BYTES} bytes.")
    try:
        return parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HTTPException(413, f"A form has at most {_MOST_FIELDS} fields.") from None
