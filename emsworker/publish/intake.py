"""The intake: messages that other programs have written by plain SQL are checked as a send is, and moved to the outbox.

Invalid rows are kept with their error and do not block others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from emsworker.core.batches import in_batches
from emsworker.core.config import Settings
from emsworker.core.errors import EmsError, EncodeError, InvalidName, MessageTooLarge, UnknownTopic
from emsworker.core.extension import extensions
from emsworker.core.ids import check_name
from emsworker.core.model import TASK_HEADER, NewMessage, Topic
from emsworker.core.options import refuse_reserved
from emsworker.publish.outgoing import Outgoing, admit
from emsworker.store.engine.session import Session
from emsworker.store.stream import intake, outbox
from emsworker.store.stream.intake import PlainRow, Waiting
from emsworker.store.stream.messages import row_bytes
from emsworker.store.topics import get_topic

log = logging.getLogger(__name__)

_PRODUCER = "sql"
_BYTES = 4 << 20  # of bodies and headers in a round
_HEADERS_BYTES = 65_535  # the most that the column holds
_STATEMENT_BYTES, _PACKET_SLACK = 2 << 20, 8192


@dataclass(frozen=True)
class IngestResult:
    """Outcome of one round of the intake.

    Attributes:
        moved: messages that are in the outbox now.
        refused: rows that are kept with an error.
    """

    moved: int
    refused: int


def ingest(session: Session, settings: Settings, limit: int) -> IngestResult:
    """Move the oldest rows to the outbox, at most ``limit`` and 4 MiB of bodies, in one transaction.

    Raises:
        AssertionBroken: a topic was deleted meanwhile; nothing was moved.
    """

    def attempt() -> IngestResult:
        session.begin()
        round_ = _Round(session, settings, intake.lock_waiting(session, limit))
        if not round_.rows:
            session.rollback()
            return IngestResult(0, 0)
        return round_.run()

    return session.retry_on_conflict(attempt)


class _Round:
    """One round: a few rows in an open transaction."""

    def __init__(self, session: Session, settings: Settings, waiting: Sequence[Waiting]) -> None:
        self._session, self._settings = session, settings
        self._topics: dict[str, Topic | EmsError] = {}
        self._errors: dict[int, EmsError] = {}
        self.rows = next(in_batches(waiting, self._weight, _BYTES), [])

    def run(self) -> IngestResult:
        """Check the rows, and commit their messages and their errors."""
        good: list[tuple[Topic, NewMessage]] = []
        for row in intake.read_rows(self._session, [one.id for one in self.rows if one.id not in self._errors]):
            try:
                topic = self._topic(row.topic)
                good.append((topic, self._read(topic, row)))
            except EmsError as error:
                self._errors[row.id] = error
        packet = self._session.packet()
        database = self._session.database
        for topic in {topic.id: topic for topic, _ in good}.values():
            messages = [message for its, message in good if its.id == topic.id]
            for part in in_batches(messages, row_bytes, min(_STATEMENT_BYTES, self._most_bytes), most=500):
                packet.add(outbox.insert_text(database, topic.id, part))
        intake.add_deletion(packet, [row.id for row in self.rows if row.id not in self._errors])
        for number, why in self._errors.items():
            intake.add_refusal(packet, number, str(why))
        packet.commit()
        packet.send()
        for number, why in self._errors.items():
            log.warning("row %d of ems_publish is refused: %s; see `ems refused list`", number, why)
        return IngestResult(len(good), len(self._errors))

    def _weight(self, row: Waiting) -> int:
        """Return the bytes to read of a row: none of one that its topic does not take."""
        try:
            topic = self._topic(row.topic)
            if row.size - _HEADERS_BYTES > topic.max_message_bytes:
                raise MessageTooLarge(
                    f"a row of {row.size} bytes is over the limit of topic {topic.name!r}, "
                    f"{topic.max_message_bytes} bytes of body"
                )
        except EmsError as error:
            self._errors[row.id] = error
            return 0
        return row.size

    def _topic(self, name: str) -> Topic:
        """Return a topic; unlike a send, the intake creates none: it takes an unknown name for a typo."""
        if name not in self._topics:
            found = get_topic(self._session, name)
            unknown = UnknownTopic(f"there is no topic {name!r}; create it with `ems topics create`")
            self._topics[name] = _reserved(name) or (unknown if found is None else found)
        topic = self._topics[name]
        if isinstance(topic, EmsError):
            raise topic
        return topic

    @property
    def _most_bytes(self) -> int:
        return self._session.most_bytes - _PACKET_SLACK

    def _read(self, topic: Topic, row: PlainRow) -> NewMessage:
        """Return the message of a row, checked as by a send.

        Raises:
            EmsError: it cannot be sent.
        """
        outgoing = outgoing_of(row)
        message = outgoing.encode(self._settings)
        admit(topic, message)
        message.producer_id = _PRODUCER
        if row_bytes(message) > self._most_bytes:
            raise MessageTooLarge(
                f"its statement takes {row_bytes(message)} bytes, the server {self._most_bytes} (max_allowed_packet)"
            )
        return message


def _reserved(topic: str) -> EmsError | None:
    """Return the error of a topic whose consumers can read nothing that plain SQL writes."""
    for one in extensions().values():
        if topic.startswith(one.topics):
            return InvalidName(f"topic {topic!r} is one of {one.name}, whose own programs alone can send to it")
    return None


def outgoing_of(row: PlainRow) -> Outgoing:
    """Return what a row means.

    Raises:
        EncodeError: its body or its headers are not what they must be.
        InvalidName, ConfigError: another column has no valid value.
    """
    body, headers = _parse("body", row.body), _headers(row.headers)
    refuse_reserved(headers)
    if row.task is not None:
        headers = {**headers, TASK_HEADER: check_name("task", row.task)}
        body = _call(body)
    return Outgoing(
        row.topic,
        body,
        key=row.key,
        tag=row.tag,
        headers=headers,
        uid=row.uid,
        serializer="json",
        priority=row.priority,
        delay=row.delay_s,
    )


def _headers(text: str | None) -> dict[str, str]:
    headers = {} if text is None else _parse("headers", text)
    if not isinstance(headers, dict):
        raise EncodeError(f"headers = {text!r:.100}: they must be a JSON object of texts")
    return headers


def _call(body: Any) -> list[Any]:
    """Return the body of a call: arguments by name for an object, by position for an array."""
    if isinstance(body, dict):
        return [[], body]
    if isinstance(body, list):
        return [body, {}]
    raise EncodeError(
        f"body = {body!r:.100}: a row with a task has its arguments, a JSON object by name or an array by position"
    )


def _parse(column: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise EncodeError(f"{column} = {text!r:.100} is not JSON: {error}") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
