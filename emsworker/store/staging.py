"""Writing in bulk, exactly once, for jobs whose tasks may run several times: staging, and a ledger of commits.

Each run of a task stages its rows under a token of its own, in chunks. The *commit* of a job is one small transaction
that adds a row to ``ems_ledger``, whose primary key (sink, batch) says that it is the first of its kind, and gives the
tokens to it. Then the chunks are moved into the stream in order, each in one transaction that also steps the ledger on:

- a crash before the commit leaves rows that nobody owns, which are deleted after a day;
- a crash after it leaves the rest of the chunks, which the next run of the same batch, or any other job after a minute,
  moves; what that next run has staged itself is thrown away;
- two movers at once: the ledger's ``moved`` is compared and set by the packet that moves a chunk, and only one can.

Order of locks: the ledger's row, then partitions by (topic, partition).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.core.errors import EmsError, UnknownTopic
from emsworker.core.model import NewMessage
from emsworker.store.errors import AssertionBroken, Duplicate
from emsworker.store.messages import raise_counter
from emsworker.store.session import Session, bytes_literal
from emsworker.store.sql import Statements

_SQL = Statements("staging")
_REPLAYABLE = 100
_ABANDONED_S = 86_400
_STUCK_S = 60
_MOST = 100

log = logging.getLogger(__name__)


class StagingLost(EmsError):
    """Rows that are to be committed have been deleted: their job took longer than a day from the task to the commit."""


@dataclass(frozen=True)
class Batch:
    """One commit of a sink.

    Attributes:
        sink: who writes, unique among all that write to this stream.
        number: of the commit, which is never another's.
    """

    sink: str
    number: int = 0

    @property
    def args(self) -> dict[str, object]:
        """As parameters."""
        return {"sink": self.sink.encode(), "batch": self.number}


@dataclass(frozen=True)
class Staged:
    """What one run of a task left: a token (``None``: nothing) and how many chunks."""

    token: bytes | None
    chunks: int = 0


@dataclass(frozen=True)
class StagedRow:
    """A message and where it will go."""

    topic_id: int
    partition: int
    message: NewMessage


def begin_task(session: Session, token: bytes) -> None:
    """Open a run of a task."""
    session.execute(_SQL.begin_task, {"token": token})


def stage(session: Session, token: bytes, chunk: int, rows: Sequence[StagedRow]) -> None:
    """Write a chunk down; harmless when repeated."""
    head = f"({bytes_literal(token)},{chunk}"
    values = ",".join(
        f"{head},{place},{row.topic_id},{row.partition},{bytes_literal(row.message.uid)},{bytes_literal(row.message.key)},"
        f"{bytes_literal(row.message.tag)},{bytes_literal(row.message.headers)},{bytes_literal(row.message.body)})"
        for place, row in enumerate(rows)
    )
    session.transaction(lambda s: s.send(f"{_SQL.insert_rows} {values} {_SQL.keep_first}"))


def commit(session: Session, batch: Batch, tasks: Sequence[Staged]) -> bool:
    """Decide that these tasks' rows are the batch; nothing is moved yet.

    Returns:
        whether they are: if not, this batch was committed before, and these rows are not wanted.

    Raises:
        StagingLost: some of the rows are gone; nothing was committed.
    """
    wanted = [task for task in tasks if task.token is not None]

    def work(session: Session) -> None:
        packet = session.packet()
        packet.begin()
        packet.add(_SQL.add_batch, batch.args)
        for place, task in enumerate(wanted):
            packet.add(_SQL.assign_task, batch.args | {"place": place, "chunks": task.chunks, "token": task.token})
            packet.assert_one_matched()
        packet.commit()
        packet.send()

    try:
        session.again_on_conflict(lambda: work(session))
    except Duplicate:
        return False
    except AssertionBroken:
        raise StagingLost(
            f"batch {batch.number} of {batch.sink}: rows that a task staged are gone; nothing was written. "
            f"They are kept for {_ABANDONED_S // 3600} hours: run the job again, in smaller parts"
        ) from None
    return True


def state(session: Session, batch: Batch) -> str | None:
    """``moving`` or ``done``; ``None`` if nobody has committed this batch."""
    found = session.rows(_SQL.get_batch, batch.args)
    return str(found[0][0]) if found else None


def move(session: Session, batch: Batch, producer_id: str) -> set[int]:
    """Move what is left of a committed batch into the stream; harmless when repeated, and when two do it at once.

    Returns:
        the topics that got messages from us.

    Raises:
        UnknownTopic: a topic or partition was deleted since the rows were staged.
    """
    found = session.rows(_SQL.get_batch, batch.args)
    chunks = [(bytes(token), n) for token, count in session.rows(_SQL.list_tasks, batch.args) for n in range(count)]
    topics: set[int] = set()
    while found and found[0][0] == "moving" and int(found[0][1]) < len(chunks):
        moved = int(found[0][1])
        args = batch.args | {"moved": moved, "producer_id": producer_id}
        try:
            topics |= _move_chunk(session, args | {"token": chunks[moved][0], "chunk": chunks[moved][1]})
        except AssertionBroken:
            if session.rows(_SQL.get_batch, batch.args) == found:
                raise UnknownTopic(
                    f"batch {batch.number} of {batch.sink} is committed, but a topic or partition that it writes to "
                    "was deleted; delete the batch's rows from ems_stage and ems_ledger, and write it again"
                ) from None
        except Duplicate:
            log.debug("an offset that we were given was taken by a producer with an allocator of its own")
        found = session.rows(_SQL.get_batch, batch.args)
    if found and found[0][0] == "moving":
        session.transaction(lambda s: _end(s, batch))
    return topics


def _move_chunk(session: Session, args: dict[str, object]) -> set[int]:
    def attempt() -> set[int]:
        places = session.rows(_SQL.count_chunk, args)
        packet = session.packet()
        packet.begin()
        packet.add(_SQL.step_batch, args)
        packet.assert_one_matched()
        for topic_id, partition, count in places:
            place = {"topic_id": topic_id, "partition": partition}
            raise_counter(packet, topic_id, partition, count)
            packet.assert_one_matched()
            packet.add(_SQL.move_rows, args | place)
        packet.add(_SQL.delete_chunk, args)
        packet.commit()
        packet.send()
        return {int(topic_id) for topic_id, _, _ in places}

    return session.again_on_conflict(attempt)


def _end(session: Session, batch: Batch) -> None:
    session.execute(_SQL.end_batch, batch.args)
    session.execute(_SQL.delete_tasks, batch.args)
    session.execute(_SQL.forget_old_batches, batch.args | {"before": max(0, batch.number - _REPLAYABLE)})


def forget(session: Session, batch: Batch) -> None:
    """Delete the ledger's row of a batch that is done and that nobody can name again."""
    session.change(_SQL.forget_batch, batch.args)


