"""Administration of the schedules of periodic tasks, behind ``ems schedules``."""

from __future__ import annotations

from emsworker.core.errors import UnknownSchedule
from emsworker.core.ids import uid_text
from emsworker.store.cluster import schedules as store
from emsworker.store.cluster.schedules import ScheduleRow
from emsworker.store.engine.database import Database


class Schedules:
    """Schedules of a stream.

    Args:
        database: the database of the stream.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self) -> list[ScheduleRow]:
        """Return all schedules, sorted by name."""
        return self._database.call(store.list_schedules)

    def delete(self, name: str) -> None:
        """Delete a schedule; a worker whose app still declares it writes it again at its start.

        Raises:
            UnknownSchedule: there is no such schedule.
        """
        if not self._database.call(lambda session: store.delete(session, name)):
            raise UnknownSchedule(f"there is no schedule {name!r}; `ems schedules list` shows those that exist")

    def run_now(self, name: str) -> str:
        """Send the call of a schedule once, now; its next slot stays.

        Returns:
            the id of the message.

        Raises:
            UnknownSchedule: there is no such schedule, or its topic was deleted.
        """
        uid = self._database.call(lambda session: store.run_now(session, name))
        if uid is None:
            raise UnknownSchedule(
                f"there is no schedule {name!r}, or its topic was deleted; `ems schedules list` shows those that exist"
            )
        return uid_text(uid)
