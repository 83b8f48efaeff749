"""Findings and rules of the checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """Kind of a finding."""

    LOST = "lost"
    PHANTOM = "phantom"
    DUPLICATE = "duplicate"
    ORDER = "order"
    EFFECT = "effect"
    CLAIMED_TWICE = "claimed twice"
    NOT_THE_OWNER = "acknowledged by a non-owner"
    OFFSET_REUSED = "offset reused"
    HOLE = "hole"
    CLIENT_LEFT = "client left"
    CANCELLED = "run though cancelled"
    STUCK = "stuck"


@dataclass(frozen=True)
class Violation:
    """Violation that the checker found.

    Attributes:
        where: topic/partition/offset, a range of them, or a client.
        group: the group in which it occurred, or ``None``.
    """

    kind: Kind
    where: str
    text: str
    group: str | None = None

    def __str__(self) -> str:
        group = f" in group {self.group}" if self.group else ""
        return f"{self.kind.value}: {self.where}{group}: {self.text}"


@dataclass(frozen=True)
class Rules:
    """Rules of a check: tolerances and known facts.

    Attributes:
        bound_s: the maximum time before a fault at which a finished run may have ended and yet be repeated: the
            interval between two acked offsets, and the duration of a commit.
        healing_s: the maximum time after a fault at which it may still have consequences: for example, a lease has to
            expire.
        effects: by group, the number of each message's effects in the database, for transactional groups.
        settled: no work is left, so every hole should be closed, every effect be present, and nothing wait.
        client_grace_s: the maximum time for which a client row may remain after its lease.
        read_ahead_s: the maximum time after its cancellation at which a message may still be run by a client that had
            read it.
    """

    bound_s: float = 0.5
    healing_s: float = 20.0
    effects: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    settled: bool = False
    client_grace_s: float = 30.0
    read_ahead_s: float = 30.0


@dataclass(frozen=True)
class ChaosReport:
    """Result of a check.

    Attributes:
        confirmed: sends that were confirmed; runs: runs that finished a message.
        repeated: the number of these that were repeated for a known reason.
    """

    asked: int
    confirmed: int
    runs: int
    repeated: int
    findings: Sequence[Violation]

    @property
    def counts(self) -> Counter[Kind]:
        """Number of findings of each kind."""
        return Counter(finding.kind for finding in self.findings)

    def __bool__(self) -> bool:
        return not self.findings
