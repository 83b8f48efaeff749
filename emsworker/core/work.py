"""Work of a group: where there is some, who claims it, and why a claim came back empty."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from emsworker.core.codec import Decoder
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Group, Isolation, Topic

FEW = 32  # a first crash in a claim of 500 costs its next owners 16 commits, a second one 32
"""The most messages of a claim with ``Isolation.FEW``."""


Place = tuple[int, int, int]
"""Of a message in a group: the group's id, partition and offset."""


@dataclass(frozen=True)
class Claimant:
    """A client that claims work of a group, and the most that it claims.

    Attributes:
        permitted: True if permits were acquired; without them nothing of a group with limits is claimed.
        knows_held: True if it has read which tasks of the group are paused; otherwise it claims only if none is.
        most_isolation: what needs a higher one is left to others.
        broadcasts: ids of the broadcast topics whose ends are read with a claim.
        fair: the header whose values share the group fairly; empty for none.
        per_key: the group limits how many messages of each key run at once; one is claimed at a time.
    """

    topic: Topic
    group: Group
    client_id: str
    batch: int
    batch_bytes: int
    decoder: Decoder
    permitted: bool = False
    knows_held: bool = False
    most_isolation: Isolation = Isolation.LAST
    broadcasts: Collection[int] = ()
    fair: str = ""
    per_key: bool = False
    claim_id: int = field(default_factory=new_claim_id)


class NothingClaimed(Enum):
    """The reason for an empty claim: there was nothing to claim, or another client held the cursor."""

    EMPTY = 0
    BUSY = 1

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True)
class AvailableWork:
    """Work available to a group: waiting claims, due retries, partitions with messages, and holes at its cursors.

    A group that runs in order has only partitions here, whatever is available in them.

    Attributes:
        limited: True if the group needs permits.
        held: True if some of its tasks are paused.
        highest_waiting: the highest partition with waiting claims.
    """

    waiting: bool = False
    retries: bool = False
    partitions: tuple[int, ...] = ()
    holes: tuple[int, ...] = ()
    limited: bool = False
    held: bool = False
    highest_waiting: int = 0

    def __bool__(self) -> bool:
        return self.waiting or self.retries or bool(self.partitions)


@dataclass(frozen=True)
class PollAnswer:
    """The result of a search for work.

    Attributes:
        work: group id -> its available work; only groups that have some.
        open: groups whose new messages any client may claim without another query: they are not paused, not ordered,
            and have neither limits nor paused tasks.
        due_s: seconds until something else is due, which may be work then; ``None`` if nothing is known.
        cancelled: messages that were cancelled while a client had them.
    """

    work: dict[int, AvailableWork]
    due_s: float | None = None
    open: frozenset[int] = frozenset()
    cancelled: frozenset[Place] = frozenset()
