"""The topics of an app that are consumed on one of several servers, and a watch for those that come and go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from emsworker.core.config import Settings
from emsworker.core.errors import EmsError, StoreError
from emsworker.core.process.address import name_server
from emsworker.core.process.runnable import OnDeath, Runnable
from emsworker.core.servers import MAIN, parse_servers, place
from emsworker.store import Database, topics

log = logging.getLogger(__name__)

_LOOK_S = 2.0


def server_urls(settings: Settings, url: str) -> dict[str, str]:
    """Return the address of each server by name, the main one first."""
    others = parse_servers(settings.servers)
    for one in others:
        name_server(one.name, one.url)
    return {MAIN: url} | {one.name: one.url for one in others}


def served_on(database: Database, names: Sequence[str]) -> dict[str, bool]:
    """Return which topics a server serves: those that it keeps, or has kept (false)."""
    return database.call(lambda session: topics.find_served(session, names))


def expected_on(server: str, settings: Settings, found: Mapping[str, Mapping[str, bool]], topic: str) -> bool:
    """Return whether a worker would consume a topic on a server.

    Args:
        found: by server, those of the topics that it serves (:func:`find_served`), of all servers that could be asked.
    """
    if topic in found[server]:
        return True
    nowhere = not any(served.get(topic) for served in found.values())
    return nowhere and place(topic, parse_servers(settings.servers)) == server


class PlacementWatch(Runnable):
    """Looks for topics of the app that a server serves by now, or no longer.

    Args:
        database: of the server.
        names: of the topics of the app.
        on_change: called after each change, with whether the server serves any of them now.
        on_death: see :class:`Runnable`.
        known: those that it served before, if that is known.
    """

    outlasts = (StoreError, EmsError)

    def __init__(
        self,
        server: str,
        database: Database,
        names: Sequence[str],
        on_change: Callable[[bool], None],
        on_death: OnDeath,
        known: set[str] | None = None,
    ) -> None:
        super().__init__(f"ems-placement-{server}", on_death)
        self._server, self._names, self._on_change = server, names, on_change
        self._session = database.session()
        self._known = known
        self._failed = False

    def step(self) -> None:
        """Compare what the server serves with what it served at the last look."""
        served = set(topics.find_served(self._session, self._names))
        # A child may have started after a failed look, and seen more or less than this one does.
        if served != self._known and (self._known is not None or self._failed):
            log.info("server %s serves other topics than before", self._server)
            self._on_change(bool(served))
        self._known = served
        self.sleep(_LOOK_S)

    def on_trouble(self, error: Exception) -> None:
        """Look again later; the server's own threads log that it is away."""
        log.debug("cannot look for topics on server %s: %s", self._server, error)
        self._failed = True
        self.sleep(_LOOK_S)

    def shut_down(self) -> None:
        self._session.close()
