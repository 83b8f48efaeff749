"""Finds the step from which a flow is to be run again."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.extending.errors import WrongArguments
from emsworker.flows.rows import UNDONE, StepRow


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
