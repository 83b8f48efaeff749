"""Positions of the named readers of broadcast topics, behind ``ems readers``."""

from __future__ import annotations

from collections.abc import Callable

from emsworker.core.errors import UnknownReader
from emsworker.core.model import Topic, TopicKind
from emsworker.store.engine.database import Database
from emsworker.store.stream import broadcast as store
from emsworker.store.stream.broadcast import ReaderRow


class Readers:
    """Stored reader positions of a stream.

    Args:
        database: the database of the stream.
        topic: finds a topic by its name.
    """

    def __init__(self, database: Database, topic: Callable[[str], Topic]) -> None:
        self._database = database
        self._topic = topic

    def list(self, topic: str | None = None) -> list[ReaderRow]:
        """Return all positions, or those of one topic, by name and partition.

        Raises:
            UnknownTopic: there is no topic of that name.
            ConfigError: it is not a broadcast topic.
        """
        if topic is not None:
            self._topic(topic).check_kind(TopicKind.BROADCAST)
        return [row for row in self._database.call(store.list_positions) if topic in (None, row.topic)]

    def forget(self, topic: str, name: str | None = None, *, idle_s: float = 0.0) -> int:
        """Delete positions; a reader that comes back begins at the end of the topic.

        Args:
            name: the name of the reader, ``NAME/WORKER/NUMBER``; without it, all readers of the topic.
            idle_s: only positions that have not been written for this number of seconds.

        Returns:
            the number of deleted rows, one for each partition.

        Raises:
            UnknownTopic, UnknownReader: there is no such topic or reader.
            ConfigError: it is not a broadcast topic.
        """
        place = self._topic(topic).check_kind(TopicKind.BROADCAST)
        count = self._database.call(lambda session: store.forget_positions(session, place.id, name, idle_s))
        if not count and name is not None and not idle_s:
            raise UnknownReader(
                f"topic {topic!r} keeps no position of a reader {name!r}; `ems readers list` shows those that it keeps"
            )
        return count
