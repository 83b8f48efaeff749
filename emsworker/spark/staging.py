"""Bulk writes, exactly once, for jobs whose tasks may run several times: staging, and a ledger of commits.

Each run of a task stages its rows under a token of its own, in chunks. The *commit* of a job is one small transaction
that adds a row to ``ems_ledger``, whose primary key (sink, batch) allows only the first, and assigns the tokens to it.
Then the chunks are moved into the stream in order, each in one transaction that also advances the ledger:

- A crash before the commit leaves rows without an owner, which are deleted after a day.
- A crash after it leaves the remaining chunks, which the next run of the same batch, or any other job after a minute,
  moves; rows that this next run has staged itself are deleted.
- If two processes move at once, only one moves a chunk: its packet compares and sets the ledger's ``moved``.

Lock order: the ledger's row, then partitions by (topic, partition).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.extending.database import Part, Session, Statements, fill, fill_rows, insertion, literal, message_blobs
from emsworker.extending.errors import AssertionBroken, Duplicate, EmsError, UnknownTopic
from emsworker.extending.stream import MESSAGE, raise_counter, topic_id_text
from emsworker.extending.values import NewMessage

_SQL = Statements(__name__, **MESSAGE)
_REPLAYABLE = 100
_ABANDONED_S = 86_400
_STUCK_S = 60
_REMEMBERED_S = 90 * 86_400
_MOST = 100

log = logging.getLogger(__name__)


class StagingLost(EmsError):
    """Staged rows were deleted before the commit: their job took longer than a day from the task to the commit."""


@dataclass(frozen=True)
class SinkBatch:
    """Commit of a sink.

    Attributes:
        sink: name of the writer, unique among all writers to this stream.
        number: of the commit; each commit has its own.
    """

    sink: str
    number: int = 0

    def __str__(self) -> str:
        return f"batch {self.number} of {self.sink}"

    @property
    def args(self) -> dict[str, object]:
        return {"sink": self.sink.encode(), "batch": self.number}


@dataclass(frozen=True)
class Staged:
    """Rows that one run of a task staged: their token, ``None`` if there are none, and how many chunks and rows."""

    token: bytes | None
    chunks: int = 0
    rows: int = 0


@dataclass(frozen=True)
class StagedRow:
    """A message and its destination.

    Attributes:
        partition: the number of the partition, its level included; of a delayed message that within its level, or
            ``None`` if it is chosen when the message is due.
    """

    topic_id: int
    partition: int | None
    message: NewMessage

    @property
    def delay_us(self) -> int | None:
        """Microseconds from the commit of its job until it is due, or ``None`` if it is not delayed."""
        return round((self.message.delay_s or 0.0) * 1_000_000) or None


def begin_task(session: Session, token: bytes) -> None:
    """Open a run of a task."""
    session.execute(_SQL.begin_task, {"token": token})


def stage(session: Session, token: bytes, chunk: int, rows: Sequence[StagedRow]) -> None:
    """Insert a chunk into the staging table; idempotent."""
    columns: dict[str, Sequence[Part]] = {
        "place": range(len(rows)),
        "topic_id": [row.topic_id for row in rows],
        "partition": [literal(row.partition) for row in rows],
        "level": [row.message.level for row in rows],
        "delay_us": [literal(row.delay_us) for row in rows],
        "message": [message_blobs(row.message.columns) for row in rows],
    }
    values = fill_rows(_SQL.staged_row, {"token": literal(token), "chunk": chunk}, columns)
    statement = insertion(_SQL.insert_rows, values, _SQL.keep_first)
    session.transaction(lambda s: s.send(statement))


def commit(session: Session, batch: SinkBatch, tasks: Sequence[Staged]) -> bool:
    """Commit the rows of these tasks as the batch, without moving them yet.

    Returns:
        false if this batch was already committed; then these rows are not used.

    Raises:
        StagingLost: some of the rows are gone; nothing was committed.
    """
    wanted = [task for task in tasks if task.token is not None]

    def work(session: Session) -> None:
        packet = session.packet()
        packet.begin()
        packet.add(_SQL.add_batch, batch.args | {"rows": count_rows(wanted)})
        for place, task in enumerate(wanted):
            packet.add(_SQL.assign_task, batch.args | {"place": place, "chunks": task.chunks, "token": task.token})
            packet.assert_one_matched()
        packet.commit()
        packet.send()

    try:
        session.retry_on_conflict(lambda: work(session))
    except Duplicate:
        return False
    except AssertionBroken:
        raise StagingLost(
            f"{batch}: rows that a task staged are gone; nothing was written. "
            f"They are kept for {_ABANDONED_S // 3600} hours: run the job again, in smaller parts"
        ) from None
    return True


def count_rows(tasks: Sequence[Staged]) -> int:
    """Return the number of rows that tasks have staged."""
    return sum(task.rows for task in tasks)


def state(session: Session, batch: SinkBatch) -> tuple[str, int] | None:
    """Return ``moving`` or ``done``, and the number of its rows; ``None`` if this batch is not committed."""
    found = session.rows(_SQL.get_batch, batch.args)
    return (str(found[0][0]), int(found[0][2])) if found else None


def move(session: Session, batch: SinkBatch, producer_id: str) -> set[int]:
    """Move the rest of a committed batch into the stream; idempotent, and safe if two processes do it at once.

    Returns:
        the topics that got messages from this call.

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
                    f"{batch} is committed, but a topic or partition that it writes to "
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
            if partition is None:
                guard = {"guarded_topic_id": topic_id_text(session.database, topic_id)}
                packet.add(fill(_SQL.move_delayed, session.literals(args | place) | guard))
                continue
            raise_counter(packet, topic_id, partition, count)
            packet.assert_one_matched()
            packet.add(_SQL.move_rows, args | place)
        packet.add(_SQL.delete_chunk, args)
        packet.commit()
        packet.send()
        return {int(topic_id) for topic_id, _, _ in places}

    return session.retry_on_conflict(attempt)


