"""Calls of tasks: their options, and the messages that they are sent as."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.durations import LONGEST_S
from emsworker.core.errors import ConfigError, Problem, WrongArguments
from emsworker.core.model import EXPIRES_HEADER, GROUP_HEADER, TASK_HEADER
from emsworker.core.options import is_number, refuse_reserved
from emsworker.publish.outgoing import MESSAGE_OPTIONS, DeliveryOptions, Outgoing, SendOptions


class ManyOptions(DeliveryOptions, total=False):
    """Options that many calls of a task have in common, for type checkers; see :meth:`Task.delay_many`."""

    topic: str | None
    expires: float | datetime | None


class CallOptions(ManyOptions, total=False):
    """Options of a task's call, for type checkers; see :meth:`Task.apply_async`."""

    task_id: str | None
    transaction: Any


CALLED_WITH = MESSAGE_OPTIONS - {"uid"} | {"topic", "expires", "task_id", "transaction"}


@dataclass(frozen=True)
class CallTarget:
    """The target of a call: its task's name, and the topic and group that run it."""

    task: str
    topic: str
    group: str


def call_body(task: str, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments of a call as they are sent.

    Raises:
        WrongArguments: they are not a list and a dict by names.
    """
    kwargs = {} if kwargs is None else kwargs
    if type(args) is tuple and type(kwargs) is dict and not kwargs:  # the usual call
        return [list(args), {}]
    if isinstance(args, str | bytes | Mapping) or not isinstance(args, Iterable):
        raise WrongArguments(
            f"args of task {task!r} is a {type(args).__name__}; give a list or tuple; nothing was sent"
        )
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise WrongArguments(f"kwargs of task {task!r} must be a dict by names of arguments; nothing was sent")
    return [list(args), dict(kwargs)]


def prepare_call(
    target: CallTarget,
    body: list[Any],
    expires: float | datetime | None,
    task_id: str | None,
    options: DeliveryOptions,
    server_time: Callable[[float | datetime], datetime],
) -> Outgoing:
    """Return a call as it is sent; the arguments and errors are those of :meth:`Task.apply_async`.

    Args:
        body: made by :func:`call_body`.
        server_time: :meth:`Ems.server_time`.
    """
    headers = {TASK_HEADER: target.task, GROUP_HEADER: target.group}
    if given := options.pop("headers", None):
        refuse_reserved(given)
        headers = Outgoing(target.topic, None, headers=given).headers | headers
    if expires is not None:
        headers[EXPIRES_HEADER] = server_time(_checked_expiry(expires)).isoformat()
    wanted: SendOptions = {**options, "headers": headers, "uid": task_id}
    return Outgoing(target.topic, body, **wanted)


def _checked_expiry(expires: Any) -> float | datetime:
    if isinstance(expires, datetime):
        return expires
    if not is_number(expires) or not -LONGEST_S <= expires <= LONGEST_S:
        raise ConfigError([Problem("expires", repr(expires), "must be a number of seconds, or a datetime")])
    return float(expires)
