"""The registry of an app: what it has declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any

from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.ids import check_name
from emsworker.core.model import TopicKind
from emsworker.core.selection.filters import Filter
from emsworker.tasks.broadcast import BROADCAST_OPTIONS, BroadcastOptions, BroadcastRoute
from emsworker.tasks.fairness import check_fair
from emsworker.tasks.handler import Subscription, check_function, full_name
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.periodic import Periodic
from emsworker.tasks.port import App
from emsworker.tasks.requirements import check_requires, default_group
from emsworker.tasks.route import Route
from emsworker.tasks.task import CoroutineTask, GivenTask, Task

Function = Callable[..., Any]

_LIMITS = ("soft_time_limit_s", "hard_time_limit_s")


class Registry:
    """Tasks, subscriptions, broadcasts and schedules.

    Args:
        settings: the app's.

    Attributes:
        routes: the handlers of each group, by topic and group.
        broadcasts: the broadcast subscriptions by name.
        schedules: the periodic tasks by name.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.routes: dict[tuple[str, str], Route] = {}
        self.broadcasts: dict[str, BroadcastRoute] = {}
        self.schedules: dict[str, Periodic] = {}

    def route(self, topic: str, group: str) -> Route:
        """Return the route of a group, made at its first use.

        Raises:
            InvalidName: no topic or group can have that name.
            ConfigError: the topic has a broadcast subscription.
        """
        key = (check_name("topic", topic), check_name("group", group))
        if self.kind_of(topic) is TopicKind.BROADCAST:
            fix = f"a handler with broadcast=True listens to topic {topic!r}, so it has no groups"
            raise ConfigError([Problem("group", repr(group), fix)])
        return self.routes.setdefault(key, Route(*key))

    @property
    def topics(self) -> set[str]:
        """The topics on which the app has groups, and that of the settings."""
        return {self.settings.topic, *(topic for topic, _ in self.routes)}

    def find_task(self, topic: str, name: str, group: str | None = None) -> Task | None:
        """Return a task of a topic, if the app has it; without a group the first one of that name."""
        routes = [one for one in self.routes.values() if one.topic == topic and group in (None, one.group)]
        return next((task for route in routes if (task := route.find(name)) is not None), None)

    def kind_of(self, topic: str) -> TopicKind:
        """Return the kind with which the app would create a topic."""
        listened_to = any(route.topic == topic for route in self.broadcasts.values())
        return TopicKind.BROADCAST if listened_to else TopicKind.CLUSTER

    def topic_settings(self, topic: str) -> dict[str, Any]:
        """Return the settings with which the app would create a topic."""
        return self.settings.new_topic(self.kind_of(topic), for_tasks=self._is_for_tasks(topic))

    def _is_for_tasks(self, topic: str) -> bool:
        """Return whether the app has tasks on a topic, and nothing that reads it as a stream."""
        routes = [route for route in self.routes.values() if route.topic == topic]
        return any(route.tasks for route in routes) and all(route.subscription is None for route in routes)

    def options(self, given: Mapping[str, Any]) -> HandlerOptions:
        """Return a handler's options, over the time limits of the app's settings.

        Raises:
            ConfigError: one is unknown or wrong.
        """
        return HandlerOptions.checked(self._time_limits() | dict(given))

    def _time_limits(self) -> dict[str, Any]:
        return {name: getattr(self.settings, name) for name in _LIMITS}

    def group_for(self, group: str | None, options: HandlerOptions) -> str:
        """Return the group of a task: the one that it names, or the app's setting, or one for the tags it requires."""
        return group or default_group(self.settings.group, options.tags)

    def add_task(self, task: Task, order: str | None) -> None:
        """Add a task to its route.

        Raises:
            ConfigError: the name is taken, or the group has another order.
        """
        route = self.route(task.topic, task.group)
        route.declare_order(order)
        if task.name in route.tasks or route.subscription is not None:
            raise ConfigError([Problem("task", task.name, f"{route.topic}/{route.group} has a handler for it already")])
        check_requires(route, task)
        check_fair(route, task)
        route.tasks[task.name] = task

    def declare_task(
        self,
        app: App,
        function: Function,
        name: str | None,
        topic: str | None,
        group: str | None,
        order: str | None,
        given: Mapping[str, Any],
        *,
        bind: bool,
    ) -> Task:
        """Make the task that :meth:`Ems.task` asks for, and add it; the arguments and errors are its."""
        check_function("task", function)
        options = self.options(given)
        is_given = bind or options.transactional or options.batch
        kind = GivenTask if is_given else CoroutineTask if iscoroutinefunction(function) else Task
        task: Task = kind(
            app,
            function,
            check_name("task", name or full_name(function)),
            options,
            topic=topic or self.settings.topic,
            group=self.group_for(group, options),
            bind=bind,
        )
        self.add_task(task, order)
        return task

    def declared_task(self, name: str, topic: str | None = None, group: str | None = None) -> Task | None:
        """Return the task of that name, in a topic and a group if they are given; ``None`` if none is declared here.

        Raises:
            ConfigError: several are.
        """
        found = [
            route.tasks[name]
            for route in self.routes.values()
            if name in route.tasks and topic in (None, route.topic) and group in (None, route.group)
        ]
        if len(found) > 1:
            places = ", ".join(f"{task.topic}/{task.group}" for task in found)
            raise ConfigError([Problem("task", name, f"is declared in {places}; choose by topic= and group=")])
        return found[0] if found else None

    def subscriber(
        self,
        topic: str,
        group: str | None,
        filter: Filter,
        order: str | None,
        given: dict[str, Any],
        *,
        broadcast: bool,
        name: str | None,
    ) -> Callable[[Function], Subscription]:
        """Return the decorator that :meth:`Ems.subscribe` asks for; the arguments and errors are its."""
        wanted: Any = filter
        if not isinstance(wanted, Filter):
            raise ConfigError([Problem("filter", repr(wanted), "must be a Filter, like Filter(tags=['new'])")])
        if broadcast:
            self.check_broadcast(topic, group, given if order is None else given | {"order": order})
            return lambda function: self.add_broadcast(function, topic, name, filter, given)
        if group is None or name is not None:
            fix = "name a group, or say broadcast=True (only that has a name=)"
            raise ConfigError([Problem("subscribe", repr(topic), fix)])
        return lambda function: self.add_subscription(function, topic, group, filter, order, given)

    def add_subscription(
        self, function: Function, topic: str, group: str, wanted: Filter, order: str | None, given: Mapping[str, Any]
    ) -> Subscription:
        """Add the handler of a group that gets every message.

        Raises:
            ConfigError: an option is unknown or wrong, or the group has a handler already.
        """
        check_function("subscribe", function)
        route = self.route(topic, group)
        if route.subscription is not None or route.tasks:
            fix = "the group has a handler already; give this one another group"
            raise ConfigError([Problem("subscribe", f"{topic}/{group}", fix)])
        route.subscription = Subscription(function, full_name(function), self.options(given))
        route.filter = wanted
        route.declare_order(order)
        check_fair(route, route.subscription)
        return route.subscription

    def check_broadcast(self, topic: str, group: str | None, given: Mapping[str, Any]) -> None:
        """Check what is said about a broadcast subscription, before its function is known.

        Raises:
            ConfigError: an option is unknown or makes no sense here, or the topic is read by a group.
        """
        fix = (
            f"a broadcast handler takes {', '.join(sorted(BROADCAST_OPTIONS))} only: nothing is claimed, retried or "
            "acked"
        )
        problems = [Problem(name, repr(value), fix) for name, value in given.items() if name not in BROADCAST_OPTIONS]
        if group is not None:
            problems.append(Problem("group", repr(group), "a broadcast has no groups; a stable name is given as name="))
        if any(route.topic == topic for route in self.routes.values()):
            fix = "the app reads it in a group already; a topic is for groups or for broadcasts, not for both"
            problems.append(Problem("topic", repr(topic), fix))
        if problems:
            raise ConfigError(problems)
        check_name("topic", topic)

    def add_broadcast(
        self, function: Function, topic: str, name: str | None, wanted: Filter, given: Mapping[str, Any]
    ) -> Subscription:
        """Add a broadcast handler.

        Raises:
            ConfigError: an option is wrong, or the name is taken.
        """
        check_function("subscribe", function)
        own_name = full_name(function)
        label = check_name("broadcast", name or own_name)
        if label in self.broadcasts:
            raise ConfigError([Problem("broadcast", label, "the name is taken; give this one a name= of its own")])
        options = BroadcastOptions.checked(self._time_limits() | dict(given))
        handler = Subscription(function, own_name, options)
        self.broadcasts[label] = BroadcastRoute(topic, label, subscription=handler, filter=wanted, resumes=bool(name))
        return handler

    def add_periodic(self, periodic: Periodic) -> None:
        """Add a schedule.

        Raises:
            ConfigError: the name is taken.
        """
        if periodic.name in self.schedules:
            raise ConfigError([Problem("schedule", periodic.name, "the name is taken; give this one a name=")])
        self.schedules[periodic.name] = periodic
