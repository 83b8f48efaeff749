"""Finds the step from which a flow is to be run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emsworker.extending.errors import WrongArguments
from emsworker.flows.rows import UNDONE, StepRow

AGAIN, RUNS, ENDED_WELL, UNDONE_FLOW, LOST, GONE = "again", "runs", "ended", "undone", "lost", "gone"
"""What has become of a call that has failed: it can be run again; it is run again; it was, and has ended well; it is a
flow whose steps were undone; it has never been run; or nobody knows."""


def first_step(flow: str, steps: Sequence[StepRow], wanted: int | str | None) -> int | None:
    """Return the number of the first step that is forgotten; ``None`` for what failed last.

    Args:
        flow: its id.
        steps: those that were recorded.
        wanted: a number, or the name of a step; of several with this name the first is meant.

    Raises:
        WrongArguments: there is no such step, or steps were undone.
    """
    if wanted is None:
        return None
    if was_undone(steps):
        raise refusal(flow)
    for row in steps:
        if wanted in (row.number, str(row.number), row.name):
            return row.number
    names = ", ".join(dict.fromkeys(row.name for row in steps)) or "none"
    raise WrongArguments(f"flow {flow!r} has no step {wanted!r}; it has recorded {names}")


def was_undone(steps: Sequence[StepRow]) -> bool:
    """Return whether the flow has begun to undo its steps."""
    return any(row.kind == UNDONE for row in steps)


def refusal(flow: str) -> WrongArguments:
    """Return the error of running a flow again whose steps were undone."""
    return WrongArguments(f"steps of flow {flow!r} were undone, so it cannot go on; start it anew with another id")


def can_call_again(flow: str, row: StepRow, found: Mapping[int, str]) -> bool:
    """Return whether the failed calls of a step can be run again as they are; false if the step is to be forgotten.

    Args:
        flow: its id.
        found: what has become of each call that has failed, by its number.

    Raises:
        WrongArguments: one cannot be, and to make all calls of the step again could have their effects twice.
    """
    number, state = next(((number, one) for number, one in found.items() if one in _WHY), (0, AGAIN))
    if state == AGAIN:
        return True
    if row.total == 1 and state != GONE:
        return False
    raise WrongArguments(
        f"flow {flow!r}: call {number} of step {row.name!r} {_WHY[state]}; `--from {row.number}` makes all calls of "
        "that step again, those too that have ended well"
    )


_WHY = {
    GONE: "is no dead letter any more: if it was requeued, it has taken effect",
    UNDONE_FLOW: "is a flow whose steps were undone",
    LOST: "was cancelled, skipped or deleted",
}
