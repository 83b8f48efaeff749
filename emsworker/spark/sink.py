"""Writers of ``format("ems")``: tasks stage, the driver commits, exactly once by the store's ledger."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from emsworker.core.errors import EmsError, MessageTooLarge
from emsworker.core.ids import new_uid
from emsworker.publish.notifier import Notifier
from emsworker.spark.options import WriteOptions
from emsworker.spark.profile import call, closing_session, open_stream
from emsworker.spark.rows import Rows
from emsworker.store.engine.schema import server_facts
from emsworker.store.stream import staging
from emsworker.store.stream.staging import SinkBatch, Staged, StagedRow

_QUERY_ID = "sql.streaming.queryId"
_PACKET_SLACK = 65536
_CHUNK_ROWS, _CHUNK_BYTES = 5000, 16 << 20


class WriteFailed(EmsError):
    """A write cannot be identified, so it is refused to avoid duplicates."""


@dataclass
class TaskDone(WriterCommitMessage):
    """The result of a task for the driver."""

    staged: Staged
    query_id: str | None = None


class EmsWriter(DataSourceArrowWriter):
    """Writer of one batch job.

    Args:
        rows: converts rows to messages.
        options: with a ``jobId`` the job is idempotent: it can be run again and is written once.
    """

    def __init__(self, rows: Rows, options: WriteOptions) -> None:
        self._rows = rows
        self._options = options
        self._batch = SinkBatch(f"job:{options.job_id or new_uid().hex()}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Stage one task's rows, on an executor."""
        return TaskDone(_stage(self._rows, self._options, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the staged rows of all tasks; if this driver dies meanwhile, a later job writes the rest."""
        _commit(self._options, self._batch, _staged(messages))
        if self._options.job_id is None:  # no later run can have this job's name
            call(self._options.profile, partial(staging.forget, batch=self._batch))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the staged rows if a task failed; no effect after a commit whose answer was lost."""
        _abort(self._options, messages)


class EmsStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query; a micro-batch is identified by its number and the query's id of the checkpoint."""

    def __init__(self, rows: Rows, options: WriteOptions) -> None:
        self._rows = rows
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Stage one task's rows, on an executor."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        return TaskDone(_stage(self._rows, self._options, iterator), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write the micro-batch, unless it was written before a restart."""
        queries = {one.query_id for one in messages if isinstance(one, TaskDone)}
        if not queries:
            return  # no task, no row
        query_id = queries.pop()
        if queries or query_id is None:
            raise WriteFailed(f"the tasks of batch {batchId} do not name one query: {[query_id, *queries]}")
        _commit(self._options, SinkBatch(f"query:{query_id}", batchId), _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the staged rows, like :meth:`EmsWriter.abort`."""
        _abort(self._options, messages)


def _staged(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    return [one.staged for one in messages if isinstance(one, TaskDone)]


def _commit(options: WriteOptions, batch: SinkBatch, tasks: Sequence[Staged]) -> None:
    app, who = open_stream(options.profile), f"spark-{socket.gethostname()}-{os.getpid()}"[-128:]
    with closing_session(app.stream.database) as database:
        if not database.call(partial(staging.commit, batch=batch, tasks=tasks)):
            database.call(partial(staging.give_up, tasks=tasks))
        topics = database.call(partial(staging.move, batch=batch, producer_id=who))
        topics |= database.call(partial(staging.tidy, producer_id=who))
        Notifier(app.stream.redis_url, app.stream.stream_id, lambda *_: None).ring(topics)


def _abort(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    call(options.profile, partial(staging.give_up, tasks=_staged(messages)))


def _stage(rows: Rows, options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Staged:
    token, chunks = new_uid(), 0
    app = open_stream(options.profile)
    with closing_session(app.stream.database) as database:
        most = min(_CHUNK_BYTES, database.call(server_facts).max_allowed_packet - _PACKET_SLACK)
        for chunk in _chunks(rows.messages(app, batches), most):
            if not chunks:
                database.call(partial(staging.begin_task, token=token))
            database.call(partial(staging.stage, token=token, chunk=chunks, rows=chunk))
            chunks += 1
    return Staged(token if chunks else None, chunks)


def _chunks(rows: Iterator[StagedRow], most_bytes: int) -> Iterator[list[StagedRow]]:
    """Split rows into chunks of one packet each (a byte takes two there), later one transaction each."""
    part: list[StagedRow] = []
    size = 0
    for row in rows:
        message = row.message
        weight = (
            2 * (len(message.body) + len(message.headers) + len(message.key or b"") + len(message.tag or b"")) + 200
        )
        if weight > most_bytes:
            raise MessageTooLarge(f"a value of {len(message.body)} bytes is over what the server takes as one packet")
        if part and (len(part) == _CHUNK_ROWS or size + weight > most_bytes):
            yield part
            part, size = [], 0
        part.append(row)
        size += weight
    if part:
        yield part
