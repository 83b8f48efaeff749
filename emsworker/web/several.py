"""The dashboard of several servers: a front page that shows all, and below ``/on/NAME`` the pages of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from emsworker.extending.administration import Servers, ServerView, look, parse_place
from emsworker.extending.database import Database
from emsworker.extending.errors import ConfigError, EmsError, Problem
from emsworker.extending.settings import MAIN, parse_servers, redact_url
from emsworker.extending.values import parse_uid
from emsworker.web.cache import SharedCache
from emsworker.web.overview import MOST_LINES, GroupLine, lines_of
from emsworker.web.page import View, Visit

if TYPE_CHECKING:
    from emsworker.web.page import Shared

_ANSWER_S = 5.0
_FRESH_S = 1.5
Lines = list[tuple[str, GroupLine]]


class ServerDashboards:
    """The dashboards of several servers together.

    Args:
        dashboards: what the visits to each server's pages share.
    """

    def __init__(self, dashboards: Mapping[str, Shared]) -> None:
        self.dashboards = dict(dashboards)
        self._servers = Servers({name: one.database for name, one in dashboards.items()})
        self._snapshot = SharedCache()

    def read(self) -> tuple[list[ServerView], Lines, int]:
        """Return the servers, their groups with the most lag, and the number of all groups."""
        return self._snapshot.get("servers", _FRESH_S, self._read)

    def _read(self) -> tuple[list[ServerView], Lines, int]:
        views, lines, count = list[ServerView](), Lines(), 0
        for name, found in self._servers.ask(self._look, _ANSWER_S).items():
            if isinstance(found, EmsError):
                views.append(ServerView(name, self.dashboards[name].address, error=found))
                continue
            views.append(found[0])
            lines += [(name, line) for line in found[1]]
            count += found[0].groups
        return views, nlargest(MOST_LINES, lines, key=lambda one: one[1].lag.lag), count

    def _look(self, name: str, database: Database) -> tuple[ServerView, list[GroupLine]]:
        shared = self.dashboards[name]
        standing = shared.standing(MOST_LINES)
        view = look(name, database, standing, shared.clients(), shared.leaders())
        return view, lines_of(shared, standing.groups)

    def find(self, what: str) -> str | None:
        """Return the server on which there is a message, a place, a topic or a group; ``None`` if there is none."""
        found = self._servers.ask(lambda name, database: _has(self.dashboards[name], what), _ANSWER_S)
        ranks = [(rank, name) for name, rank in found.items() if not isinstance(rank, EmsError) and rank]
        return max(ranks, key=itemgetter(0))[1] if ranks else None


def _has(shared: Shared, what: str) -> int:
    """Return 2 if something is here, 1 if its topic was here before it moved, and 0 if not."""
    if shared.find_in_extensions(what) is not None:
        return 2
    try:
        parse_uid(what)
    except EmsError:
        pass
    else:
        try:
            return 2 if shared.monitoring.trace(what, details=False) else 0
        except EmsError:
            return 0
    with suppress(EmsError):
        what = parse_place(what)[0]
    found = shared.find(what)
    if found is None:
        return 0
    topic, group = found
    return 1 if group is None and topic.server is not None else 2


def operator_urls(text: str | None) -> dict[str, str]:
    """Return the addresses of the users for changes by server: that of main, then ``NAME=address`` for others.

    Raises:
        ConfigError: it is malformed.
    """
    if not text:
        return {}
    first, _, rest = text.strip().partition(" ")
    main, others = ("", text) if "=" in first.partition("://")[0] else (first, rest)
    try:
        urls = {one.name: one.url for one in parse_servers(others)}
    except ValueError as error:
        raise ConfigError([Problem("EMS_WEB_OPERATOR_URL", redact_url(text), str(error))]) from None
    return ({MAIN: main} if main else {}) | urls


def show(fleet: ServerDashboards, visit: Visit) -> Response:
    """Show the servers, and the groups of all."""
    views, lines, count = fleet.read()
    return visit.render("servers.html", views=views, lines=lines, count=count, most=MOST_LINES)


def jump(fleet: ServerDashboards, visit: Visit) -> Response:
    """Go to the server on which there is what was typed into the search field."""
    what = visit.asked("q")
    if what is None:
        return RedirectResponse(visit.url("/"), 303)
    name = fleet.find(what)
    if name is None:
        text = f"{what!r} is no message id, place (topic/partition/offset), topic, group or flow on any server."
        return visit.error(404, "Nothing of that name", text)
    return RedirectResponse(visit.url(f"/on/{quote(name)}/go", q=what), 303)


def front_of(fleet: ServerDashboards) -> tuple[View, ...]:
    """Return the pages that the dashboards have together."""
    return View("/", partial(show, fleet)), View("/go", partial(jump, fleet))


def check_all(dashboards: Sequence[Any]) -> None:
    """Check the users for changes of each server.

    Raises:
        ConfigError: one of them leads elsewhere, or lacks privileges.
        EmsError: this cannot be told of one, because it is away.
    """
    away: EmsError | None = None
    for one in dashboards:
        try:
            one.check()
        except ConfigError:
            raise
        except EmsError as error:
            away = error
    if away is not None:
        raise away
