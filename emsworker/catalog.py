"""Topics and groups by name, remembered for a second and created on first use where that is allowed."""

from __future__ import annotations

import threading
from typing import Any

from emsworker.core.clock import ticks
from emsworker.core.config import Settings
from emsworker.core.errors import UnknownGroup, UnknownTopic
from emsworker.core.ids import check_name
from emsworker.core.model import Group, Topic
from emsworker.store import topics as store
from emsworker.store.database import Database

_FRESH_S = 1.0


class Catalog:
    """Thread-safe; a change made elsewhere is seen within a second."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._lock = threading.Lock()
        self._topics: dict[str, tuple[Topic, float]] = {}

    def topic(self, name: str) -> Topic:
        """The topic of that name.

        Raises:
            UnknownTopic: there is none, and auto-create is off.
            InvalidName: no topic can have that name.
        """
        known = self._topics.get(name)
        if known is not None and ticks() < known[1]:
            return known[0]
        with self._lock:
            topic = self._database.call(lambda session: self._get_or_create(session, name))
            self._topics[name] = (topic, ticks() + _FRESH_S)
            return topic

    def _get_or_create(self, session: Any, name: str) -> Topic:
        topic = store.get_topic(session, check_name("topic", name))
        if topic is not None:
            return topic
        if not self._settings.auto_create:
            self._topics.pop(name, None)
            raise UnknownTopic(
                f"there is no topic {name!r} and auto_create is off; create it with `ems topics create {name}`"
            )
        return store.create_topic(session, name, max_message_bytes=self._settings.max_message_bytes)

    def forget(self, name: str) -> None:
        """Look the topic up again at its next use."""
        self._topics.pop(name, None)

    def group(self, topic: Topic, name: str) -> Group:
        """The group of that name on a topic.

        Raises:
            UnknownGroup: there is none, and auto-create is off.
            InvalidName: no group can have that name.
        """
        check_name("group", name)
        return self._database.call(lambda session: self._get_or_create_group(session, topic, name))

    def _get_or_create_group(self, session: Any, topic: Topic, name: str) -> Group:
        group = store.get_group(session, topic, name)
        if group is not None:
            return group
        if not self._settings.auto_create:
            raise UnknownGroup(
                f"topic {topic.name!r} has no group {name!r} and auto_create is off; "
                f"create it with `ems groups create {topic.name} {name}`"
            )
        s = self._settings
        return store.create_group(
            session, topic, name, timeout_s=s.timeout_s, ladder=s.ladder, max_attempts=s.max_attempts
        )
