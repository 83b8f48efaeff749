"""Claims whose owners are gone, as recovery finds and judges them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from emsworker.core.model import Claim


class Place(NamedTuple):
    """Identity of a claim's row, and the names of its topic and group, which are empty if those have been deleted.

    Attributes:
        client_id: its owner.
        named: its owner has recorded which message runs, because that has the process to itself.
    """

    group_id: int
    topic_id: int
    partition: int
    lo: int
    claim_id: int
    topic: str = ""
    group: str = ""
    client_id: str = ""
    named: bool = False


@dataclass(frozen=True)
class Lost:
    """A claim whose owner is gone or hangs, with its row locked.

    Attributes:
        running: the message that its owner had started and not ended, if the owner recorded it.
        orphaned: its owner has no valid lease; otherwise it has one, and the claim's deadline has passed.
        over_s: seconds since the owner's lease expired; ``None`` if the owner was deregistered.
        ladder, max_attempts: of the group; ``None`` if the group has been deleted.
    """

    place: Place
    claim: Claim
    running: int | None
    orphaned: bool
    over_s: float | None
    ladder: str | None
    max_attempts: int | None


@dataclass(frozen=True)
class Suspect:
    """The first message of a lost claim that was not finished.

    Attributes:
        attempt: the number of the run that was lost.
        headers: as they are stored; empty if the message is gone.
        uid: of the message; ``None`` if it is gone.
    """

    offset: int
    attempt: int
    headers: bytes
    uid: bytes | None = None
