"""Broadcast subscriptions as an app declares them: every worker process gets every message of the topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emsworker.core.errors import ConfigError, Ignore, Problem
from emsworker.core.ids import check_name
from emsworker.core.ladder import Decision, Done, Dropped, Ladder
from emsworker.core.model import TopicKind
from emsworker.core.options import option, whole
from emsworker.core.selection.filters import Filter
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.task import Route, Subscription, check_function, full_name

if TYPE_CHECKING:
    from emsworker.app import Ems

_LIMITS = ("soft_time_limit_s", "hard_time_limit_s")
_OPTIONS = frozenset({"concurrency", "timeout_s", *_LIMITS})


@dataclass(frozen=True)
class BroadcastOptions(HandlerOptions):
    """Options of a broadcast handler: it runs one message after the other, and none again after an error."""

    concurrency: int = option(1, whole(1, 65535))

    def decide(self, group: Ladder, attempt: int, error: BaseException) -> Decision:
        """Drop a message after an error, and go on with the next one."""
        return Done() if isinstance(error, Ignore) else Dropped()


@dataclass
class BroadcastRoute(Route):
    """The handler of one broadcast subscription; its ``group`` is its name in logs and middleware.

    Args:
        resumes: its name is stable: the position of a process is stored, and its successor resumes there.
    """

    resumes: bool = False


class Broadcasts(dict[str, BroadcastRoute]):
    """An app's broadcast subscriptions by name."""

    def kind_of(self, topic: str) -> TopicKind:
        """Return the kind with which the app would create a topic."""
        listened_to = any(route.topic == topic for route in self.values())
        return TopicKind.BROADCAST if listened_to else TopicKind.CLUSTER

    def refuse_group(self, topic: str, group: str) -> None:
        """Refuse a group on a topic with a broadcast subscription.

        Raises:
            ConfigError: the topic has one.
        """
        if self.kind_of(topic) is TopicKind.BROADCAST:
            fix = f"a handler with broadcast=True listens to topic {topic!r}, so it has no groups"
            raise ConfigError([Problem("group", repr(group), fix)])


def listen(
    app: Ems, topic: str, group: str | None, name: str | None, wanted: Filter, options: Mapping[str, Any]
) -> Callable[[Callable[..., Any]], Subscription]:
    """Declare a broadcast handler; see :meth:`Ems.subscribe`.

    Raises:
        ConfigError: an option is unknown or not allowed here, or the topic or the name is taken.
    """
    fix = f"a broadcast handler takes {', '.join(sorted(_OPTIONS))} only: nothing is claimed, retried or acked"
    problems = [Problem(option, repr(value), fix) for option, value in options.items() if option not in _OPTIONS]
    if group is not None:
        problems.append(Problem("group", repr(group), "a broadcast has no groups; a stable name is given as name="))
    if any(route.topic == topic for route in app.routes.values()):
        fix = "the app reads it in a group already; a topic is for groups or for broadcasts, not for both"
        problems.append(Problem("topic", repr(topic), fix))
    if problems:
        raise ConfigError(problems)
    check_name("topic", topic)
    limits = {limit: getattr(app.settings, limit) for limit in _LIMITS}

    def declare(function: Callable[..., Any]) -> Subscription:
        check_function("subscribe", function)
        own_name = full_name(function)
        label = check_name("broadcast", name or own_name)
        if label in app.broadcasts:
            raise ConfigError([Problem("broadcast", label, "the name is taken; give this one a name= of its own")])
        handler = Subscription(function, own_name, BroadcastOptions.checked(limits | dict(options)))
        app.broadcasts[label] = BroadcastRoute(topic, label, subscription=handler, filter=wanted, resumes=bool(name))
        return handler

    return declare
