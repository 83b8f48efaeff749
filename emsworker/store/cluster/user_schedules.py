"""Schedules of users: created, changed, paused and deleted at run time, also in a transaction of the caller's.

Each function takes ``run``, which runs a statement in the transaction that the change is part of. The row's lock keeps
the beat away until that is committed: it fires a slot before a change or a deletion, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from emsworker.core.errors import unknown_schedule
from emsworker.core.ids import decode_key
from emsworker.core.schedule import Declared, ScheduleRow, check_origin, parse_timetable
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier, literals

_SQL = Statements(__name__)
_BYTES = ("key", "headers", "body", "tag")

Run = Callable[[Sql], Sequence[Sequence[Any]]]
Change = Callable[[Declared], Declared]


@dataclass(frozen=True)
class _Locked:
    """A schedule as it is stored, locked, and the server's time."""

    declared: Declared
    row: ScheduleRow
    now: datetime


class UserSchedules:
    """The schedules of a stream within one transaction.

    Args:
        run: runs a statement in it, and returns its rows.
        database: the name of the stream's database, which the connection may not be in.
    """

    def __init__(self, run: Run, database: str) -> None:
        self._run, self._database = run, identifier(database)

    def put(self, declared: Declared) -> ScheduleRow:
        """Create a schedule, or replace the one of that name; an unchanged timetable keeps its next slot.

        Raises:
            ConfigError: an app declares one of that name.
        """
        now = _moment(self._run(_SQL.get_time)[0][0])
        next_at = next(parse_timetable(declared.spec, declared.timezone).after(now))
        self._do(_SQL.put_schedule, vars(declared) | {"next_at": next_at.replace(tzinfo=None)})
        found = self._lock(declared.name).row
        check_origin(found.name, found.origin, "user")
        return found

    def change(self, name: str, change: Change) -> ScheduleRow:
        """Change a schedule.

        Raises:
            UnknownSchedule: there is none of that name.
            ConfigError: an app declares it, or what the change gives is wrong.
        """
        found = self._lock(name)
        check_origin(name, found.row.origin, "user")
        return self.put(change(found.declared))

    def pause(self, name: str) -> ScheduleRow:
        """Keep a schedule from being fired.

        Raises:
            UnknownSchedule: there is none of that name.
        """
        self._lock(name)
        self._do(_SQL.pause_schedule, {"name": name})
        return self._lock(name).row

    def resume(self, name: str) -> ScheduleRow:
        """Let a paused schedule be fired from its next slot on; those that passed meanwhile are left out.

        Raises:
            UnknownSchedule: there is none of that name.
        """
        found = self._lock(name)
        if not found.row.paused:
            return found.row
        next_at = next(parse_timetable(found.row.spec, found.row.timezone).after(found.now))
        self._do(_SQL.resume_schedule, {"name": name, "next_at": next_at.replace(tzinfo=None)})
        return self._lock(name).row

    def delete(self, name: str) -> ScheduleRow:
        """Delete a schedule; after the commit it is not fired any more.

        Raises:
            UnknownSchedule: there is none of that name.
            ConfigError: an app declares it.
        """
        found = self._lock(name).row
        check_origin(name, found.origin, "user")
        self._do(_SQL.delete_schedule, {"name": name})
        return found

    def _lock(self, name: str) -> _Locked:
        rows = self._do(_SQL.lock_schedule, {"name": name})
        if not rows:
            raise unknown_schedule(name)
        return _read(rows[0])

    def _do(self, statement: Sql, args: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self._run(fill(statement, {**literals(args), "database": self._database}))


def within(session: Session) -> UserSchedules:
    """Return the schedules for the transaction that a session is in."""
    return UserSchedules(lambda text: session.rows(text), session.database)


def find_handlers(session: Session, task: str) -> list[tuple[str, str]]:
    """Return the topics and groups that run a task, as the workers that started last have declared."""
    return [(topic, group) for topic, group in session.rows(_SQL.find_handlers, {"task": task})]


def _read(row: Sequence[Any]) -> _Locked:
    """Read a row as any driver returns it: times as text or as datetime, bytes of any type."""
    names = [one.name for one in fields(Declared)]
    given = dict(zip(names, row, strict=False))
    given |= {name: bytes(given[name]) for name in _BYTES if given[name] is not None}
    declared = Declared(**given)
    next_at, last_at, declared_at, origin, paused, now = row[len(names) :]
    times = _moment(next_at), None if last_at is None else _moment(last_at), _moment(declared_at)
    place = (declared.name, declared.spec, declared.timezone, declared.catch_up, declared.topic)
    seen = ScheduleRow(*place, *times, origin, bool(paused), declared.task, decode_key(declared.tag))
    return _Locked(declared, seen, _moment(now))


def _moment(value: Any) -> datetime:
    return utc(str(value))
