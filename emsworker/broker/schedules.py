"""The schedules of users that a broker keeps, behind ``app.schedules``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from emsworker.core.schedule import Declared, ScheduleRow
from emsworker.store.cluster import schedules
from emsworker.store.cluster.user_schedules import UserSchedules, within
from emsworker.store.engine import foreign
from emsworker.store.engine.database import Database

T = TypeVar("T")
Change = Callable[[Declared], Declared]


class ScheduleStore(Protocol):
    """The keeper of schedules. Each change is committed at once, or with the caller's open transaction."""

    def put(self, declared: Declared, transaction: Any = None) -> ScheduleRow:
        """Create a schedule, or replace the one of that name.

        Raises:
            ConfigError: an app declares one of that name, or the transaction is on another server than the topic.
        """
        ...

    def change(self, name: str, change: Change, transaction: Any = None) -> ScheduleRow:
        """Change a schedule that a user has created.

        Raises:
            UnknownSchedule: there is none of that name.
            ConfigError: an app declares it.
        """
        ...

    def pause(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Keep a schedule from being fired.

        Raises:
            UnknownSchedule: there is none of that name.
        """
        ...

    def resume(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Let a schedule be fired from its next slot on.

        Raises:
            UnknownSchedule: there is none of that name.
        """
        ...

    def delete(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Delete a schedule that a user has created.

        Raises:
            UnknownSchedule: there is none of that name.
            ConfigError: an app declares it.
        """
        ...

    def page(self, prefix: str, tag: bytes | None, after: str, limit: int) -> list[ScheduleRow]:
        """Return schedules by name: those after one, with a prefix and a tag."""
        ...


class MysqlSchedules:
    """The schedules of a stream in MySQL.

    Args:
        database: the database of the stream.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, declared: Declared, transaction: Any = None) -> ScheduleRow:
        """Create a schedule, or replace the one of that name."""
        return self._do(lambda kept: kept.put(declared), transaction)

    def change(self, name: str, change: Change, transaction: Any = None) -> ScheduleRow:
        """Change a schedule that a user has created."""
        return self._do(lambda kept: kept.change(name, change), transaction)

    def pause(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Keep a schedule from being fired."""
        return self._do(lambda kept: kept.pause(name), transaction)

    def resume(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Let a schedule be fired from its next slot on."""
        return self._do(lambda kept: kept.resume(name), transaction)

    def delete(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Delete a schedule that a user has created."""
        return self._do(lambda kept: kept.delete(name), transaction)

    def page(self, prefix: str, tag: bytes | None, after: str, limit: int) -> list[ScheduleRow]:
        """Return schedules by name."""
        return self._database.call(lambda session: schedules.list_schedules(session, prefix, tag, after, limit))

    def _do(self, work: Callable[[UserSchedules], T], transaction: Any) -> T:
        if transaction is not None:
            return work(UserSchedules(partial(foreign.run, transaction), self._database.name))
        return self._database.call(lambda session: session.transaction(lambda session: work(within(session))))
