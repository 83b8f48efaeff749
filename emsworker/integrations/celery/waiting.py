"""Waiting for results, as Celery's result objects do it."""

from __future__ import annotations

import logging
from typing import Any

from celery import states
from celery.backends.asynchronous import BaseResultConsumer
from kombu.exceptions import KombuError

from emsworker.core.errors import EmsError
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

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Look at once: somebody begins to wait."""
        self.backend.poller.hurry()

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for news, at most ``timeout`` seconds."""
        self.backend.wait_for_news(self._waiter, 1.0 if timeout is None else timeout)
        values = self._waiter.values
        while values:
            self.on_state_change(self._meta_of(*values.popleft()), None)

    def _meta_of(self, key: bytes, value: bytes) -> dict[str, Any]:
        """Decode a result; one that cannot be read fails those who wait for it, and nobody else."""
        try:
            meta: dict[str, Any] = self.backend.decode_result(value)
        except UNREADABLE as error:
            task_id = key.removeprefix(self.backend.task_keyprefix).decode(errors="replace")
            log.warning("the result of task %s cannot be read: %s", task_id, error)
            return {"task_id": task_id, "status": states.FAILURE, "result": error, "traceback": None, "children": []}
        return meta
