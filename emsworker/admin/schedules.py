"""Administration of the schedules of periodic tasks, behind ``ems schedules``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emsworker.admin.paging import Listing, check_limit
from emsworker.broker.schedules import MysqlSchedules
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, Problem, unknown_schedule
from emsworker.core.ids import check_name, encode_key, uid_text
from emsworker.core.model import GROUP_HEADER, TASK_HEADER, Topic
from emsworker.core.schedule import Declared, ScheduleRow
from emsworker.publish.outgoing import Outgoing
from emsworker.store.cluster import schedules as store
from emsworker.store.cluster.user_schedules import find_handlers
from emsworker.store.engine.database import Database
from emsworker.tasks.calls import call_body
from emsworker.tasks.schedules import When, change_arguments, declare_call


class Schedules:
    """Schedules of a stream.

    Args:
        database: the database of the stream.
        find_topic: finds a topic by name.
    """

    def __init__(self, database: Database, find_topic: Callable[[str], Topic]) -> None:
        self._database, self._find_topic = database, find_topic
        self._kept = MysqlSchedules(database)

    def list(self) -> list[ScheduleRow]:
        """Return all schedules, sorted by name."""
        return self._database.call(store.list_schedules)

    def page(
        self, *, prefix: str = "", tag: str | bytes | None = None, limit: int = 1000, after: str = ""
    ) -> Listing[ScheduleRow]:
        """Return a page of schedules by name; the token of the next page is the last name of this one.

        Args:
            prefix: with which their names begin.
            tag: of their calls.
            limit: the rows of the page.
            after: the name after which it begins.
        """
        check_limit(limit)
        rows = self._kept.page(prefix, encode_key("tag", tag), after, limit + 1)
        return Listing(tuple(rows[:limit]), rows[limit - 1].name if len(rows) > limit else None)

    def add(
        self,
        name: str,
        task: str,
        cron: str | None = None,
        *,
        every: float | None = None,
        timezone: str = "UTC",
        catch_up: str = "last",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        topic: str | None = None,
        key: str | bytes | None = None,
        tag: str | bytes | None = None,
        priority: int | None = None,
        expires: float | None = None,
    ) -> ScheduleRow:
        """Create a schedule that calls a task, or replace the one of that name; see :meth:`app.schedules.add`.

        Args:
            task: the name of a task that a worker of the stream has run with.
            topic: of the task's, if it is run on several.

        Raises:
            UnknownTopic: there is no such topic.
            ConfigError: the times or the task are wrong, or an app declares a schedule of that name.
            EncodeError, InvalidName, InvalidPriority: the call cannot be sent. Nothing was written.
        """
        when = When(cron, every, timezone, catch_up)
        check_name("schedule", name)
        when.spec_of(name)
        place, group = self._handler(check_name("task", task), topic)
        headers = {TASK_HEADER: task, GROUP_HEADER: group}
        call = Outgoing(place, call_body(task, args, kwargs), key=key, tag=tag, headers=headers, priority=priority)
        declared = declare_call(name, when, call, task, expires, Settings(), self._find_topic(place))
        return self._kept.put(declared)

    def change(
        self,
        name: str,
        cron: str | None = None,
        *,
        every: float | None = None,
        timezone: str | None = None,
        catch_up: str | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> ScheduleRow:
        """Change some of a schedule that was created at run time; see :meth:`app.schedules.change`.

        Raises:
            UnknownSchedule: there is no such schedule.
            ConfigError: the times are wrong, or an app declares it in its code.
        """
        when = When(cron, every, timezone, catch_up)
        when.check(name)

        def change(one: Declared) -> Declared:
            changed = when.changed(one)
            if args is None and kwargs is None:
                return changed
            return change_arguments(changed, call_body(one.task, args or (), kwargs), Settings())

        return self._kept.change(name, change)

    def pause(self, name: str) -> ScheduleRow:
        """Keep a schedule from being fired.

        Raises:
            UnknownSchedule: there is no such schedule.
        """
        return self._kept.pause(name)

    def resume(self, name: str) -> ScheduleRow:
        """Let a schedule be fired from its next slot on; slots that passed while it was paused are left out.

        Raises:
            UnknownSchedule: there is no such schedule.
        """
        return self._kept.resume(name)

    def delete(self, name: str, *, declared: bool = True) -> None:
        """Delete a schedule; a worker whose app still declares it writes it again at its start.

        Args:
            declared: also one that an app has declared in its code.

        Raises:
            UnknownSchedule: there is no such schedule.
            ConfigError: an app has declared it, and such a one is not to be deleted.
        """
        if not declared:
            self._kept.delete(name)
        elif not self._database.call(lambda session: store.delete(session, name)):
            raise unknown_schedule(name)

    def run_now(self, name: str) -> str:
        """Send the call of a schedule once, now; its next slot stays.

        Returns:
            the id of the message.

        Raises:
            UnknownSchedule: there is no such schedule, or its topic was deleted.
        """
        uid = self._database.call(lambda session: store.run_now(session, name))
        if uid is None:
            raise unknown_schedule(name)
        return uid_text(uid)

    def _handler(self, task: str, topic: str | None) -> tuple[str, str]:
        """Return the topic and the group that run a task.

        Raises:
            ConfigError: no worker has run with it, or it is run on several topics.
        """
        found = self._database.call(lambda session: find_handlers(session, task))
        wanted = [place for place in found if topic in (None, place[0])]
        if len({place[0] for place in wanted}) == 1:
            return wanted[0]
        fix = "no worker has started with a task of that name; start one with `ems worker`, or correct the name"
        if found:
            fix = f"it is run on the topics {', '.join(sorted({place[0] for place in found}))}; name one of these"
        raise ConfigError([Problem("task", repr(task), fix)])
