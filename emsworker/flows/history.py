"""The history of a flow: which steps were recorded, and which of them the present run has asked for.

A step is known by its kind, its name and its place among those of that name in its branch. It is pure: no thread, no
connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from emsworker.flows.branches import is_within
from emsworker.flows.errors import FlowChanged
from emsworker.flows.rows import StepRow


class FlowHistory:
    """The recorded steps of one run.

    Args:
        steps: in the order in which they began.
        next_number: the least number that no step has had.
        in_order: steps are asked for one after another, as a plain function does. Coroutines that run side by side ask
            in an order of their own, so a change is found only when they all wait, or the flow ends.
    """

    def __init__(self, steps: Sequence[StepRow], next_number: int, *, in_order: bool) -> None:
        self._rows: dict[tuple[str, str, int], StepRow] = {}
        self._in_order = in_order
        self._asked: Counter[tuple[str, str]] = Counter()
        self._next_number = max([next_number, *(row.number + 1 for row in steps)])
        seen: Counter[tuple[str, str]] = Counter()
        for row in steps:
            self._rows[row.branch, row.name, seen[row.branch, row.name]] = row
            seen[row.branch, row.name] += 1
        self._unasked = dict.fromkeys(self._rows)

    def is_replayed(self, branch: str = "") -> bool:
        """Return whether a branch has asked for all that was recorded in it and below it: what it does now is new."""
        return not any(is_within(path, branch) for path, _, _ in self._unasked)

    def find(self, kind: str, name: str, branch: str = "") -> StepRow | None:
        """Return the recorded step that the flow asks for, or ``None`` if it is new.

        Raises:
            FlowChanged: another one was recorded in its place.
        """
        place = branch, name, self._asked[branch, name]
        row = self._rows.get(place)
        self._asked[branch, name] += 1
        if row is None:
            if self._in_order and self._unasked:
                raise self._changed(kind, name)
            return None
        if row.kind != kind or (self._in_order and next(iter(self._unasked)) != place):
            raise self._changed(kind, name)
        del self._unasked[place]
        return row

    def knows(self, kind: str, name: str, branch: str = "") -> bool:
        """Return whether the step that the flow may ask for next was recorded; nothing is asked for."""
        place = branch, name, self._asked[branch, name]
        row = self._rows.get(place)
        return row is not None and row.kind == kind and (not self._in_order or next(iter(self._unasked)) == place)

    def add(self, row: StepRow) -> None:
        """Record a new step, which has been asked for."""
        self._rows[row.branch, row.name, self._asked[row.branch, row.name] - 1] = row

    def rows(self) -> list[StepRow]:
        """Return all steps, the new ones too."""
        return sorted(self._rows.values(), key=lambda row: row.number)

    def new_number(self) -> int:
        """Return the number of a new step."""
        self._next_number += 1
        return self._next_number - 1

    def check_all_asked(self) -> None:
        """Check that the flow has asked for everything that was recorded.

        Raises:
            FlowChanged: it has not.
        """
        if self._unasked:
            raise self._changed(None, "nothing more")

    def _changed(self, kind: str | None, name: str) -> FlowChanged:
        first = self._rows[next(iter(self._unasked))] if self._unasked else None
        recorded = "nothing" if first is None else f"{first.kind} {first.name!r} (step {first.number})"
        asked = f"{kind} {name!r}" if kind else name
        return FlowChanged(
            f"the flow's code has changed: it asks for {asked} where {recorded} was recorded; run it with the code "
            "that it began with, or guard the change with flow.patched()"
        )
