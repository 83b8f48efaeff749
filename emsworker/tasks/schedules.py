"""Schedules of users, behind ``app.schedules``: created, changed, paused and deleted at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict, Unpack

from emsworker.broker.port import Broker
from emsworker.core.codec import (
    CALL,
    COMPRESSION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    decode_headers,
    encode_body,
    encode_headers,
)
from emsworker.core.config import Settings
from emsworker.core.durations import LONGEST_S
from emsworker.core.errors import ConfigError, MessageTooLarge, Problem
from emsworker.core.ids import check_name, encode_key
from emsworker.core.model import Topic
from emsworker.core.options import is_number, raise_problems, refuse_unknown, whole
from emsworker.core.schedule import Declared, ScheduleRow
from emsworker.publish.outgoing import Outgoing, admit
from emsworker.tasks.calls import call_body
from emsworker.tasks.periodic import read_timetable
from emsworker.tasks.registry import Registry
from emsworker.tasks.task import Task

_OPTIONS = ("topic", "key", "tag", "headers", "serializer", "compression", "priority")
_LIMIT = whole(1, 10_000)


class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule's calls, for type checkers; see :meth:`AppSchedules.add`."""

    topic: str | None
    key: str | bytes | None
    tag: str | bytes | None
    headers: dict[str, str]
    serializer: str | None
    compression: str | None
    priority: int | None


class SchedulingApp(Protocol):
    """The app whose tasks are called."""

    settings: Settings
    registry: Registry

    @property
    def broker(self) -> Broker:
        """Keeps the schedules."""
        ...


@dataclass(frozen=True)
class When:
    """The times of a schedule, as a user gives them: ``None`` is for what a change leaves as it is."""

    cron: str | None = None
    every: float | None = None
    timezone: str | None = None
    catch_up: str | None = None

    def spec_of(self, name: str) -> str:
        """Return the stored form of the times of a new schedule.

        Raises:
            ConfigError: the time, the zone or the policy is wrong.
        """
        return read_timetable(f"schedule {name}", self.cron, self.every, self.timezone, self.catch_up)

    def check(self, name: str) -> None:
        """Refuse wrong times of a change before anything is looked up.

        Raises:
            ConfigError: the time, the zone or the policy is wrong.
        """
        whole = self if (self.cron, self.every) != (None, None) else replace(self, every=1.0)
        timezone = "UTC" if self.timezone is None else self.timezone
        catch_up = "last" if self.catch_up is None else self.catch_up
        replace(whole, timezone=timezone, catch_up=catch_up).spec_of(name)

    def changed(self, one: Declared) -> Declared:
        """Return a schedule with these times.

        Raises:
            ConfigError: the time, the zone or the policy is wrong.
        """
        timezone = one.timezone if self.timezone is None else self.timezone
        catch_up = one.catch_up if self.catch_up is None else self.catch_up
        if self.cron is None and self.every is None:
            every = one.spec.removeprefix("every ")
            before = When(one.spec) if every == one.spec else When(every=float(every))
        else:
            before = self
        spec = replace(before, timezone=timezone, catch_up=catch_up).spec_of(one.name)
        return replace(one, spec=spec, timezone=timezone, catch_up=catch_up)


def declare_call(
    name: str, when: When, call: Outgoing, task: str, expires: float | None, settings: Settings, topic: Topic
) -> Declared:
    """Return the stored form of a schedule that sends a call.

    Raises:
        ConfigError, InvalidName: the times or the name are wrong.
        EncodeError, MessageTooLarge, TopicRuleError, InvalidPriority: the call cannot be sent to its topic.
    """
    check_name("schedule", name)
    spec = when.spec_of(name)
    if expires is not None and (not is_number(expires) or not 0 < expires <= LONGEST_S):
        raise ConfigError([Problem("expires", repr(expires), "must be a number of seconds after the slot")])
    message = call.encode(settings)
    admit(topic, message)
    times = (name, spec, str(when.timezone), str(when.catch_up))
    return Declared(*times, topic.name, message.key, message.headers, message.body, task, message.tag, expires)


def change_arguments(one: Declared, arguments: list[Any], settings: Settings) -> Declared:
    """Return a schedule whose calls have other arguments.

    Args:
        arguments: as they are sent.

    Raises:
        EncodeError, MessageTooLarge: they cannot be sent.
    """
    body, codec = encode_body(arguments, settings.serializer, names=CALL, budget=settings.budget)
    if len(body) > settings.max_message_bytes:
        raise MessageTooLarge(f"a body of {len(body)} bytes is over the limit of {settings.max_message_bytes} bytes")
    headers = {
        header: value
        for header, value in decode_headers(one.headers).items()
        if header not in (CONTENT_TYPE, CONTENT_ENCODING, COMPRESSION)
    }
    return replace(one, body=body, headers=encode_headers({**headers, **codec}))