def give_up(session: Session, tasks: Sequence[Staged]) -> None:
    """Delete what tasks have staged, unless it is committed: then it stays as it is."""
    for task in tasks:
        args = {"token": task.token}
        if task.token is None or not session.change(_SQL.give_up_task, args):
            continue
        while session.change(_SQL.delete_some_rows, args):
            pass
        session.change(_SQL.delete_given_up, args)


def tidy(session: Session, producer_id: str, abandoned_s: int = _ABANDONED_S, stuck_s: int = _STUCK_S) -> set[int]:
    """Do what jobs that died have left: move what is committed, delete what is not; returns topics that got messages.

    Args:
        abandoned_s: after how many seconds a task that nobody committed is given up.
        stuck_s: after how many seconds without progress a commit is taken over.
    """
    topics: set[int] = set()
    for sink, number in session.rows(_SQL.list_stuck, {"age_s": stuck_s, "limit": _MOST}):
        try:
            topics |= move(session, Batch(bytes(sink).decode(), int(number)), producer_id)
        except UnknownTopic as error:  # somebody else's, who must not stand in the way of all
            log.error("%s", error)
    abandoned = session.rows(_SQL.list_abandoned, {"age_s": abandoned_s, "limit": _MOST})
    give_up(session, [Staged(bytes(token)) for (token,) in abandoned])
    return topics
