"""Waiting for results: one query at a time asks for all that a process waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import states
from celery.backends.asynchronous import BaseResultConsumer

from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

_POLL_MIN_S, _POLL_MAX_S = 0.003, 0.2
_SHARE = 0.1  # of the time without news: what waiting longer adds to it at most
_LOAD = 4  # pauses are at least so many times as long as a query takes


class Pace:
    """Pause between two looks: a tenth of the time without news, so that who waits long asks seldom."""

    def __init__(self) -> None:
        self._news_at = 0.0

    def news(self) -> None:
        """Start again with the shortest pause."""
        self._news_at = ticks()

    def pause_s(self, cost_s: float) -> float:
        """Return the seconds until the next look.

        Args:
            cost_s: how long the last look took.
        """
        quiet = (ticks() - self._news_at) * _SHARE
        return max(min(max(quiet, _POLL_MIN_S), _POLL_MAX_S), _LOAD * cost_s)


class ResultConsumer(BaseResultConsumer):  # type: ignore[misc]
    """Polls for the results that the threads of a process wait for; one of them asks, and the others wait for it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._find: Callable[[list[str]], dict[str, Any]] = self.backend.find_metas
        self._pace = Pace()
        self._wanted: dict[str, Any] = {}  # by id: the last state that was passed on, {} before
        self.on_after_fork()

    def on_after_fork(self) -> None:
        """Forget what the parent process waits for."""
        self._wanted.clear()
        self._turn = forks.Lock()
        self._looked = forks.Condition()
        self._hurry = forks.Event()

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        """Wait for a task."""
        self.consume_from(initial_task_id)

    def stop(self) -> None:
        """Wait for nothing more."""
        self._wanted.clear()

    def consume_from(self, task_id: str) -> None:
        """Wait for a task, too."""
        if task_id not in self._wanted:
            self._wanted[task_id] = {}
            self._pace.news()
            self._hurry.set()

    def cancel_for(self, task_id: str) -> None:
        """Wait for a task no longer; called by the garbage collector, it takes no lock."""
        self._wanted.pop(task_id, None)

    def on_state_change(self, meta: dict[str, Any], message: Any) -> None:
        """Pass a state on; an outcome is the last one."""
        super().on_state_change(meta, message)
        if meta["status"] in states.READY_STATES:
            self.cancel_for(meta["task_id"])

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Look at once: somebody begins to wait."""
        self._pace.news()
        self._hurry.set()

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for news, at most ``timeout`` seconds."""
        ends_at = ticks() + (1.0 if timeout is None else timeout)
        if not self._turn.acquire(blocking=False):
            with self._looked:
                self._looked.wait(min(max(ends_at - ticks(), 0.0), _POLL_MAX_S))
            return
        try:
            news = self._look_until(ends_at)
        finally:
            self._turn.release()
        for meta in news:  # without the turn: a callback may wait for another result
            self.on_state_change(meta, None)
        with self._looked:
            self._looked.notify_all()

    def _look_until(self, ends_at: float) -> list[dict[str, Any]]:
        while True:
            self._hurry.clear()
            began = ticks()
            news = self._look()
            if news:
                self._pace.news()
                return news
            left = ends_at - ticks()
            if left <= 0:
                return []
            self._hurry.wait(min(self._pace.pause_s(ticks() - began) if self._wanted else left, left))

    def _look(self) -> list[dict[str, Any]]:
        wanted = list(self._wanted)
        news = []
        for task_id, meta in (self._find(wanted) if wanted else {}).items():
            if self._wanted.get(task_id, meta) != meta:
                self._wanted[task_id] = meta
                news.append(meta)
        return news
