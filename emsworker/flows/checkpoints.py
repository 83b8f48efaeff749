"""Checkpoints of a process, merged: those of many flows that come while one commit is under way share the next one.

The idea is that of a database's group commit, and of the producer's merged sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from emsworker.extending.errors import StoreUnavailable
from emsworker.extending.processes import forks
from emsworker.flows.rows import FlowRow, StepRow

_MOST = 200


@dataclass(slots=True)
class Checkpoint:
    """A step that has ended, to be recorded.

    Attributes:
        recorded: set once that is known: false if the run is not the flow's present one.
    """

    flow: FlowRow
    step: StepRow
    recorded: Future[bool] = field(default_factory=Future)


class Checkpoints:
    """Records checkpoints; thread-safe.

    Args:
        record: records some, of flows that differ, in one commit; it returns for each whether it was. It may be called
            again for one that it has recorded.
    """

    def __init__(self, record: Callable[[Sequence[Checkpoint]], Sequence[bool]]) -> None:
        self._record = record
        self._waiting: deque[Checkpoint] = deque()
        self._turn, self._lock = forks.Lock(), forks.Lock()
        self._drains = False

    def settle(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is recorded: by this thread, with those that wait, or by one before it."""
        self._waiting.append(checkpoint)
        while not checkpoint.recorded.done():
            with self._turn:
                if not checkpoint.recorded.done():
                    self._record_waiting(checkpoint)
        return checkpoint.recorded.result()

    def submit(self, checkpoint: Checkpoint, start: Callable[[Callable[[], None]], None]) -> Future[bool]:
        """Record a checkpoint with those that wait, by a thread that has been started or is now; for coroutines.

        Args:
            start: has a thread run a call.
        """
        self._waiting.append(checkpoint)
        with self._lock:
            begins, self._drains = not self._drains, True
        if begins:
            start(self._drain)
        return checkpoint.recorded

    def _drain(self) -> None:
        goes_on = True
        while goes_on:
            with self._turn:
                self._record_waiting(None)
            with self._lock:
                self._drains = goes_on = bool(self._waiting)

    def _record_waiting(self, own: Checkpoint | None) -> None:
        some: dict[int, Checkpoint] = {}
        while self._waiting and len(some) < _MOST and self._waiting[0].flow.id not in some:
            one = self._waiting.popleft()
            some[one.flow.id] = one
        try:
            for one, recorded in zip(some.values(), self._record_each([*some.values()]), strict=True):
                if isinstance(recorded, Exception):
                    one.recorded.set_exception(recorded)
                else:
                    one.recorded.set_result(recorded)
        except BaseException:  # from outside, as a time limit's: it concerns this thread alone
            self._waiting.extendleft(one for one in some.values() if one is not own and not one.recorded.done())
            raise

    def _record_each(self, some: Sequence[Checkpoint]) -> Sequence[bool | Exception]:
        """Record together; if that fails, each alone, so that none fails for another's sake."""
        try:
            return self._record(some)
        except Exception as error:
            if len(some) == 1 or isinstance(error, StoreUnavailable):
                return [error] * len(some)
            return [self._record_each([one])[0] for one in some]
