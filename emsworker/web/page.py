"""Page of the dashboard: its declaration, one visit to it, and what all visits share."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    Environment,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
    select_autoescape,
)
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

import emsworker.web.texts as texts
from emsworker.extending.administration import (
    Admin,
    Audit,
    ClientView,
    GroupLag,
    GroupStanding,
    GroupStatus,
    HoldView,
    Listing,
    Monitoring,
    Standings,
    TaskView,
    TopicSize,
    TopicStanding,
    Watched,
    check_operator,
)
from emsworker.extending.database import Database, Lag, ReplicaDatabase, replica_lag
from emsworker.extending.declaration import Extension, extensions, load, parts
from emsworker.extending.errors import AccessDenied, ConfigError, EmsError, InvalidName, Problem, error_line, repr_of
from emsworker.extending.processes import ticks
from emsworker.extending.settings import LARGEST, MAIN, DatabaseUrl, impatient, redact_url, whole
from emsworker.extending.stream import GroupChoice, LeaderRow, ReaderRow, SamplePoint, ScheduleRow
from emsworker.extending.values import Silence, Topic, escape_control
from emsworker.web.access import Level, Visitor
from emsworker.web.cache import SharedCache

log = logging.getLogger(__name__)

T = TypeVar("T")
Redact = Mapping[str, Sequence[str]] | Callable[[str, Any], Any]

_CONNECT_S, _CALL_S = 3.0, 2.0
_READ_S = 15.0  # a server that hangs must not hold every thread for a minute
_LAG_S = 2.0
_FRESH_S, _SERIES_S, _SIZES_S, _POINTS = 1.5, 5.0, 5.0, 180
_REFUSED_S = 30.0
_CHANGES = "EMS_WEB_OPERATOR_URL"
MOST_COUNTED = 20_000
_HIDDEN = "•••"
# Sees pages that refuse him, and nothing from the database on them.
NOBODY = Visitor("nobody", "viewer")


@dataclass(frozen=True)
class View:
    """Page or action of the dashboard.

    Args:
        path: its route.
        show: answers a visit, on a thread of the pool.
        level: the level that a visitor needs.
        method: GET for what reads, POST for what changes something.
        changes: it changes something or prepares a change, and needs the database user for that.
        decodes: it decodes bodies, on threads of its own kind: what they hold must not hold up the other pages.
        title: its title in the menu; an extension's page without one is not in the menu.
    """

    path: str
    show: Callable[[Visit], Response]
    level: Level = "viewer"
    method: str = "GET"
    changes: bool = False
    decodes: bool = False
    title: str = ""


class Shared:
    """Stream of a dashboard, and what all visits share.

    Args:
        url: reads.
        operator_url: changes; ``None`` if nothing may be changed.
        redact: see :func:`ems_web`.
        replica: ``url`` names replicas.

    Attributes:
        operator: the database for changes, or ``None``; to be checked before it is used.
        database: the database that is read.
        server: the name of its server.
        servers: the names of all servers whose dashboards are beside this one, the main one first; none if it is alone.
        sign_out: path at which a visitor signs out, if the rule of access has one.
    """

    def __init__(self, url: str, operator_url: str | None, redact: Redact | None, *, replica: bool = False) -> None:
        _check_url("url", url)
        self.url, self._replica = url, replica
        self.database = (ReplicaDatabase if replica else Database)(impatient(url, _READ_S), _CONNECT_S, _CALL_S)
        self._lag, self._lag_until = Lag(None), 0.0
        self.admin, self.monitoring = Admin(self.database), Monitoring(self.database)
        self.standings = Standings(self.database)
        self.audit = Audit(self.database)
        self.operator: Database | None = None
        self._operator_url, self._checked = operator_url or "", False
        if operator_url is not None:
            _check_url(_CHANGES, operator_url)
            self.operator = Database(impatient(operator_url, _READ_S), _CONNECT_S, _CALL_S)
        self.snapshot = SharedCache()
        self.sign_out: str | None = None
        self.server, self.servers = MAIN, list[str]()
        self._redact = redact

    @property
    def address(self) -> str:
        """The address that is read, without its user."""
        return f"{self.database.servers}/{self.database.name}"

    @property
    def lag(self) -> Lag | None:
        """The distance of the replica that is read from its primary, a few seconds old; ``None`` without a replica."""
        if not self._replica:
            return None
        if ticks() >= self._lag_until:
            try:
                self._lag = self.database.call(replica_lag)
            except EmsError as error:
                self._lag = Lag(None, str(error))
            self._lag_until = ticks() + _LAG_S
        return self._lag

    # -- who changes ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check, until it is found to be so, that changes are made on the stream that is read, and may be.

        Raises:
            ConfigError: they are not.
            EmsError: this cannot be told now, because a server is away.
        """
        if self.operator is not None and not self._checked:
            check_operator((self.url, self.database), (self._operator_url, self.operator), _CHANGES)
            self._checked = True

    def refusal(self) -> str | None:
        """Return why nothing may be changed, as far as is known; looked at anew after some time."""
        if self.operator is None or self._checked:
            return None
        return self.snapshot.get("refusal", _REFUSED_S, self._look)

    def _look(self) -> str | None:
        try:
            self.check()
        except ConfigError as error:
            return str(error)
        except EmsError:
            return None  # an action checks again
        return None

    # -- the same for every visitor ------------------------------------------------------------------------------------

    def standing(self, limit: int, text: str = "", choice: GroupChoice | None = None) -> GroupStanding:
        """Return the groups with the most lag; rows are counted up to a limit."""
        read = partial(self.standings.groups, limit, text=text, choice=choice, most=MOST_COUNTED)
        return self.snapshot.get(("groups", limit, text, choice), _FRESH_S, read)

    def topic_standing(self, limit: int, text: str = "") -> TopicStanding:
        """Return the longest topics."""
        return self.snapshot.get(("topics", limit, text), _SIZES_S, lambda: self.standings.topics(limit, text=text))

    def lags(self, topic: str, group: str | None = None) -> list[GroupLag]:
        """Return the lag of the groups of a topic, or of one, read now; rows are counted up to a limit."""
        read = partial(self.monitoring.lag, MOST_COUNTED, topic=topic, group=group)
        return self.snapshot.get(("lags", topic, group), _FRESH_S, read)

    def size(self, topic: str) -> TopicSize:
        return self.snapshot.get(("size", topic), _SIZES_S, lambda: self.monitoring.size(topic))

    def find(self, what: str) -> tuple[Topic, str | None] | None:
        """Find a topic, or a group with its topic, by its name; see :meth:`Monitoring.find`."""
        return self.snapshot.get(("find", what), _FRESH_S, lambda: self.monitoring.find(what))

    def find_in_extensions(self, what: str) -> str | None:
        """Return the path of the page that an extension has about something, by its name; see :class:`Extension`."""
        for one in extensions().values():
            if one.search is not None and (path := self._searched(one, what)) is not None:
                return path
        return None

    def _searched(self, one: Extension, what: str) -> str | None:
        try:
            path: str | None = load(one.search or "")(self.database, what)
        except EmsError:
            raise
        except Exception as error:  # of somebody else's code, which must not hide what the others find
            log.warning("the search of extension %r is left out: %s", one.name, repr_of(error))
            return None
        return path

    def rates(self, groups: Sequence[GroupLag]) -> dict[tuple[str, str], SamplePoint]:
        """Return the latest samples of some groups, with their rates, by topic and group."""
        places = [(one.topic, one.group) for one in groups]
        name = ("rates", *((topic.id, group.id) for topic, group in places))
        return self.snapshot.get(name, _SERIES_S, lambda: self.monitoring.rates(places))

    def states(self, groups: Sequence[GroupLag]) -> dict[int, GroupStatus]:
        """Return the states of some groups by id."""
        name = ("states", *((one.group.id, one.lag) for one in groups))
        return self.snapshot.get(name, _FRESH_S, lambda: self.standings.states(groups))

    def holds(self, topic: str) -> Sequence[HoldView]:
        """Return the readers that hold messages of a topic."""
        return self.snapshot.get(("holds", topic), _FRESH_S, lambda: self.admin.readers.holds(topic))

    def positions(self, topic: str) -> list[ReaderRow]:
        """Return the positions of named readers of a broadcast topic."""
        return self.snapshot.get(("positions", topic), _FRESH_S, lambda: self.admin.readers.list(topic))

    def clients(self) -> list[ClientView]:
        """Return every client with its lease."""
        return self.snapshot.get("clients", _FRESH_S, self.monitoring.clients)

    def leaders(self) -> list[LeaderRow]:
        """Return the leaders of the beat's services."""
        return self.snapshot.get("leaders", _FRESH_S, self.monitoring.leaders)

    def alarms(self) -> list[Watched]:
        """Return the rules of alarms, without the addresses of their receivers."""
        return self.snapshot.get("alarms", _FRESH_S, lambda: self.admin.alarms.list(addresses=False))

    def silences(self) -> tuple[Silence, ...]:
        """Return the silences of alarms that have not ended."""
        return self.snapshot.get("silences", _FRESH_S, self.admin.alarms.silences)

    def schedules(self, prefix: str, tag: str | None, after: str, limit: int) -> Listing[ScheduleRow]:
        """Return a page of the schedules of periodic tasks."""
        read = partial(self.admin.schedules.page, prefix=prefix, tag=tag, after=after, limit=limit)
        return self.snapshot.get(("schedules", prefix, tag, after, limit), _FRESH_S, read)

    def tasks(self, topic: str | None, within_s: float, details: bool) -> list[TaskView]:
        """Return the tasks of groups, with what waits and their last errors if ``details``."""
        read = partial(self.admin.tasks.list, topic, within_s=within_s, details=details)
        return self.snapshot.get(("tasks", topic, within_s, details), _SERIES_S, read)

    def series(self, topic: str | None, group: str | None, hours: int) -> list[SamplePoint]:
        """Return the samples of the last hours, thinned for a chart."""
        since = datetime.now(UTC) - timedelta(hours=hours)
        read = partial(self.monitoring.series, topic, group, since=since, points=_POINTS)
        return self.snapshot.get(("series", topic, group, hours), _SERIES_S, read)

    def redacts(self, topic: str) -> bool:
        """Return whether parts of a topic's bodies are hidden: then no body is shown that is not decoded."""
        return self._redact is not None and (callable(self._redact) or bool(self._redact.get(topic)))

    def redacted(self, topic: str, body: Any) -> Any:
        """Return a decoded body without what is to be hidden."""
        if self._redact is None:
            return body
        if callable(self._redact):
            return self._redact(topic, body)
        for path in self._redact.get(topic, ()):
            body = hide(body, path.split("."))
        return body


