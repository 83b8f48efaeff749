"""Permits of single tasks in a consumer thread, which asks for them once it has claimed messages of these tasks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from emsworker.core.errors import DecodeError, StoreError
from emsworker.core.model import GROUP_HEADER, TASK_HEADER, Claim, ClaimSource, Failure, Message
from emsworker.core.process.clock import ticks
from emsworker.store import Session
from emsworker.store.groups.task_limits import Asked, acquire, release
from emsworker.tasks.task import Route

log = logging.getLogger(__name__)

_QUICK_S = 0.1
_MOST_WOKEN = 100


class TaskPermits:
    """The permits and places that a thread has of the tasks of a group.

    Args:
        session: of the thread.
        group_id, route: of the group.
    """

    def __init__(self, session: Session, group_id: int, route: Route) -> None:
        self._session, self._group_id, self._group = session, group_id, route.group
        self._tasks = {name: task for name, task in route.tasks.items() if task.options.limit}
        self._places: tuple[str, dict[str, int]] | None = None  # of a client; how many messages it wakes by task

    @contextlib.contextmanager
    def ask(self, claim: Claim, client_id: str) -> Iterator[Mapping[int, Failure]]:
        """Ask for permits for a claim; yields the messages to be put aside, by offset, and gives the places back."""
        self.leave()
        found = self._by_task(claim)
        if not found:
            yield {}
            return
        is_back = claim.source is ClaimSource.RETRY
        asked = [Asked(name, len(found[name]), is_back, bool(self._tasks[name].together)) for name in sorted(found)]
        asides, places, began = dict[int, Failure](), dict[str, int](), ticks()
        for one, granted in zip(asked, acquire(self._session, self._group_id, client_id, asked), strict=True):
            if granted.has_slot:
                places[one.task] = granted.count
            error = f"waits for its turn: {self._tasks[one.task].options.limit} of task {one.task}"
            for message, due_at in zip(found[one.task][granted.count :], granted.due, strict=True):
                asides[message.offset] = Failure.set_aside(message, error, due_at)
        try:
            yield asides
        finally:
            if places:
                self._places = client_id, {name: self._woken(name, places[name], ticks() - began) for name in places}
                self.leave()

    def _woken(self, name: str, ran: int, took_s: float) -> int:
        """Return how many messages to wake: as many as may run, or a claim of those that run quickly in turn."""
        if self._tasks[name].together:
            return ran
        return min(2 * ran, _MOST_WOKEN) if took_s < _QUICK_S else 1

    def leave(self) -> None:
        """Release the places; if the server is away it is tried again, unless their lease ends before."""
        if self._places is None:
            return
        try:
            release(self._session, self._group_id, *self._places)
        except StoreError as error:
            log.info("places of tasks are given up later: %s", error)
        else:
            self._places = None

    def _by_task(self, claim: Claim) -> dict[str, list[Message]]:
        found: dict[str, list[Message]] = {}
        for message in claim.messages:
            try:
                headers = message.headers
            except DecodeError:
                continue
            name = headers.get(TASK_HEADER)
            if name in self._tasks and headers.get(GROUP_HEADER, self._group) == self._group:
                found.setdefault(name, []).append(message)
        return found
