"""Writers of ``format("ems")``: tasks stage, the driver commits, exactly once by the store's ledger.

The columns of a row are those of Spark's Kafka sink.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from emsworker.arrow.profile import call, closing_session, open_stream
from emsworker.extending.apps import Ems
from emsworker.extending.database import server_facts
from emsworker.extending.errors import ConfigError, EmsError, MessageTooLarge, Problem, TopicRuleError, UnknownTopic
from emsworker.extending.processes import claim_role
from emsworker.extending.publishing import Notifier
from emsworker.extending.values import (
    LONGEST_S,
    MAX_KEY_BYTES,
    MAX_PARTITIONS,
    PRIORITY_HEADER,
    NewMessage,
    Topic,
    counted,
    decode_headers,
    encode_headers,
    in_batches,
    level_below,
    level_for,
    level_of,
    new_uid,
    priority_header,
    priority_of,
)
from emsworker.spark import staging
from emsworker.spark.brief import brief_errors
from emsworker.spark.columns import KNOWN
from emsworker.spark.options import WriteOptions
from emsworker.spark.staging import SinkBatch, Staged, StagedRow

log = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_PACKET_SLACK = 65536
_CHUNK_ROWS, _CHUNK_BYTES = 5000, 16 << 20
_TEXT = ("string", "binary")
_COLUMNS = {
    "value": _TEXT,
    "key": _TEXT,
    "tag": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "rawHeaders": ("binary",),
    "priority": ("int",),
    "delay": ("int", "bigint", "float", "double"),
}


class WriteFailed(EmsError):
    """A write cannot be identified, so it is refused to avoid duplicates."""


@dataclass
class TaskDone(WriterCommitMessage):
    """The result of a task for the driver."""

    staged: Staged
    query_id: str | None = None


@brief_errors
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


@brief_errors
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
    claim_role("sink")
    app, who = open_stream(options.profile), f"spark-{socket.gethostname()}-{os.getpid()}"[-128:]
    with closing_session(app.stream.database) as database:
        if not database.call(partial(staging.commit, batch=batch, tasks=tasks)):
            _warn_of_other_data(batch, database.call(partial(staging.state, batch=batch)), staging.count_rows(tasks))
            database.call(partial(staging.give_up, tasks=tasks))
        topics = database.call(partial(staging.move, batch=batch, producer_id=who))
        topics |= database.call(partial(staging.tidy, producer_id=who))
        Notifier(app.stream.redis_url, app.stream.stream_id, ()).notify(topics)


def _warn_of_other_data(batch: SinkBatch, written: tuple[str, int] | None, rows: int) -> None:
    """Say so if a batch that is skipped, because it was written before, has another number of rows than it had then."""
    if written is not None and written[1] != rows:
        log.warning(
            "%s was written before, with %s; the %d of this run are other data and are NOT written: give them a jobId "
            "of their own",
            batch,
            counted(written[1], "row"),
            rows,
        )


def _abort(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    claim_role("sink")
    tasks = _staged(messages)
    try:
        if tasks:
            call(options.profile, partial(staging.give_up, tasks=tasks))
    except EmsError as error:  # raised here, it would take the place of the error for which Spark aborts
        log.warning(
            "the rows that %s staged stay until a later write deletes them: %s", counted(len(tasks), "task"), error
        )


def _stage(rows: Rows, options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Staged:
    token, chunks, count = new_uid(), 0, 0
    claim_role("sink")
    app = open_stream(options.profile, auto_create=options.auto_create)
    with closing_session(app.stream.database) as database:
        most = min(_CHUNK_BYTES, database.call(server_facts).max_allowed_packet - _PACKET_SLACK)
        for chunk in _chunks(rows.messages(app, batches), most):
            if not chunks:
                database.call(partial(staging.begin_task, token=token))
            database.call(partial(staging.stage, token=token, chunk=chunks, rows=chunk))
            chunks += 1
            count += len(chunk)
    return Staged(token if chunks else None, chunks, count)


def _chunks(rows: Iterator[StagedRow], most_bytes: int) -> Iterator[list[StagedRow]]:
    """Split rows into chunks of one packet each (a byte takes two there), later one transaction each."""

    def weigh(row: StagedRow) -> int:
        message = row.message
        texts = (message.body, message.headers, message.key or b"", message.tag or b"")
        weight = 2 * sum(map(len, texts)) + 200
        if weight > most_bytes:
            raise MessageTooLarge(f"a value of {len(message.body)} bytes is over what the server takes as one packet")
        return weight

    return in_batches(rows, weigh, most_bytes, most=_CHUNK_ROWS)


# -- rows --------------------------------------------------------------------------------------------------------------


class BadRow(EmsError):
    """A row cannot be a message; no row of its job is written."""


@dataclass(frozen=True)
class Rows:
    """Turns rows into messages.

    Args:
        names: the columns of the data frame.
        topic: the topic of all rows, if it is an option.
    """

    names: tuple[str, ...]
    topic: str | None

    @classmethod
    def of(cls, schema: StructType, topic: str | None) -> Rows:
        """Check the columns of a data frame.

        Raises:
            ConfigError: names each column that is missing, unknown or of another type.
        """
        problems = []
        for field in schema.fields:
            kinds = _COLUMNS.get(field.name)
            kind = field.dataType.simpleString()
            if kinds is None and field.name in KNOWN["deadletters"] | KNOWN["messages"]:
                continue  # what was read from the stream can be written as it is; these are written anew
            if kinds is None:
                problems.append(Problem(f"column {field.name}", kind, f"the sink knows {', '.join(_COLUMNS)}"))
            elif kind not in kinds:
                problems.append(Problem(f"column {field.name}", kind, f"must be {' or '.join(kinds)}"))
        names = tuple(field.name for field in schema.fields)
        if "value" not in names:
            problems.append(Problem("column value", "missing", "it is the body of a message: a string or binary"))
        if topic is None and "topic" not in names:
            problems.append(Problem("option topic", "not given", "name the topic, or have a column of that name"))
        if {"headers", "rawHeaders"} <= set(names) and "offset" not in names:  # what was read has the same in both
            problems.append(Problem("column rawHeaders", "given", "give either headers or rawHeaders"))
        if problems:
            raise ConfigError(problems)
        return cls(names, topic)

    def messages(self, app: Ems, batches: Iterator[pa.RecordBatch]) -> Iterator[StagedRow]:
        """Yield the messages of a task in the order of its rows, each with its topic and partition.

        Raises:
            BadRow, MessageTooLarge, TopicRuleError: names the row's topic and what is wrong.
        """
        turn = int.from_bytes(new_uid()[-4:], "big")  # rows without a key: one partition per batch, in turn
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            turn += 1
            for values in zip(*columns, strict=True):
                yield self._message(app, dict(zip(self.names, values, strict=True)), turn)

    def _message(self, app: Ems, row: dict[str, Any], turn: int) -> StagedRow:
        name = self.topic or row.get("topic")
        if name is None:
            raise BadRow("a row has no topic: fill the column, or give the option topic")
        topic = _find_topic(app, name)
        body = _bytes(row["value"])
        if body is None:
            raise BadRow(f"a row for topic {name!r} has no value; a message must have a body, an empty one at least")
        _check(topic, body)
        key, tag = (_label(topic, what, row.get(what)) for what in ("key", "tag"))
        headers, level = _headers_and_level(topic, row)
        message = NewMessage(
            new_uid(), key, tag, headers, body, level=level, delay_s=_delay(topic, row.get("delay")) or None
        )
        if row.get("partition") is not None:
            message.level, message.partition = _place(topic, row["partition"], level)
        return StagedRow(
            topic.id, message.partition if message.is_delayed else message.place(topic.partitions, turn), message
        )


def _find_topic(app: Ems, name: str) -> Topic:
    try:
        return app.stream.catalog.topic(name)
    except UnknownTopic as error:
        raise UnknownTopic(f"{error}, or give the option autoCreate=true") from None


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _check(topic: Topic, body: bytes) -> None:
    if not topic.rule.writable:
        raise TopicRuleError(f"topic {topic.name!r} has the rule {topic.rule.value!r}; `ems topics change` sets it")
    if len(body) > topic.max_message_bytes:
        raise MessageTooLarge(
            f"a value of {len(body)} bytes is over the limit of topic {topic.name!r}, {topic.max_message_bytes} bytes"
        )


def _label(topic: Topic, what: str, value: str | bytes | None) -> bytes | None:
    label = _bytes(value)
    if label is not None and len(label) > MAX_KEY_BYTES:
        raise BadRow(f"a {what} for topic {topic.name!r} has {len(label)} bytes; it may have {MAX_KEY_BYTES}")
    return label


def _headers_and_level(topic: Topic, row: Mapping[str, Any]) -> tuple[bytes, int]:
    """Return the headers of a row and its priority level, which follows its priority and not the other way round."""
    priority = row.get("priority")
    headers: Mapping[str, str]
    if "rawHeaders" not in row:
        headers = _headers(topic, row.get("headers"))
    elif priority is None:
        raw = row["rawHeaders"] or b""
        headers = decode_headers(raw)
        if PRIORITY_HEADER not in headers or topic.priorities == 1:
            return raw, 0
        return raw, level_below(topic.priorities, priority_of(headers))
    else:
        headers = decode_headers(row["rawHeaders"] or b"")
    level = level_for(topic.name, topic.priorities, priority)
    return encode_headers({**headers, **priority_header(priority)}), level


def _delay(topic: Topic, given: float | None) -> float:
    if given is None or 0 <= given <= LONGEST_S:
        return float(given or 0.0)
    raise BadRow(f"a delay of {given:g} s for topic {topic.name!r}; it may be 0 to {LONGEST_S:g} s")


def _headers(topic: Topic, given: list[dict[str, Any]] | None) -> dict[str, str]:
    headers = {}
    for one in given or ():
        name, value = one["key"], one["value"]
        if name is None or name.startswith("ems-"):
            raise BadRow(f"header {name!r} for topic {topic.name!r}: names that begin with ems- are the library's own")
        try:
            headers[name] = (value or b"").decode()
        except UnicodeDecodeError:
            raise BadRow(f"header {name!r} for topic {topic.name!r} is no UTF-8 text; headers here are text") from None
    return headers


def _place(topic: Topic, number: int, level: int) -> tuple[int, int]:
    """Return the level and the partition within it for the number of a partition, with or without a level.

    A row with a priority goes to the level of that, and keeps the partition within it.
    """
    numbers = topic.partition_numbers()
    if number not in numbers and number not in range(topic.partitions):
        raise BadRow(f"topic {topic.name!r} has no partition {number}; it has {numbers[0]} to {numbers[-1]}")
    return level or level_of(number), number % MAX_PARTITIONS
