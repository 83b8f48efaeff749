"""Periodic tasks as an app declares them; workers write them into the stream's table of schedules when they start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emsworker.broker.mysql import MysqlBroker
from emsworker.core.codec import CALL, encode_body, encode_headers
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.ids import check_name, encode_key
from emsworker.core.model import GROUP_HEADER, TASK_HEADER, Topic, priority_header
from emsworker.core.options import choice, number, raise_problems, text, unknown_options
from emsworker.core.priority import level_for
from emsworker.core.schedule import CATCH_UP, Declared, interval_spec, parse_timetable, parse_zone
from emsworker.tasks.task import Task

_LONGEST_SPEC = 200


@dataclass(frozen=True)
class Periodic:
    """A task that is called at set times.

    Args:
        name: of the schedule; unique in the stream.
        spec, timezone: the times.
        catch_up: the policy for slots that passed while no beat was running.
        args, kwargs, key: of the call.
    """

    name: str
    task: Task
    spec: str
    timezone: str
    catch_up: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    key: str | bytes | None = None

    def declared(self, settings: Settings, topic: Topic) -> Declared:
        """Return the form in which it is stored.

        Args:
            settings: the app's.
            topic: the task's.

        Raises:
            InvalidPriority: the task has a priority, and its topic does not distinguish priorities.
        """
        arguments = self.task.body_of(self.args, self.kwargs)
        body, codec_headers = encode_body(
            *(arguments, settings.serializer, settings.compression),
            budget=settings.budget,
        )
        priority = self.task.options.priority
        level_for(topic.name, topic.priorities, priority)
        call = self.task.with_key(arguments, {TASK_HEADER: self.task.name, GROUP_HEADER: self.task.group})
        headers = encode_headers({**codec_headers, **call, **priority_header(priority)})
        key = encode_key("key", self.key)
        return Declared(
            self.name, self.spec, self.timezone, self.catch_up, topic.name, key, headers, body, self.task.name
        )


def make_periodic(
    task: Any, cron: Any, every: Any, timezone: Any, catch_up: str, name: str | None, **call: Any
) -> Periodic:
    """Return the periodic task that a user has declared, checked.

    Raises:
        ConfigError: the time, the zone, the policy or an option is wrong, or ``task`` is not a task.
        WrongArguments, EncodeError, MessageTooLarge, InvalidName: the call cannot be sent.
    """
    if not isinstance(task, Task):
        fix = "it is for tasks: write @app.periodic(...) above @app.task"
        raise ConfigError([Problem("periodic", getattr(task, "__qualname__", repr(task)), fix)])
    raise_problems(unknown_options("periodic", call, ("args", "kwargs", "key")))
    spec = read_timetable("periodic", cron, every, timezone, catch_up)
    _check_call(task, **call)
    return Periodic(check_name("schedule", name or task.name), task, spec, timezone, catch_up, **call)


def read_timetable(what: str, cron: Any, every: Any, timezone: Any, catch_up: Any) -> str:
    """Return the stored form of a cron expression or an interval.

    Args:
        what: is given the times, for error messages.

    Raises:
        ConfigError: the time, the zone or the policy is wrong.
    """
    if (cron is None) == (every is None):
        raise ConfigError([Problem(what, repr(cron), "give either a cron expression or every=, in seconds")])
    problems = text().problems("cron", cron) if cron is not None else number().problems("every", every)
    problems += text().problems("timezone", timezone)
    raise_problems(problems)
    problems += choice(CATCH_UP).problems("catch_up", catch_up)
    spec: str = cron if cron is not None else interval_spec(float(every))
    try:
        parse_zone(timezone)  # an interval has no use for it, but keeps it for a later cron expression
        parse_timetable(spec, timezone)
    except ValueError as error:
        problems.append(Problem(what, repr(cron if cron is not None else every), str(error)))
    if len(spec) > _LONGEST_SPEC:
        problems.append(Problem(what, repr(spec[:50]), f"an expression has at most {_LONGEST_SPEC} characters"))
    raise_problems(problems)
    return spec


def _check_call(task: Task, args: Any = (), kwargs: Any = None, key: Any = None) -> None:
    """Refuse a call that the worker could not send at its start."""
    body, settings = task.body_of(args, kwargs), task.app.settings
    encode_body(body, settings.serializer, settings.compression, names=CALL, budget=settings.budget)
    encode_key("key", key)


def declare_schedules(broker: MysqlBroker, settings: Settings, periodic: Iterable[Periodic]) -> int:
    """Write an app's schedules into the stream, and return their number; idempotent."""
    declared = [one.declared(settings, broker.topic(one.task.topic)) for one in periodic]
    if declared:
        broker.declare_schedules(declared)
    return len(declared)
