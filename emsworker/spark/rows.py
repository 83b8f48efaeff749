"""Conversion of a data frame's rows to messages; the columns are those of Spark's Kafka sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from emsworker.app import Ems
from emsworker.core.codec import encode_headers
from emsworker.core.errors import ConfigError, EmsError, MessageTooLarge, Problem, TopicRuleError
from emsworker.core.ids import MAX_KEY_BYTES, new_uid
from emsworker.core.model import NewMessage, Topic
from emsworker.store.stream.staging import StagedRow

_TEXT = ("string", "binary")
_COLUMNS = {
    "value": _TEXT,
    "key": _TEXT,
    "tag": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "rawHeaders": ("binary",),
}


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
            if kinds is None:
                problems.append(Problem(f"column {field.name}", kind, f"the sink knows {', '.join(_COLUMNS)}"))
            elif kind not in kinds:
                problems.append(Problem(f"column {field.name}", kind, f"must be {' or '.join(kinds)}"))
        names = tuple(field.name for field in schema.fields)
        if "value" not in names:
            problems.append(Problem("column value", "missing", "it is the body of a message: a string or binary"))
        if topic is None and "topic" not in names:
            problems.append(Problem("option topic", "not given", "name the topic, or have a column of that name"))
        if {"headers", "rawHeaders"} <= set(names):
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
        topic = app.stream.catalog.topic(name)
        body = _bytes(row["value"])
        if body is None:
            raise BadRow(f"a row for topic {name!r} has no value; a message must have a body, an empty one at least")
        _check(topic, body)
        key, tag = (_label(topic, what, row.get(what)) for what in ("key", "tag"))
        headers = row["rawHeaders"] or b"" if "rawHeaders" in row else _headers(topic, row.get("headers"))
        message = NewMessage(new_uid(), key, tag, headers, body)
        wanted = row.get("partition")
        number = message.place(topic.partitions, turn) if wanted is None else _checked(topic, wanted)
        return StagedRow(topic.id, number, message)


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


def _headers(topic: Topic, given: list[dict[str, Any]] | None) -> bytes:
    headers = {}
    for one in given or ():
        name, value = one["key"], one["value"]
        if name is None or name.startswith("ems-"):
            raise BadRow(f"header {name!r} for topic {topic.name!r}: names that begin with ems- are the library's own")
        try:
            headers[name] = (value or b"").decode()
        except UnicodeDecodeError:
            raise BadRow(f"header {name!r} for topic {topic.name!r} is not UTF-8 text; headers here are text") from None
    return encode_headers(headers)


def _checked(topic: Topic, number: int) -> int:
    numbers = topic.partition_numbers()
    if number not in numbers:
        raise BadRow(f"topic {topic.name!r} has no partition {number}; it has {numbers[0]} to {numbers[-1]}")
    return number
