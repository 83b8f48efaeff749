"""Administration of the limits of groups, behind ``ems groups limit``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emsworker.core.limits import Limit
from emsworker.core.model import Group
from emsworker.store.engine.database import Database
from emsworker.store.groups import limits as store

_KEEP: Any = object()


class GroupLimits:
    """Limits of a stream's groups.

    Args:
        database: the database of the stream.
        find_group: finds a group by topic and name.
    """

    def __init__(self, database: Database, find_group: Callable[[str, str], Group]) -> None:
        self._database = database
        self._find_group = find_group

    def get(self, topic: str, group: str) -> Limit:
        """Return the limits of a group.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
        """
        found = self._find_group(topic, group)
        return self._database.call(lambda session: store.get_limit(session, found.id))

    def running(self, topic: str, group: str) -> int:
        """Return the number of slots of a group that are taken; 0 if it has no ``max_running``.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
        """
        found = self._find_group(topic, group)
        return self._database.call(lambda session: store.count_running(session, found.id))

    def set(
        self,
        topic: str,
        group: str,
        *,
        rate: str | None = _KEEP,
        max_running: int | None = _KEEP,
        max_running_per_key: int | None = _KEEP,
    ) -> Limit:
        """Change the limits of a group; workers apply them within a fifth of a second.

        Args:
            rate: like ``100/s``, ``30/m``, ``5/h``; ``None`` for no limit; unchanged if it is not given.
            max_running: the maximum number of running messages; ``None`` for no limit; unchanged if it is not given.
            max_running_per_key: the same for each key of a fair group whose tasks declare such a limit.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: a limit is not valid.
        """
        found = self._find_group(topic, group)
        before = self._database.call(lambda session: store.get_limit(session, found.id))
        wanted = Limit(
            before.rate if rate is _KEEP else rate,
            before.max_running if max_running is _KEEP else max_running,
            before.max_running_per_key if max_running_per_key is _KEEP else max_running_per_key,
        )
        self._database.call(lambda session: store.set_limit(session, found.id, wanted))
        return wanted
