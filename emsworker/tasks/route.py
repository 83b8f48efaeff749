"""Routes, which find the handler of a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from emsworker.core.errors import ConfigError, Problem, UnknownTask
from emsworker.core.extension import task_maker
from emsworker.core.model import GROUP_HEADER, TASK_HEADER, Message, Order
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.tasks.handler import Handler, Subscription
from emsworker.tasks.task import Task


class PassedOver(Enum):
    """The marker of a call that a group neither runs nor refuses.

    ``PASSED_OVER``: its task belongs to another group of the topic; ``HELD``: its task is paused.
    """

    PASSED_OVER = auto()
    HELD = auto()


PASSED_OVER = PassedOver.PASSED_OVER
HELD = PassedOver.HELD


@dataclass
class Route:
    """The handlers of one group on one topic: its tasks by name, or one subscription for everything."""

    topic: str
    group: str
    tasks: dict[str, Task] = field(default_factory=dict)
    subscription: Subscription | None = None
    filter: Filter = EVERYTHING
    order: Order = Order.NONE
    _made: dict[str, Task] = field(default_factory=dict)

    def find(self, name: str) -> Task | None:
        """Return a task of the group: one that was declared, or one that an extension gives to groups with tasks."""
        found = self.tasks.get(name) or self._made.get(name)
        if found is None and self.tasks and (make := task_maker(name)) is not None:
            found = make(self, name)
            if found is not None:
                self._made[name] = found
        return found

    def declare_order(self, wanted: str | None) -> None:
        """Set the order in which the group runs, as a handler asks for it.

        Raises:
            ConfigError: there is no such order, another handler of the group asked for another one, or a handler
                takes several messages at once.
        """
        if wanted is None:
            return
        if wanted not in tuple(Order):
            raise ConfigError(
                [Problem("order", repr(wanted), f"must be one of {', '.join(map(repr, map(str, Order)))}")]
            )
        if self.order not in (Order.NONE, wanted):
            fix = f"another handler of {self.topic}/{self.group} asks for {str(self.order)!r}; a group has one order"
            raise ConfigError([Problem("order", repr(wanted), fix)])
        self.order = Order(wanted)

    def check_order(self, order: Order) -> None:
        """Refuse handlers that cannot keep the group's order.

        Raises:
            ConfigError: one takes several messages in a call.
        """
        for handler in self.handlers:
            if order is not Order.NONE and handler.options.batch:
                fix = f"group {self.group!r} runs in order ({order}), one message at a time: leave out batch"
                raise ConfigError([Problem(handler.name, f"batch={handler.options.batch}", fix)])

    @property
    def handlers(self) -> list[Handler]:
        """All handlers of the group."""
        return [*self.tasks.values(), *([self.subscription] if self.subscription is not None else [])]

    @property
    def concurrency(self) -> int:
        """The most messages that an async handler of the group may run at once; 0 if it has none."""
        return max((handler.together for handler in self.handlers if handler.is_async), default=0)

    @property
    def at_once(self) -> bool:
        """True if a thread may run several of its messages at once."""
        return any(handler.together for handler in self.handlers)

    def resolve(self, message: Message) -> Handler | PassedOver:
        """Return the handler of a message, or ``PASSED_OVER`` for a call of a task that another group runs.

        Raises:
            UnknownTask: no task of that name is known here, and no other group was to run it.
            DecodeError: its headers are damaged.
        """
        if self.subscription is not None:
            return self.subscription
        name = message.headers.get(TASK_HEADER)
        task = self.tasks.get(name) if name is not None else None
        if task is None and name and message.headers.get(GROUP_HEADER, self.group) != self.group:
            return PASSED_OVER
        task = task or (self.find(name) if name else None)
        if task is None:
            what = f"task {name!r} is not known to this worker" if name else "the message names no task"
            raise UnknownTask(f"{what}; known in {self.topic}/{self.group}: {', '.join(sorted(self.tasks)) or 'none'}")
        return task
