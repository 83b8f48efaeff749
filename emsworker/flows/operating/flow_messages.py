"""The messages of flows, on all servers: a topic may be kept by another one than the flow, and may move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from emsworker.extending.database import Database, Session, Statements
from emsworker.extending.errors import StoreUnavailable, error_line
from emsworker.extending.processes import ticks
from emsworker.extending.settings import MAIN, Settings, impatient, parse_servers
from emsworker.extending.stream import get_topic, is_unfinished
from emsworker.flows.rows import StoredError

T = TypeVar("T")
_SQL = Statements(__name__)
_ANSWER_S, _AWAY_S = 3.0, 30.0


class FlowMessages:
    """The messages of the flows of a server, there and on those to which they may have gone.

    Args:
        server: its name.
        settings: those of its beat.
    """

    def __init__(self, server: str, settings: Settings) -> None:
        named = {one.name: one.url for one in parse_servers(settings.servers)}
        if named and settings.url is not None:
            named[MAIN] = settings.url
        self._others = {
            name: Database(impatient(url, _ANSWER_S), _ANSWER_S, _ANSWER_S)
            for name, url in named.items()
            if name != server
        }
        self._away_until = 0.0

    def may_be_unfinished(self, session: Session, topic_id: int, uid: bytes) -> bool:
        """Return whether a message waits or runs anywhere, or may do so on a server that is away."""
        if is_unfinished(session, topic_id, uid):
            return True
        try:
            # Twice: it may have moved on from a server that is asked late to one that was asked before.
            ask = partial(self._ask_others, session, topic_id, partial(_is_unfinished, uid))
            return any(ask()) or any(ask())
        except StoreUnavailable:
            return True

    def find_dead(self, session: Session, topic_id: int, uid: bytes) -> StoredError | None:
        """Return the error of a message that is a dead letter anywhere.

        Raises:
            StoreUnavailable: a server is away.
        """
        look = partial(_find_dead, uid)
        found = look(session, topic_id)
        return found or next(filter(None, self._ask_others(session, topic_id, look)), None)

    def _ask_others(self, session: Session, topic_id: int, look: Callable[[Session, int], T]) -> Iterator[T]:
        """Look at a topic on each other server that has it, if its messages may be there."""
        rows = session.rows(_SQL.find_elsewhere, {"topic_id": topic_id}) if self._others else ()
        for (name,) in rows:
            for database in self._others.values():
                topic = self._call(database, partial(get_topic, name=name))
                if topic is not None:
                    yield self._call(database, _at(look, topic.id))

    def _call(self, database: Database, work: Callable[[Session], T]) -> T:
        """Ask another server; while one is away none is asked, as each question takes seconds of the beat's then."""
        if ticks() < self._away_until:
            raise StoreUnavailable("a server was away just before")
        try:
            return database.call(work)
        except StoreUnavailable:
            self._away_until = ticks() + _AWAY_S
            raise


def _at(look: Callable[[Session, int], T], topic_id: int) -> Callable[[Session], T]:
    return lambda session: look(session, topic_id)


def _is_unfinished(uid: bytes, session: Session, topic_id: int) -> bool:
    return is_unfinished(session, topic_id, uid)


def _find_dead(uid: bytes, session: Session, topic_id: int) -> StoredError | None:
    for kind, reason, error in session.rows(_SQL.find_dead, {"topic_id": topic_id, "uid": uid}):
        return StoredError(kind.rpartition(".")[2] or "DeadLetter", error_line(error) or reason)
    return None
