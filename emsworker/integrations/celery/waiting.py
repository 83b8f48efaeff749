"""Waiting for results, as Celery's result objects do it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

from celery import states
from celery.backends.asynchronous import BaseResultConsumer
from celery.exceptions import TimeoutError
from celery.result import AsyncResult, GroupResult
from kombu.exceptions import KombuError

from emsworker.extending.errors import EmsError
from emsworker.extending.processes import ticks
from emsworker.extending.values import counted
from emsworker.integrations.celery.bodies import Total
from emsworker.integrations.celery.poller import Waiter

log = logging.getLogger(__name__)

UNREADABLE = (EmsError, KombuError, ValueError, TypeError, KeyError, AttributeError)
"""Errors of a result that is damaged, or over the budget: anybody may write one by SQL."""


class ResultConsumer(BaseResultConsumer):
    """Waits for the results that one thread, or greenlet, wants; see :class:`ResultPoller`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiter = Waiter()

    def on_after_fork(self) -> None:
        """Forget what the parent process waits for."""
        self._waiter.clear()

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        """Wait for a task."""
        self.consume_from(initial_task_id)

    def stop(self) -> None:
        """Wait for nothing more."""
        self._waiter.clear()

    def consume_from(self, task_id: str) -> None:
        """Wait for a task, too."""
        key = self.backend.get_key_for_task(task_id)
        if key not in self._waiter:
            self._waiter.add(key)
            self.backend.poller.hurry()

    def cancel_for(self, task_id: str) -> None:
        """Wait for a task no longer."""
        self._waiter.discard(self.backend.get_key_for_task(task_id))

    def on_state_change(self, meta: dict[str, Any], message: Any) -> None:
        """Pass a state on; an outcome is the last one."""
        super().on_state_change(meta, message)
        if meta["status"] in states.READY_STATES:
            self.cancel_for(meta["task_id"])

    def first_of(self, task_id: str) -> Any | None:
        """Return the only object of a task that Celery before 5.7 tells of its end; ``None`` with a later Celery."""
        if not hasattr(self, "_get_pending_result"):
            return None
        concrete, weak = self._pending_results
        return concrete.get(task_id, weak.get(task_id))

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Look at once: somebody begins to wait."""
        self.backend.poller.hurry()

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for news, at most ``timeout`` seconds."""
        self.backend.wait_for_news(self._waiter, 1.0 if timeout is None else timeout)
        values = self._waiter.values
        while values:
            self.on_state_change(self.meta_of(*values.popleft()), None)

    def meta_of(self, key: bytes, value: bytes) -> dict[str, Any]:
        """Decode a result; one that cannot be read fails those who wait for it, and nobody else."""
        try:
            meta: dict[str, Any] = self.backend.decode_result(value)
        except UNREADABLE as error:
            task_id = key.removeprefix(self.backend.task_keyprefix).decode(errors="replace")
            log.warning("the result of task %s cannot be read: %s", task_id, error)
            return {"task_id": task_id, "status": states.FAILURE, "result": error, "traceback": None, "children": []}
        return meta


def wait_with(first: Any, result: Any) -> None:
    """Pass the outcome of a task on from the object that Celery tells of it to another one of the same task.

    Args:
        first: what Celery keeps until the task has ended.
        result: what waits, too; a group is told by its members.
    """
    if first is result or not isinstance(result, AsyncResult) or getattr(result, "_waits_with", None) is first:
        return
    result._waits_with = first  # Celery may refer to it weakly
    first.on_ready.then(lambda told: result._maybe_set_cache(told._cache))


def wait_for_members(backend: Any, group: GroupResult, timeout_s: float | None, total: Total) -> None:
    """Wait until all tasks of a group, and of the groups in it, have ended.

    Celery's own ``join_native`` returns before their ends what it was given of a group in a chord.

    Args:
        backend: where their results are.
        group: the group; its members know their results afterwards.
        timeout_s: how long at most; ``None`` for ever.
        total: their results, which are all kept.

    Raises:
        TimeoutError: some have not ended; Celery's.
        DecodeError, ContentRefused: a result is damaged, or all of them are too large together.
    """
    members = {backend.get_key_for_task(one.id): one for one in _members(group)}
    waiter, ends_at = Waiter(), math.inf if timeout_s is None else ticks() + timeout_s
    for key in members:
        waiter.add(key)
    backend.poller.hurry()
    while members:
        if (left := ends_at - ticks()) <= 0:
            raise TimeoutError(f"group {group.id} has not ended: it has {counted(len(members), 'task')}")
        backend.wait_for_news(waiter, left)
        while waiter.values:
            key, value = waiter.values.popleft()
            backend.add_to(total, value)
            meta = backend.result_consumer.meta_of(key, value)
            if meta["status"] in states.READY_STATES:
                waiter.discard(key)
                members.pop(key)._maybe_set_cache(meta)


def values_of(group: GroupResult) -> list[Any]:
    """Return the results of a group whose tasks have ended, groups in it as lists, or raise the first failure."""
    return [values_of(one) if isinstance(one, GroupResult) else one.maybe_throw() for one in group.results]


def _members(group: GroupResult) -> Iterator[AsyncResult]:
    for one in group.results:
        if isinstance(one, GroupResult):
            yield from _members(one)
        else:
            yield one
