"""Periodic tasks as an app declares them; workers write them into the stream's table of schedules when they start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from emsworker.core.codec import encode_body, encode_headers
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.ids import check_name, encode_key
from emsworker.core.model import TASK_HEADER, priority_header
from emsworker.core.priority import level_for
from emsworker.core.schedule import CATCH_UP, interval_spec, parse_timetable
from emsworker.store import schedules
from emsworker.store.schedules import Declared

if TYPE_CHECKING:
    from emsworker.app import Ems
    from emsworker.declaring.task import Task


@dataclass(frozen=True)
class Periodic:
    """A task that is called at set times.

    Args:
        name: of the schedule; unique in the stream.
        spec, timezone: when.
        catch_up: what is done about slots that nobody was there to fire.
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

    def declared(self, app: Ems) -> Declared:
        """As it is stored.

        Raises:
            InvalidPriority: the task has a priority, and its topic does not tell priorities apart.
        """
        body, codec_headers = encode_body(
            [list(self.args), dict(self.kwargs)], app.settings.serializer, app.settings.compression
        )
        priority = self.task.options.priority
        topic = app.catalog.topic(self.task.topic)
        level_for(topic.name, topic.priorities, priority)
        headers = encode_headers({**codec_headers, TASK_HEADER: self.task.name, **priority_header(priority)})
        key = encode_key("key", self.key)
        return Declared(self.name, self.spec, self.timezone, self.catch_up, topic.id, key, headers, body)


def make_periodic(
    task: Task, cron: str | None, every: float | None, timezone: str, catch_up: str, name: str | None, **call: Any
) -> Periodic:
    """Check what a user declared.

    Raises:
        ConfigError: the time, the zone or the policy is wrong.
    """
    if (cron is None) == (every is None):
        raise ConfigError([Problem("periodic", repr(cron), 'give either a cron expression or every="seconds"')])
    problems = []
    if catch_up not in CATCH_UP:
        problems.append(Problem("catch_up", repr(catch_up), f"must be one of {', '.join(CATCH_UP)}"))
    spec = cron if cron is not None else interval_spec(float(every or 0))
    try:
        parse_timetable(spec, timezone)
    except ValueError as error:
        problems.append(Problem("periodic", repr(cron if cron is not None else every), str(error)))
    unknown = sorted(set(call) - {"args", "kwargs", "key"})
    problems += [Problem(key, repr(call[key]), "periodic takes args, kwargs and key") for key in unknown]
    if problems:
        raise ConfigError(problems)
    return Periodic(check_name("schedule", name or task.name), task, spec, timezone, catch_up, **call)


def declare_schedules(app: Ems) -> int:
    """Write the app's schedules into the stream; returns how many. Harmless when repeated."""
    declared = [periodic.declared(app) for periodic in app.schedules.values()]
    if declared:
        app.database.call(lambda session: schedules.declare(session, declared))
    return len(declared)
