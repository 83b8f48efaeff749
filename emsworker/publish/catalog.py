"""Topics and groups by name: topics are cached for a second; both are created on first use if that is allowed."""

from __future__ import annotations

from typing import Any

from emsworker.core.config import Settings, TopicSettings
from emsworker.core.declaration import check_declared
from emsworker.core.errors import AccessDenied, EmsError, unknown_group, unknown_topic
from emsworker.core.ids import check_name
from emsworker.core.model import Group, Order, Topic, TopicKind
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.store import topics as store
from emsworker.store.engine.database import Database

_FRESH_S = 1.0
_MAY_NOT = "this user may not create it"


class Catalog:
    """A thread-safe directory of topics and groups; a change made elsewhere is seen within a second.

    Args:
        settings_of: returns the settings with which a topic is created.
    """

    def __init__(self, database: Database, settings: Settings, settings_of: TopicSettings) -> None:
        self._database = database
        self._settings = settings
        self._settings_of = settings_of
        self._lock = forks.Lock()
        self._topics: dict[str, tuple[Topic, float]] = {}

    def topic(self, name: str) -> Topic:
        """The topic of that name.

        Raises:
            UnknownTopic: it does not exist, and auto-create is off.
            InvalidName: no topic can have that name.
        """
        known = self._topics.get(name) if isinstance(name, str) else None
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
            raise unknown_topic(name)
        try:
            return store.create_topic(session, name, **self._settings_of(name))
        except AccessDenied as error:
            raise _may_not_create(unknown_topic(name, _MAY_NOT), error) from error

    def forget(self, name: str) -> None:
        """Look the topic up again at its next use."""
        self._topics.pop(name, None)

    def group(self, topic: Topic, name: str, declared: Filter | None = None, order: Order = Order.NONE) -> Group:
        """The group of that name on a topic.

        Args:
            declared: the filter that its handler asks for; a new group gets it.
            order: the order that its handler asks for, likewise; a handler that asks for none takes the group's.

        Raises:
            ConfigError: the group has another filter or order, or the topic is for broadcasts.
            UnknownGroup: it does not exist, and auto-create is off.
            InvalidName: no group can have that name.
        """
        check_name("group", name)
        topic.check_kind(TopicKind.CLUSTER)
        group = self._database.call(lambda session: self._get_or_create_group(session, topic, name, declared, order))
        check_declared(topic, group, declared, order)
        return group

    def _get_or_create_group(
        self, session: Any, topic: Topic, name: str, declared: Filter | None, order: Order
    ) -> Group:
        group = store.get_group(session, topic, name)
        if group is not None:
            return group
        if not self._settings.auto_create:
            raise unknown_group(topic.name, name)
        s = self._settings
        limits: dict[str, Any] = {"timeout_s": s.timeout_s, "ladder": s.ladder, "max_attempts": s.max_attempts}
        try:
            return store.create_group(session, topic, name, filter=declared or EVERYTHING, order=order, **limits)
        except AccessDenied as error:
            raise _may_not_create(unknown_group(topic.name, name, _MAY_NOT), error) from error


def _may_not_create(unknown: EmsError, error: AccessDenied) -> AccessDenied:
    """Return the error with what is missing first: who has mistyped a name should not look for a broken grant."""
    return AccessDenied(f"{unknown}, if the name is right ({error})")
