"""Schedules in memory: those of the app's code, and those that users create; fired by the clock of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from emsworker.broker.memory.log import Now
from emsworker.broker.memory.transactions import Transactions
from emsworker.core.errors import unknown_schedule
from emsworker.core.ids import decode_key
from emsworker.core.schedule import Declared, ScheduleRow, check_origin, due_slots, parse_timetable


@dataclass(frozen=True)
class KeptSchedule:
    """A schedule, and where it is."""

    declared: Declared
    next_at: datetime
    declared_at: datetime
    origin: str
    paused: bool = False
    last_at: datetime | None = None

    @property
    def row(self) -> ScheduleRow:
        """The schedule in a list."""
        one = self.declared
        return ScheduleRow(
            *(one.name, one.spec, one.timezone, one.catch_up, one.topic, self.next_at, self.last_at, self.declared_at),
            *(self.origin, self.paused, one.task, decode_key(one.tag)),
        )


class MemorySchedules:
    """Schedules by name; see :class:`emsworker.broker.schedules.ScheduleStore`.

    Args:
        now: returns the time.
        transactions: those that changes may be part of: a rollback takes them back.
    """

    def __init__(self, now: Now, transactions: Transactions) -> None:
        self._now, self._transactions = now, transactions
        self._kept: dict[str, KeptSchedule] = {}

    def declare(self, schedules: Iterable[Declared]) -> None:
        """Add the schedules of the app's code that are not here yet."""
        for one in schedules:
            if (kept := self._kept.get(one.name)) is None:
                self._kept[one.name] = self._begin(one, "code")
            else:
                check_origin(one.name, kept.origin, "code")

    def put(self, declared: Declared, transaction: Any = None) -> ScheduleRow:
        """Create a schedule, or replace the one of that name; an unchanged timetable keeps its next slot."""
        kept, new = self._kept.get(declared.name), self._begin(declared, "user")
        if kept is not None:
            check_origin(declared.name, kept.origin, "user")
            same = (kept.declared.spec, kept.declared.timezone) == (declared.spec, declared.timezone)
            next_at = kept.next_at if same else new.next_at
            new = replace(new, next_at=next_at, paused=kept.paused, last_at=kept.last_at)
        return self._set(declared.name, new, transaction)

    def change(self, name: str, change: Callable[[Declared], Declared], transaction: Any = None) -> ScheduleRow:
        """Change a schedule that a user has created."""
        kept = self.find(name)
        check_origin(name, kept.origin, "user")
        return self.put(change(kept.declared), transaction)

    def pause(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Keep a schedule from being fired."""
        return self._set(name, replace(self.find(name), paused=True), transaction)

    def resume(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Let a schedule be fired from its next slot on."""
        kept = self.find(name)
        next_at = self._begin(kept.declared, kept.origin).next_at if kept.paused else kept.next_at
        return self._set(name, replace(kept, paused=False, next_at=next_at), transaction)

    def delete(self, name: str, transaction: Any = None) -> ScheduleRow:
        """Delete a schedule that a user has created."""
        kept = self.find(name)
        check_origin(name, kept.origin, "user")
        self._keep_for_rollback(name, transaction)
        del self._kept[name]
        return kept.row

    def page(self, prefix: str, tag: bytes | None, after: str, limit: int) -> list[ScheduleRow]:
        """Return schedules by name."""
        found = (self._kept[name] for name in sorted(self._kept) if name > after and name.startswith(prefix))
        return [kept.row for kept in found if tag in (None, kept.declared.tag)][:limit]

    def find(self, name: str) -> KeptSchedule:
        """Return a schedule.

        Raises:
            UnknownSchedule: there is none of that name.
        """
        if name not in self._kept:
            raise unknown_schedule(name)
        return self._kept[name]

    def take_due(self) -> Iterator[tuple[Declared, datetime]]:
        """Yield each slot that has passed, as a beat would that runs all the time, and move the schedules on."""
        now = self._now()
        for name, kept in [*self._kept.items()]:
            if kept.paused or kept.next_at > now:
                continue
            one = kept.declared
            slots, following = due_slots(parse_timetable(one.spec, one.timezone), kept.next_at, now, "all", 0.0)
            self._kept[name] = replace(kept, next_at=following, last_at=slots[-1])
            yield from ((one, slot) for slot in slots)

    def _begin(self, declared: Declared, origin: str) -> KeptSchedule:
        now = self._now()
        return KeptSchedule(declared, next(parse_timetable(declared.spec, declared.timezone).after(now)), now, origin)

    def _set(self, name: str, kept: KeptSchedule, transaction: Any) -> ScheduleRow:
        self._keep_for_rollback(name, transaction)
        self._kept[name] = kept
        return kept.row

    def _keep_for_rollback(self, name: str, transaction: Any) -> None:
        if transaction is not None:
            before = self._kept.get(name)
            self._transactions.held_by(transaction).undo.append(lambda: self._restore(name, before))

    def _restore(self, name: str, before: KeptSchedule | None) -> None:
        self._kept.pop(name, None)
        if before is not None:
            self._kept[name] = before
