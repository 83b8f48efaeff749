"""The state of the model: one partition, one group, a few clients.

It is small, immutable and made of numbers, so that it can be hashed by the hundred thousand.

Offsets count from 1; a set of offsets is an integer whose bit ``o`` stands for offset ``o``.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple


class Row(IntEnum):
    """What the stream has at an offset."""

    NONE = 0
    MESSAGE = 1
    TOMBSTONE = 2
    GONE = 3  # deleted by retention


class Order(Enum):
    """How a group runs its messages."""

    NONE = 0
    PARTITION = 1
    KEY = 2


class Claim(NamedTuple):
    """A row of ``ems_claim`` that is not done; one of retries ends at ``hi`` and never moves its acked offset."""

    lo: int
    hi: int
    acked_to: int
    owner: int  # -1: it waits
    token: int
    of_retries: bool = False
    isolation: int = 0
    running: int = 0

    @property
    def live_stream(self) -> int:
        """The offsets that are in this claim and nowhere else."""
        return 0 if self.of_retries else span(self.acked_to + 1, self.hi)


class Retry(NamedTuple):
    """A row of ``ems_retry``; ``token`` 0: not claimed."""

    offset: int
    attempt: int
    token: int = 0
    isolation: int = 0
    blocked: bool = False


class Hold(NamedTuple):
    """What a client remembers of its claim: how far it is (``place``), and what of that is written down (``flushed``)."""

    token: int
    of_retries: bool
    items: tuple[int, ...]
    isolation: int
    flushed: int = 0
    place: int = 0
    running: bool = False
    fails: tuple[int, ...] = ()
    blocked: tuple[int, ...] = ()
    blocked_keys: tuple[str, ...] = ()
    held: bool = False  # where a partition runs in order: a message is to run again before the next one
    owed: tuple[int, ...] = ()  # only mutants: what a second transaction is still to write


class Life(IntEnum):
    """Of a client's process; it ends by itself once it does not trust its lease any more."""

    DEAD = 0
    TRUSTS = 1
    DOUBTS = 2


class Client(NamedTuple):
    """One client; ``last`` is the message that it began last."""

    life: Life = Life.TRUSTS
    lease: bool = True
    hold: Hold | None = None
    last: int = 0


class State(NamedTuple):
    """Everything: the tables, the processes, what is counted only to be checked, and which faults are left."""

    rows: tuple[Row, ...]
    allocated: int
    held: int
    cursor: int
    log_start: int
    claims: tuple[Claim, ...]
    retries: tuple[Retry, ...]
    dead: int
    restored: int
    done: int
    clients: tuple[Client, ...]
    look: Claim | None  # only mutants: what a beat or a claimant has seen before it acts
    confirmed: int
    ran: int
    effects: tuple[int, ...]
    faults: int
    failures: int
    requeues: int
    rewinds: int

    def row(self, offset: int) -> Row:
        """What the stream has at an offset."""
        return self.rows[offset - 1] if 1 <= offset <= len(self.rows) else Row.NONE

    def with_rows(self, offsets: int, row: Row) -> State:
        """The same with other rows at some offsets."""
        return self._replace(rows=tuple(row if offsets >> o & 1 else old for o, old in enumerate(self.rows, 1)))

    def with_client(self, number: int, client: Client) -> State:
        """The same with another client."""
        return self._replace(clients=(*self.clients[:number], client, *self.clients[number + 1 :]))

    def with_hold(self, number: int, hold: Hold | None) -> State:
        """The same, where a client remembers something else."""
        return self.with_client(number, self.clients[number]._replace(hold=hold))

    def claim(self, token: int) -> Claim | None:
        """The claim with a token."""
        return next((claim for claim in self.claims if claim.token == token), None)

    def with_claim(self, old: Claim | None, *new: Claim) -> State:
        """The same with a claim replaced; an empty one is left out."""
        kept = [claim for claim in self.claims if claim is not old]
        return self._replace(claims=tuple(sorted([*kept, *(claim for claim in new if claim.lo <= claim.hi)])))

    def retry(self, offset: int) -> Retry | None:
        """The retry of an offset."""
        return next((retry for retry in self.retries if retry.offset == offset), None)

    def with_retries(self, gone: int, *new: Retry) -> State:
        """The same without the retries of some offsets, and with others."""
        kept = [retry for retry in self.retries if not gone >> retry.offset & 1]
        return self._replace(retries=tuple(sorted([*kept, *new])))

    def fresh_token(self) -> int:
        """The lowest that nobody has or remembers; so that states that differ by names only are one."""
        used = {claim.token for claim in self.claims} | {retry.token for retry in self.retries}
        used |= {client.hold.token for client in self.clients if client.hold}
        return next(token for token in range(1, len(used) + 2) if token not in used)


class Config(NamedTuple):
    """What is explored: how much of everything, and one planted fault at most."""

    messages: int = 3
    clients: int = 2
    batch: int = 2
    order: Order = Order.NONE
    keys: str = ""
    published: bool = True
    retention: bool = False
    faults: int = 1
    failures: int = 0
    max_attempts: int = 2
    requeues: int = 0
    rewinds: int = 0
    give_back: bool = False
    mutant: str = ""

    def key(self, offset: int) -> str:
        """The key of a message; "" for none."""
        return self.keys[offset - 1] if offset <= len(self.keys) else ""

    def start(self) -> State:
        """The first state."""
        every = span(1, self.messages) if self.published else 0
        return State(
            rows=(Row.MESSAGE if self.published else Row.NONE,) * self.messages,
            allocated=self.messages if self.published else 0,
            held=0,
            cursor=1,
            log_start=1,
            claims=(),
            retries=(),
            dead=0,
            restored=0,
            done=0,
            clients=(Client(),) * self.clients,
            look=None,
            confirmed=every,
            ran=0,
            effects=(0,) * self.messages,
            faults=self.faults,
            failures=self.failures,
            requeues=self.requeues,
            rewinds=self.rewinds,
        )


def span(first: int, last: int) -> int:
    """The set of the offsets from first to last, both included."""
    return ((1 << (last + 1)) - (1 << first)) if first <= last else 0


def members(offsets: int) -> list[int]:
    """The offsets of a set, in order."""
    return [o for o in range(offsets.bit_length()) if offsets >> o & 1]


def bits(offsets: tuple[int, ...] | list[int]) -> int:
    """The set of some offsets."""
    made = 0
    for offset in offsets:
        made |= 1 << offset
    return made
