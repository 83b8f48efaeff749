"""Restores archived messages at their old offsets, for one group only.

A message is restored below the log start offset, where no cursor passes again. A row in ``ems_restored`` makes
retention keep it until it has been run (as for a requeued dead letter), and a retry of the group, with no attempt
charged, makes it run. Each batch is one transaction that also counts the batch in the ledger: a job that is run again
continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.core.errors import UnknownGroup
from emsworker.core.model import Group, Order
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.cursors import hold
from emsworker.store.groups.dead import note_restored

_SQL = Statements(__name__)


@dataclass(frozen=True)
class Row:
    """An archived message; ``born_us`` is in microseconds since 1970."""

    offset: int
    uid: bytes
    key: bytes | None
    tag: bytes | None
    headers: bytes
    body: bytes
    born_us: int
    producer_id: str

    @property
    def weight(self) -> int:
        """Approximate number of bytes that it takes in a statement."""
        return 2 * (len(self.body) + len(self.headers) + len(self.key or b"") + len(self.tag or b"")) + 300


@dataclass(frozen=True)
class PutBack:
    """Counts of a batch: messages that will run again, that wait to run anyway, that are still kept, and conflicts."""

    again: int = 0
    waiting: int = 0
    kept: int = 0
    conflicts: int = 0

    def __add__(self, other: PutBack) -> PutBack:
        sums = (self.again + other.again, self.waiting + other.waiting, self.kept + other.kept)
        return PutBack(*sums, self.conflicts + other.conflicts)


def steps_done(session: Session, job: str) -> int:
    """Return how many batches of a job are done; a new job is entered into the ledger."""
    args = {"sink": job.encode()}
    session.change(_SQL.begin_job, args)
    return int(session.rows(_SQL.get_step, args)[0][0])


def put_back(session: Session, group: Group, partition: int, rows: Sequence[Row], job: str, step: int) -> PutBack:
    """Restore one batch, unless this step of the job is already done.

    Raises:
        UnknownGroup: the group was deleted meanwhile.
    """
    where: dict[str, Any] = {"group_id": group.id, "topic_id": group.topic_id, "partition": partition}
    args = {"sink": job.encode(), "step": step}

    def work(session: Session) -> PutBack:
        # Lock order: the ledger, then cursor and log start offset as everywhere else.
        if session.execute(_SQL.add_step, args).affected != 1:
            return PutBack()
        held = hold(session, group, partition)
        if held is None:
            raise UnknownGroup(f"group {group.name!r} was deleted meanwhile")
        below = {row.offset: row for row in rows if row.offset < min(held.log_start, held.cursor)}
        kept = len(rows) - len(below)
        if not below:
            return PutBack(kept=kept)
        some = where | {"offsets": list(below)}
        waiting = {int(offset) for (offset,) in session.rows(_SQL.list_waiting, some)}
        wanted = [row for offset, row in below.items() if offset not in waiting]
        if not wanted:
            return PutBack(waiting=len(waiting), kept=kept)
        packet = session.packet()
        packet.insert_many(_SQL.put_back, _SQL.message_row, (where | _values(row) for row in wanted))
        packet.send()
        present = {int(offset) for (offset,) in session.rows(_SQL.list_present, some)}
        _have_run(session, group, where, [row for row in wanted if row.offset in present])
        again = sum(row.offset in present for row in wanted)
        return PutBack(again, len(waiting), kept, len(wanted) - again)

    return session.transaction(work)


def _have_run(session: Session, group: Group, where: dict[str, Any], rows: Sequence[Row]) -> None:
    if not rows:
        return
    note_restored(session, group, where["partition"], [row.offset for row in rows])
    by_key = group.order is Order.KEY
    retries = (
        where | {"offset": row.offset, "place": place, "key": row.key if by_key else None}
        for place, row in enumerate(rows)
    )
    packet = session.packet()
    packet.insert_many(_SQL.add_retries, _SQL.retry_row, retries)
    packet.add(_SQL.delete_dead, where | {"offsets": [row.offset for row in rows]})
    packet.send()


def _values(row: Row) -> dict[str, Any]:
    return vars(row) | {"size": len(row.body), "producer_id": row.producer_id.encode()}
