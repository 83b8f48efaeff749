"""Health of a worker, as the supervisor sees its children; no server is asked, so a server that is away is no fault."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

_STUCK_S = 180.0  # of the supervisor's loop; longer than a call of the server may take


class ChildState(StrEnum):
    """State of a child process."""

    STARTING = "starting"
    WORKING = "working"
    AWAY = "away"
    ENDING = "ending"
    STALLED = "stalled"
    FROZEN = "frozen"
    CRASHED = "crashed"

    @property
    def progresses(self) -> bool:
        """True if the child makes progress, or will without help."""
        return self not in (ChildState.STALLED, ChildState.FROZEN, ChildState.CRASHED)


@dataclass(frozen=True)
class ChildView:
    """A child at one moment.

    Attributes:
        number: its index in the worker.
        pid: ``None`` between the end of one process and the start of the next.
        state: ``starting``; ``working``: takes messages; ``away``: the server does not answer it; ``ending``: told to
            end, or to be replaced; ``stalled``: a handler runs past its limit, or a thread makes no progress;
            ``frozen``: has sent no report for ten seconds; ``crashed``: keeps ending, and starts again after a pause.
        reason: of a state that is not the usual one.
    """

    number: int
    pid: int | None
    state: ChildState
    reason: str

    def __str__(self) -> str:
        return f"child {self.number} is {self.state}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class WorkerHealth:
    """A worker at one moment.

    Attributes:
        started: all children have been ready at once.
        stopping: it has been told to stop.
        turned_s: seconds since the supervisor's loop turned.
        starts: child processes that have been started so far.
        full: the error by which a server says that its disk is full; empty if it has room.
    """

    children: tuple[ChildView, ...]
    started: bool
    stopping: bool
    turned_s: float
    starts: int
    full: str = ""

    @property
    def unlive(self) -> str:
        """Why the worker cannot help itself: no child makes progress, or the supervisor hangs; empty if it can."""
        if self.turned_s > _STUCK_S:
            return f"the supervisor has made no progress for {self.turned_s:.0f} s"
        if self.stopping or any(child.state.progresses for child in self.children):
            return ""
        return self._reasons

    @property
    def unready(self) -> str:
        """Why the worker takes no messages now; empty if it does."""
        if self.stopping:
            return "the worker is stopping"
        if self.unstarted or any(child.state is ChildState.WORKING for child in self.children):
            return self.unstarted or (f"the disk of the server is full: {self.full}" if self.full else "")
        return self._reasons

    @property
    def unstarted(self) -> str:
        """Why the worker has not started yet; empty from when all children have been ready for the first time."""
        return "" if self.started else self._reasons

    @property
    def _reasons(self) -> str:
        return "; ".join(str(child) for child in self.children)

    def to_json(self, problem: str) -> dict[str, Any]:
        """Return the answer of a probe that found ``problem``, or nothing."""
        children = [asdict(child) for child in self.children]
        return {"ok": not problem, "reason": problem, "children": children}
