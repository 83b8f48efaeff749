"""Results, progress and flows, as they are and as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from emsworker.extending.apps import Ems
from emsworker.extending.values import Receipt, errors
from emsworker.http.bodies import as_json
from emsworker.web.events import Events

END = "-end"
"""Ends the id of the last event; a browser that comes again with it is told not to."""
_ENDED = ("done", "failed", "cancelled")


def result_of(app: Ems, topic: str, id: str) -> dict[str, Any]:
    """Return the state of a call, its value or error if it has ended, and its progress.

    Raises:
        EmsError: the id is wrong, or the stream cannot be read.
    """
    result = app.result(Receipt(id, topic, None, None))
    found: dict[str, Any] = {"id": result.id, "status": result.status}
    if found["status"] == "pending":
        progress = result.progress
        return found | {"progress": progress and {"fraction": progress.fraction, "text": progress.text}}
    try:
        return found | {"value": as_json(result.get(0))}
    except errors.TaskFailed as error:
        return found | {"error": {"type": error.error_type, "message": error.message}}
    except errors.Cancelled:
        return found


def flow_of(app: Ems, topic: str, id: str) -> dict[str, Any]:
    """Return the state of a flow, and its value or error if it has ended.

    Raises:
        EmsError: there is no such flow on the topic.
    """
    flow = app.find_flow(id, topic=topic)
    found: dict[str, Any] = {"id": id, "state": flow.state}
    if flow.topic != topic:  # its own topic decides who may see it
        raise errors.UnknownName(f"there is no flow {id!r} on topic {topic!r}")
    if found["state"] not in _ENDED:
        return found
    try:
        return found | {"value": as_json(flow.get(0))}
    except errors.EmsError as error:
        return found | {"error": {"type": type(error).__name__, "message": str(error)}}


def follow_result(app: Ems, topic: str, id: str) -> Callable[[], Events]:
    """Return a function that reads the next events of a call: ``progress``, and ``result`` at the end."""
    last: Any = None

    def read() -> Events:
        nonlocal last
        found = result_of(app, topic, id)
        if found["status"] != "pending":
            return Events(_event("result", found, END), is_last=True)
        is_new, last = found["progress"] not in (None, last), found["progress"]
        return Events(_event("progress", last, "") if is_new else b"")

    return read


def follow_flow(app: Ems, topic: str, id: str, after: int) -> Callable[[], Events]:
    """Return a function that reads the next events of a flow: ``value`` for what it emits, and ``end``.

    Args:
        after: the number of the last value that the client has had.
    """

    def read() -> Events:
        nonlocal after
        found = flow_of(app, topic, id)  # before what it has emitted: nothing follows its end
        values = app.find_flow(id, topic=topic).emitted(after)
        texts = [_event("value", as_json(value), str(number)) for number, value in values]
        after = values[-1][0] if values else after
        is_last = found["state"] in _ENDED and not values
        if is_last:
            texts.append(_event("end", found, f"{after}{END}"))
        return Events(b"".join(texts), is_last)

    return read


def _event(name: str, value: Any, id: str) -> bytes:
    named = f"event: {name}\n" + (f"id: {id}\n" if id else "")
    return named.encode() + b"data: " + json.dumps(value).encode() + b"\n\n"
