"""Permits of single tasks in a consumer thread, which asks for them once it has claimed messages of these tasks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence

from emsworker.core.errors import DecodeError, StoreError
from emsworker.core.model import GROUP_HEADER, TASK_HEADER, Claim, ClaimSource, Failure, Message
from emsworker.core.process.clock import ticks
from emsworker.core.run import UNWATCHED
from emsworker.store import Session
from emsworker.store.groups.task_limits import Asked, Granted, Returned, acquire, release
from emsworker.tasks.route import Route

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
        self._owed: tuple[str, list[Returned]] | None = None  # by a client

    @contextlib.contextmanager
    def ask(self, claim: Claim, client_id: str) -> Iterator[Mapping[int, Failure]]:
        """Ask for permits for a claim; yields the messages to be put aside, by offset, and gives back what is left."""
        self.leave()
        found = self._by_task(claim)
        if not found:
            yield {}
            return
        is_back = claim.source is ClaimSource.RETRY
        asked = [Asked(name, len(found[name]), is_back, bool(self._tasks[name].together)) for name in sorted(found)]
        granted, began = acquire(self._session, self._group_id, client_id, asked), ticks()
        postponed = dict[int, Failure]()
        for one, permits in zip(asked, granted, strict=True):
            error = f"waits for its turn: {self._tasks[one.task].options.limit} of task {one.task}"
            for message, due_at in zip(found[one.task][permits.count :], permits.due, strict=True):
                postponed[message.offset] = Failure.postponed(message, error, due_at)
        try:
            yield postponed
        finally:
            took_s = ticks() - began
            returned = [
                _returned(one, permits, found[one.task], took_s) for one, permits in zip(asked, granted, strict=True)
            ]
            owed = [one for one in returned if one.unstarted or one.unwritten or one.woken is not None]
            if owed:
                self._owed = client_id, owed
                self.leave()

    def leave(self) -> None:
        """Give back what is owed; if the server is away that is tried again."""
        if self._owed is None:
            return
        try:
            release(self._session, self._group_id, *self._owed)
        except StoreError as error:
            log.info("permits and places of tasks are given back later: %s", error)
        else:
            self._owed = None

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


def _returned(asked: Asked, granted: Granted, messages: Sequence[Message], took_s: float) -> Returned:
    """Return what is left of permits after a claim: some of its messages may have been given back untouched."""
    untouched = [number for number, message in enumerate(messages) if message.run is UNWATCHED]
    unstarted = sum(number < granted.count for number in untouched)
    unwritten = len(untouched) - unstarted if granted.is_timed else 0
    if not granted.has_slot:
        return Returned(asked, unstarted, unwritten, None)
    if asked.at_once:
        return Returned(asked, unstarted, unwritten, granted.count)
    # As many as may run; of those that run quickly one after another, a claim for the next one.
    woken = min(max(1, 2 * (granted.count - unstarted)), _MOST_WOKEN) if took_s < _QUICK_S else 1
    return Returned(asked, unstarted, unwritten, woken)
