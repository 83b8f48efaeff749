"""Ends of calls that were run on another server than that of their flow.

The ack of such a call puts a message into its own topic, for its own group: so it is lost or doubled as little as any
other, on whichever server that topic is by then. A worker of that group knows all servers, and records the end in the
stream of the flow, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from emsworker.extending.apps import Ems, Route, Task
from emsworker.extending.database import Packet
from emsworker.extending.errors import DecodeError
from emsworker.extending.stream import insert_text
from emsworker.extending.values import (
    GROUP_HEADER,
    TASK_HEADER,
    Message,
    NewMessage,
    ResultRow,
    encode_headers,
    encode_json,
)
from emsworker.flows.places import CallPlace, end_of, parse_place
from emsworker.flows.rows import CallEnd, StoredError, encode_value
from emsworker.flows.stores import store_named

_NAME = "ems.flow_end"
# The server of the flow may be away for long, and a flow whose call has no end waits for ever.
_OPTIONS = {"max_attempts": 65_535, "ladder": "1s 5s 30s 1m"}


def send_ends(packet: Packet, topic_id: int, group: str, ends: Sequence[tuple[CallPlace, ResultRow]]) -> None:
    """Append statements that send the ends of calls to the servers of their flows."""
    headers = encode_headers({TASK_HEADER: _NAME, GROUP_HEADER: group})
    for place, row in ends:
        end = end_of(row, place.number)
        failure = None if end.failure is None else [end.failure.kind, end.failure.text]
        value = b"null" if end.value is None else end.value
        body = b"[[%s,%s,%s],{}]" % (encode_json(place.word), value, encode_json(failure))
        message = NewMessage(place.end_uid, None, None, headers, body, is_call=True, has_own_uid=True)
        packet.add(insert_text(packet.session.database, topic_id, [message]))


class EndTask(Task[..., None]):
    """The task that records ends."""

    def __init__(self, app: Ems, route: Route) -> None:
        place = {"topic": route.topic, "group": route.group}
        super().__init__(app, self._record, _NAME, app.registry.options(_OPTIONS), bind=True, **place)
        self._app = app

    def _record(self, message: Message) -> None:
        try:
            (word, value, failure), _ = message.body
        except (TypeError, ValueError):
            word = value = failure = None
        place = parse_place(word)
        if place is None or place.end_uid != message.uid:
            raise DecodeError(f"the body of {message.id} does not tell of the end of a call")
        end = CallEnd(place.number, None, StoredError(*failure)) if failure else _ended(place, value)
        store_named(self._app, place.stream).end(place.flow, place.step, end)

    def call(self, message: Message, transaction: Any = None) -> None:
        """Record the end that a message tells of."""
        self._record(message)


def _ended(place: CallPlace, value: Any) -> CallEnd:
    return CallEnd(place.number, encode_value(value, "what a call returns"), None)


def make(route: Route, name: str) -> EndTask | None:
    """Return the task of a group that records ends."""
    return EndTask(cast("Ems", next(iter(route.tasks.values())).app), route) if name == _NAME else None
