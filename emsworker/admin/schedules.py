"""Schedules of periodic tasks: what ``ems schedules`` does."""

from __future__ import annotations

from emsworker.core.errors import UnknownSchedule
from emsworker.store import schedules as store
from emsworker.store.database import Database
from emsworker.store.schedules import ScheduleRow


class Schedules:
    """The schedules of a stream.

    Args:
        database: the stream's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self) -> list[ScheduleRow]:
        """All by name."""
        return self._database.call(store.list_schedules)

    def delete(self, name: str) -> None:
        """Forget a schedule; a worker whose app still declares it writes it anew when it starts.

        Raises:
            UnknownSchedule: there is none.
        """
        if not self._database.call(lambda session: store.delete(session, name)):
            raise UnknownSchedule(f"there is no schedule {name!r}; `ems schedules list` shows those that exist")
