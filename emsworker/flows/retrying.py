"""Decides from which step a flow is run again."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.extending.errors import WrongArguments
from emsworker.flows.rows import CALL, UNDO, StepRow, name_of_undo


def first_step(flow: str, steps: Sequence[StepRow], wanted: int | str | None) -> int | None:
    """Return the number of the first step that is forgotten; ``None`` for what failed last.

    Args:
        flow: its id.
        steps: those that were recorded.
        wanted: a number, or the name of a step; of several with this name the first is meant.

    Raises:
        WrongArguments: there is no such step; or steps were undone, and nobody says which of them are to run again.
    """
    if wanted is None:
        if _was_undone(steps):
            raise WrongArguments(
                f"steps of flow {flow!r} were undone, so it cannot go on where it ended; name the first step that is "
                "to run again (--from STEP; --from 1 is the whole flow)"
            )
        return None
    for row in steps:
        if wanted in (row.number, str(row.number), row.name):
            return row.number
    names = ", ".join(dict.fromkeys(row.name for row in steps)) or "none"
    raise WrongArguments(f"flow {flow!r} has no step {wanted!r}; it has recorded {names}")


def _was_undone(steps: Sequence[StepRow]) -> bool:
    undos = {name_of_undo(row) for row in steps if row.kind == UNDO}
    return any(row.kind == CALL and row.name in undos for row in steps)
