"""Putting archived messages back to where they were, for one group only.

A message comes back below the log start offset, where no cursor passes again, with a note that retention is to spare it
until it has been run (as for a requeued dead letter), and with a retry of the group, to which no attempt is charged. A
piece at
a time, in one transaction that also counts the piece in the ledger: a job that is run again goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.core.errors import UnknownGroup
from emsworker.core.model import Group, Order
from emsworker.store.cursors import hold
from emsworker.store.session import Session, bytes_literal
from emsworker.store.sql import Statements

_SQL = Statements("putback")


@dataclass(frozen=True)
class Row:
    """A message as it was; ``born_us`` in microseconds since 1970."""

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
        """About how many bytes it takes in a statement."""
        return 2 * (len(self.body) + len(self.headers) + len(self.key or b"") + len(self.tag or b"")) + 300


@dataclass(frozen=True)
class PutBack:
    """What became of a piece: messages that will be run, and those that were to be run anyway or are kept still."""

    again: int = 0
    waiting: int = 0
    kept: int = 0
    conflicts: int = 0

    def __add__(self, other: PutBack) -> PutBack:
        sums = (self.again + other.again, self.waiting + other.waiting, self.kept + other.kept)
        return PutBack(*sums, self.conflicts + other.conflicts)


def steps_done(session: Session, job: str) -> int:
    """How many pieces of a job are done; it is entered into the ledger if it is new."""
    args = {"sink": job.encode()}
    session.change(_SQL.begin_job, args)
    return int(session.rows(_SQL.get_step, args)[0][0])


def put_back(session: Session, group: Group, partition: int, rows: Sequence[Row], job: str, step: int) -> PutBack:
    """Put one piece back, unless this step of the job is done already.

    Raises:
        UnknownGroup: it was deleted meanwhile.
    """
    where = {"group_id": group.id, "topic_id": group.topic_id, "partition": partition}
    args = {"sink": job.encode(), "step": step}

    def work(session: Session) -> PutBack:
        # The ledger first, then cursor and log start offset as everybody locks them.
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
        session.send(f"{_SQL.put_back} {','.join(_values(where, row) for row in wanted)}")
        present = {int(offset) for (offset,) in session.rows(_SQL.list_present, some)}
        _have_run(session, group, where, [row for row in wanted if row.offset in present])
        again = sum(row.offset in present for row in wanted)
        return PutBack(again, len(waiting), kept, len(wanted) - again)

    return session.transaction(work)


def _have_run(session: Session, group: Group, where: dict[str, int], rows: Sequence[Row]) -> None:
    if not rows:
        return
    place = f"({where['topic_id']},{where['partition']}"
    session.send(f"{_SQL.note_restored} {','.join(f'{place},{row.offset})' for row in rows)}")
    head = f"({group.id},{where['partition']}"
    retries = ",".join(
        f"{head},{row.offset},0,NOW(6) + INTERVAL {place} MICROSECOND,"
        f"{bytes_literal(row.key if group.order is Order.KEY else None)})"
        for place, row in enumerate(rows)
    )
    session.send(f"{_SQL.add_retries} {retries}")
    session.execute(_SQL.delete_dead, where | {"offsets": [row.offset for row in rows]})


def _values(where: dict[str, int], row: Row) -> str:
    blobs = ",".join(map(bytes_literal, (row.uid, row.key, row.tag, row.headers, row.body)))
    producer = bytes_literal(row.producer_id.encode())
    born = f"'1970-01-01' + INTERVAL {row.born_us:d} MICROSECOND"
    return f"({where['topic_id']},{where['partition']},{row.offset:d},{blobs},{len(row.body)},{born},{producer})"