class AppSchedules:
    """Schedules of users: each calls a task at set times, until it is paused or deleted.

    Changes hold from the next slot on: the beat has fired a slot before the change, or fires it as changed. Those that
    the app declares in its code (:meth:`Ems.periodic`) are listed too; they can be paused and resumed only.

    Args:
        app: whose tasks are called.
    """

    def __init__(self, app: SchedulingApp) -> None:
        self._app = app

    def add(
        self,
        name: str,
        task: Task[..., Any] | str,
        cron: str | None = None,
        *,
        every: float | None = None,
        timezone: str = "UTC",
        catch_up: str = "last",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        expires: float | None = None,
        transaction: Any = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleRow:
        """Create a schedule, or replace the one of that name; so it may be repeated.

        One whose times are unchanged keeps its next slot, and one that is paused stays so.

        Args:
            name: unique in the stream; letters, digits and ``._:-``.
            task: one of the app's, or its name.
            cron: five fields, or six with the seconds first.
            every: seconds, instead of cron.
            timezone: of cron, an IANA name.
            catch_up: of the slots that passed while no beat was running: the ``last``, ``all``, or ``none``.
            args, kwargs: of the calls.
            expires: seconds after its slot after which a call is no longer run.
            transaction: create it with its commit, as in :meth:`Ems.send`.
            options: of the calls, as in :meth:`Task.apply_async`: ``topic``, ``key``, ``tag`` (schedules are also
                listed by it), ``headers``, ``serializer``, ``compression``, ``priority``.

        Raises:
            ConfigError: the times, an option or the task is wrong, or the app declares a schedule of that name.
            WrongArguments, EncodeError, InvalidName: the call cannot be sent. Nothing was written.
        """
        refuse_unknown("schedules.add()", options, _OPTIONS)
        found = task if isinstance(task, Task) else self._task(task, options.get("topic"))
        call = found.prepare(args, kwargs, **options)
        when = When(cron, every, timezone, catch_up)
        check_name("schedule", name)
        when.spec_of(name)  # before the topic may be created
        broker = self._app.broker
        topic = broker.topic(call.topic)
        declared = declare_call(name, when, call, found.name, expires, self._app.settings, topic)
        return broker.schedules.put(declared, transaction)

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
        transaction: Any = None,
    ) -> ScheduleRow:
        """Change some of a schedule; what is not given stays. With ``args`` or ``kwargs``, both are new.

        Args:
            cron, every, timezone, catch_up, args, kwargs, transaction: as in :meth:`add`.

        Raises:
            UnknownSchedule: there is none of that name.
            ConfigError: the times are wrong, or the app declares it in its code.
            WrongArguments, EncodeError: the call cannot be sent. Nothing was changed.
        """
        when = When(cron, every, timezone, catch_up)
        when.check(name)

        def change(one: Declared) -> Declared:
            changed = when.changed(one)
            if args is None and kwargs is None:
                return changed
            task = self._app.registry.declared_task(one.task, one.topic)
            arguments = call_body(one.task, args or (), kwargs) if task is None else task.body_of(args or (), kwargs)
            return change_arguments(changed, arguments, self._app.settings)

        return self._app.broker.schedules.change(name, change, transaction)

    def pause(self, name: str, *, transaction: Any = None) -> ScheduleRow:
        """Keep a schedule from being fired, until it is resumed; also one that the app declares.

        Raises:
            UnknownSchedule: there is none of that name.
        """
        return self._app.broker.schedules.pause(name, transaction)

    def resume(self, name: str, *, transaction: Any = None) -> ScheduleRow:
        """Let a schedule be fired from its next slot on; slots that passed while it was paused are left out.

        Raises:
            UnknownSchedule: there is none of that name.
        """
        return self._app.broker.schedules.resume(name, transaction)

    def delete(self, name: str, *, transaction: Any = None) -> None:
        """Delete a schedule; once this is committed, it is not fired any more.

        Raises:
            UnknownSchedule: there is none of that name.
            ConfigError: the app declares it in its code.
        """
        self._app.broker.schedules.delete(name, transaction)

    def list(
        self, *, prefix: str = "", tag: str | bytes | None = None, limit: int = 1000, after: str = ""
    ) -> list[ScheduleRow]:
        """Return schedules by name, a page at a time.

        Args:
            prefix: with which their names begin.
            tag: of their calls.
            limit: at most so many, 10,000 at most.
            after: the name after which the page begins: the last one of the page before.
        """
        raise_problems(_LIMIT.problems("limit", limit))
        return self._app.broker.schedules.page(prefix, encode_key("tag", tag), after, limit)

    def _task(self, name: str, topic: str | None) -> Task[..., Any]:
        registry = self._app.registry
        found = registry.declared_task(name, topic) or registry.declared_task(name)
        if found is None:
            fix = f"app {getattr(self._app, 'name', '')!r} declares no task of that name"
            raise ConfigError([Problem("task", repr(name), fix)])
        return found
