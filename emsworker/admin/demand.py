"""Demand of groups for workers, for autoscalers."""

from __future__ import annotations

from typing import Any

from emsworker.app import Ems
from emsworker.core.errors import UnknownGroup, UnknownTopic
from emsworker.core.model import Group, Topic
from emsworker.core.scaling import Demand
from emsworker.store import topics as topic_store
from emsworker.store.engine.database import Database
from emsworker.store.inspect.demand import read_demands


class Demands:
    """Demand of the groups of a stream.

    Args:
        stream: an app, or its database.
    """

    def __init__(self, stream: Ems | Database) -> None:
        self._database = stream.stream.database if isinstance(stream, Ems) else stream

    def get(self, topic: str, group: str) -> Demand:
        """Return the demand of one group.

        Raises:
            UnknownTopic, UnknownGroup: there is none of that name.
        """

        def work(session: Any) -> Demand:
            topics = [one for one in topic_store.list_topics(session) if one.name == topic]
            if not topics:
                raise UnknownTopic(f"there is no topic {topic!r}; `ems topics list` shows those that exist")
            groups = [one for one in topic_store.list_groups(session) if one.topic_id == topics[0].id]
            found = next((one.id for one in groups if one.name == group), None)
            if found is None:
                raise UnknownGroup(f"topic {topic!r} has no group {group!r}; `ems groups list` shows those that exist")
            return read_demands(session, [found])[found]

        return self._database.call(work)

    def list(self) -> list[tuple[Topic, Group, Demand]]:
        """Return the demand of every group."""

        def work(session: Any) -> list[tuple[Topic, Group, Demand]]:
            topics = {one.id: one for one in topic_store.list_topics(session)}
            groups = [one for one in topic_store.list_groups(session) if one.topic_id in topics]
            demands = read_demands(session, [one.id for one in groups])
            return [(topics[one.topic_id], one, demands[one.id]) for one in groups]

        return self._database.call(work)
