"""What the checker found, and what it goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What can be wrong."""

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


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, in words.

    Attributes:
        where: topic/partition/offset, a range of them, or a client.
        group: in which it is wrong, or ``None``.
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
    """What the checker is told about the run that it judges.

    Attributes:
        bound_s: how long before a fault a finished run may have ended and yet be repeated: what finishes between two
            acked offsets, and how long a commit takes.
        healing_s: how long after a fault something may still come of it: a lease has to run out, say.
        effects: by group, how often each message's effect is in the database, for transactional groups.
        settled: nothing is left to do, so every hole should be closed, and every effect be there.
        client_grace_s: for how long a client row may be left after its lease.
        read_ahead_s: for how long after its cancellation a message may still be run by somebody who had read it.
    """

    bound_s: float = 0.5
    healing_s: float = 20.0
    effects: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    settled: bool = False
    client_grace_s: float = 30.0
    read_ahead_s: float = 30.0


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        confirmed: sends that were confirmed; runs: runs that finished a message.
        repeated: of these, how many came again with good reason.
    """

    asked: int
    confirmed: int
    runs: int
    repeated: int
    findings: Sequence[Finding]

    @property
    def counts(self) -> Counter[Kind]:
        """How often each kind was found."""
        return Counter(finding.kind for finding in self.findings)

    def __bool__(self) -> bool:
        return not self.findings
