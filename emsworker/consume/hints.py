"""The choice of the hint that a consumer thread follows: fair among groups and partitions, higher priorities first.

Waiting claims (given back, or replayed) alternate with the rest, and within the rest retries with new messages: a
replay may leave waiting claims for hours of work, and new messages must not wait for all of it. Of a group's new and
given-back messages only those of the highest level are candidates, except every tenth time: then all are, and the one
that has waited longest comes first, so that a flood of higher levels does not starve lower ones. Among equals the one
that was chosen longest ago comes next; at first one at random, because a process that dies of its first choice is
replaced by one that must not make the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from emsworker.core.partitioner import level_of
from emsworker.core.work import AvailableWork

AGING_EVERY = 10


@dataclass(frozen=True)
class Hint:
    """A place where work may be: a waiting claim, due retries, or messages in a partition.

    A group that runs in order has only partitions, and they are ``exclusive``: one client at a time works there.
    Hints of a group with limits, or with paused tasks (``held``), are ``limited``: following one needs permits.
    Messages that are ``announced`` are just being committed.
    """

    group_id: int
    kind: str
    partition: int = 0
    exclusive: bool = False
    limited: bool = False
    held: bool = False
    announced: bool = field(default=False, compare=False)

    @property
    def level(self) -> int:
        """Priority level."""
        return level_of(self.partition)


def hints_of(group_id: int, work: AvailableWork, *, exclusive: bool = False) -> list[Hint]:
    """Return the places where a group has work, the highest level first."""
    hints = [Hint(group_id, "waiting", work.highest_waiting)] if work.waiting else []
    hints += [Hint(group_id, "retries")] if work.retries else []
    partitions = sorted(work.partitions, reverse=True)
    return hints + [Hint(group_id, "stream", partition, exclusive) for partition in partitions]


class Chooser:
    """Chooses among hints and remembers its choices; not thread-safe."""

    def __init__(self) -> None:
        self._retries_turn = self._waiting_turn = True
        self._turn = 0
        self._last_turn: dict[Hint, float] = {}
        self._claims: Counter[int] = Counter()  # of groups with several levels, since each level last had a chance

    def choose(self, hints: Sequence[Hint]) -> Hint:
        """Return the hint to follow now; there must be at least one."""
        tops = _tops(hints)
        best = min(hints, key=lambda hint: (self._outranked(hint, tops), self._rank(hint), self._last(hint)))
        self._turn += 1
        self._last_turn[best] = self._turn
        self._waiting_turn = best.kind != "waiting"
        if best.kind != "waiting":
            self._retries_turn = best.kind == "stream"
        if best.kind != "retries" and best.group_id in tops:
            self._claims[best.group_id] = (self._claims[best.group_id] + 1) % AGING_EVERY
        return best

    def _rank(self, hint: Hint) -> int:
        if hint.kind == "waiting":
            return 0 if self._waiting_turn else 3
        return 1 if (hint.kind == "retries") == self._retries_turn else 2

    def _outranked(self, hint: Hint, tops: dict[int, int]) -> bool:
        ages = self._claims[hint.group_id] == AGING_EVERY - 1
        return hint.kind != "retries" and hint.level < tops.get(hint.group_id, 0) and not ages

    def _last(self, hint: Hint) -> float:
        return self._last_turn.setdefault(hint, -random.random())


def _tops(hints: Sequence[Hint]) -> dict[int, int]:
    """Return the highest level of each group that has messages, unless it is the lowest one."""
    tops: dict[int, int] = {}
    for hint in hints:
        if hint.kind != "retries" and hint.level > tops.get(hint.group_id, 0):
            tops[hint.group_id] = hint.level
    return tops