def _end(session: Session, batch: SinkBatch) -> None:
    session.execute(_SQL.end_batch, batch.args)
    session.execute(_SQL.delete_tasks, batch.args)
    session.execute(_SQL.forget_old_batches, batch.args | {"before": max(0, batch.number - _REPLAYABLE)})


def forget(session: Session, batch: SinkBatch) -> None:
    """Delete the ledger's row of a batch that is done and that no job can name again."""
    session.change(_SQL.forget_batch, batch.args)


def give_up(session: Session, tasks: Sequence[Staged]) -> None:
    """Delete the rows that tasks have staged, except those that are committed."""
    for task in tasks:
        args = {"token": task.token}
        if task.token is None or not session.change(_SQL.give_up_task, args):
            continue
        while session.change(_SQL.delete_some_rows, args):
            pass
        session.change(_SQL.delete_given_up, args)


def tidy(
    session: Session,
    producer_id: str,
    abandoned_s: int = _ABANDONED_S,
    stuck_s: int = _STUCK_S,
    remembered_s: int = _REMEMBERED_S,
) -> set[int]:
    """Clean up after jobs that died: move committed rows, delete the others; returns topics that got messages.

    Args:
        abandoned_s: seconds after which a task that was not committed is given up.
        stuck_s: seconds without progress after which a commit is taken over.
        remembered_s: seconds after which a finished batch is forgotten: the job may be written again under its name.
    """
    topics: set[int] = set()
    for sink, number in session.rows(_SQL.list_stuck, {"age_s": stuck_s, "limit": _MOST}):
        try:
            topics |= move(session, SinkBatch(bytes(sink).decode(), int(number)), producer_id)
        except UnknownTopic as error:  # one job's error must not block the others
            log.error("%s", error)
    abandoned = session.rows(_SQL.list_abandoned, {"age_s": abandoned_s, "limit": _MOST})
    give_up(session, [Staged(bytes(token)) for (token,) in abandoned])
    session.change(_SQL.delete_old_batches, {"age_s": remembered_s, "limit": _MOST})
    return topics