def _check_url(name: str, url: str) -> None:
    try:
        DatabaseUrl.parse(url)
    except ValueError as error:
        raise ConfigError([Problem(name, redact_url(url), str(error))]) from None


def hide(body: Any, path: Sequence[str]) -> Any:
    """Return a copy of a body in which the values at a path are hidden; ``*`` stands for every name or number."""
    if not path:
        return _HIDDEN
    first, rest = path[0], path[1:]
    if isinstance(body, Mapping):
        return {key: hide(value, rest) if first in ("*", str(key)) else value for key, value in body.items()}
    if isinstance(body, list | tuple):
        return [hide(value, rest) if first in ("*", str(number)) else value for number, value in enumerate(body)]
    return body


class Visit:
    """One request to a page.

    Args:
        form: the fields of a POST.
    """

    def __init__(self, shared: Shared, request: Request, visitor: Visitor, form: Mapping[str, list[str]]) -> None:
        self.shared, self.request, self.visitor, self.form = shared, request, visitor, form
        self.now = datetime.now(UTC)
        self._root = request.scope.get("root_path", "").rstrip("/")

    # -- what was asked ------------------------------------------------------------------------------------------------

    def asked(self, name: str) -> str | None:
        """Return a parameter of the address, or ``None`` if it is missing or empty."""
        return (self.request.query_params.get(name) or "").strip() or None

    def place(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def number(self, name: str, default: int | None = None, most: int = LARGEST) -> int | None:
        """Return a parameter of the address as a number, 0 or more.

        Raises:
            ConfigError: it is something else.
        """
        return read_number(name, self.asked(name), default, most)

    def field(self, name: str) -> str | None:
        """Return a field of the form, or ``None`` if it is missing or empty."""
        return (self.form.get(name) or [""])[0].strip() or None

    def may(self, level: Level) -> bool:
        return self.visitor.may(level)

    @property
    def may_change(self) -> bool:
        """True if this visitor can change something here."""
        return self.visitor.may("operator") and self.shared.operator is not None and self.refusal is None

    @property
    def admitted(self) -> bool:
        """True if the visitor has access."""
        return self.visitor is not NOBODY

    @property
    def refusal(self) -> str | None:
        """Why an operator cannot change anything, or ``None``."""
        return self.shared.refusal() if self.visitor.may("operator") else None

    def detailed(self, read: Callable[[bool], T]) -> tuple[T, str | None]:
        """Read with bodies, headers and errors if the visitor, and the database user, may.

        Args:
            read: called with the value of ``details``.

        Returns:
            the result, and the reason why details are missing.
        """
        if not self.may("reader"):
            return read(False), None
        try:
            return read(True), None
        except AccessDenied as error:
            return read(False), f"Headers and errors are not shown: the database user may not read them. {error}"

    # -- addresses -----------------------------------------------------------------------------------------------------

    def url(self, path: str, **query: Any) -> str:
        """Return the address of a page; parameters that are ``None`` are left out."""
        given = [(name.rstrip("_"), value) for name, value in query.items() if value not in (None, "")]
        return f"{self._root}{path}" + (f"?{urlencode(given)}" if given else "")

    def again(self, **changes: Any) -> str:
        """Return this page's address with some parameters changed."""
        query = {name: value for name, value in self.request.query_params.items() if name not in ("did", *changes)}
        return self.url(self._path, **(query | changes))

    @property
    def here(self) -> str:
        """This page's address, without the note of an action."""
        return self.again()

    @property
    def _path(self) -> str:
        path = self.request.scope["path"]
        return quote(path.removeprefix(self._root) if self._root and path.startswith(self._root) else path, safe="/")

    @property
    def at_front(self) -> bool:
        """True on a page of several servers, false on one of a single server's."""
        return bool(self.shared.servers) and not self._root.endswith(self._mount)

    @property
    def _mount(self) -> str:
        return f"/on/{quote(self.shared.server)}" if self.shared.servers else ""

    def front(self, path: str, **query: Any) -> str:
        """Return the address of a page that the dashboards of several servers have together; see :meth:`url`."""
        return f"{self._root.removesuffix(self._mount)}{self.url(path, **query).removeprefix(self._root)}"

    # -- answers -------------------------------------------------------------------------------------------------------

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page: whole, or only its live part if htmx asks for that."""
        live = self.request.headers.get("hx-request") == "true"
        common = {"visit": self, "url": self.url, "layout": "live.html" if live else "layout.html", "now": self.now}
        text = environment().get_template(template).render({**common, "did": self._did(), **values})
        # Bodies and headers may have half a surrogate pair, which has no UTF-8 form.
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status, headers={"vary": "HX-Request"})

    def error(self, status: int, title: str, text: str) -> Response:
        """Return a page that says what went wrong."""
        return self.render("error.html", status, title=title, text=text, code=status)

    def back(self, action: str | None = None) -> Response:
        """Return to the page from which an action came, which then shows what was done.

        Args:
            action: the id of the action.
        """
        target = self.field("back") or ""
        if not is_own_path(self._root, target):
            target = self.url("/")
        if action is not None:
            target += ("&" if "?" in target else "?") + urlencode({"did": action})
        return RedirectResponse(target, 303)

    def _did(self) -> Any:
        """Return the action that the visitor has just done, from the audit: no page shows a text of its address."""
        action = self.asked("did")
        if action is None or not self.admitted:
            return None
        try:
            return self.shared.audit.get(action)
        except (InvalidName, EmsError):
            return None


def is_own_path(root: str, target: str) -> bool:
    """True if a path, with its query, is one of the dashboard's and not an address elsewhere."""
    return target.startswith(f"{root}/") and not target.startswith("//") and "\\" not in target


def read_number(name: str, text: str | None, default: int | None = None, most: int = LARGEST) -> int | None:
    """Parse a number, 0 or more; ``None`` gives the default.

    Raises:
        ConfigError: it is something else, or above ``most``.
    """
    if text is None:
        return default
    try:
        number: int = whole(0, most).parse(text)
    except ValueError as error:
        raise ConfigError([Problem(name, repr(text), str(error))]) from None
    return number


def _seen(value: Any) -> Any:
    """Write what a page would hide, or turn around, as escapes: names, keys and errors come from whoever sends."""
    return escape_control(value) if type(value) is str else value


@lru_cache(1)
def pages_of_extensions() -> tuple[View, ...]:
    """Return the pages of the installed extensions; those of one that fails are left out with a warning."""
    return tuple(view for _, made in parts("pages") for view in made)


def _templates() -> BaseLoader:
    """Find templates of this package by their names, and those of an extension as ``extension/name``."""
    with_templates = (one for one in extensions().values() if one.pages and (files(one.package) / "templates").is_dir())
    theirs = {one.name: PackageLoader(one.package) for one in with_templates}
    return ChoiceLoader([PackageLoader("emsworker.web"), PrefixLoader(theirs)])


@lru_cache(1)
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=_templates(),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_seen,
    )
    for name in (
        "compact",
        "whole",
        "rate",
        "duration",
        "since",
        "stamp",
        "size",
        "short_id",
        "short_client",
        "readable",
        "moment",
    ):
        made.filters[name] = getattr(texts, name)
    made.filters["error_line"] = error_line
    made.filters["path"] = lambda text: quote(str(text), safe="")
    made.globals["asset"] = _asset
    made.globals["more"] = [(page.path, page.title, "") for page in pages_of_extensions() if page.title]
    return made


@lru_cache(32)
def _asset(name: str) -> str:
    """Return the path of a static file, with its hash: a new version has a new address."""
    data = (Path(__file__).parent / "static" / name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(data).hexdigest()[:12]}"
