"""The operations of clients: the path, the role and the schemas of each, and what it does.

The document of OpenAPI, the checks of requests and the routes are all made from this list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.responses import Response

from emsworker.extending.consuming import PullConsumer
from emsworker.extending.errors import EmsError
from emsworker.extending.values import LONGEST_S, Message
from emsworker.http import followed
from emsworker.http.asked import CheckedRequest, HttpServices
from emsworker.http.bodies import outgoing
from emsworker.http.faults import HttpFault, fault_of
from emsworker.http.pulls import HeldMessage, PulledGroup
from emsworker.http.schemas import Schema, items, members, number, text
from emsworker.web.events import EventStream

_NOT_KNOWN = "not known here: settled or given back long ago, or another server's; unless it is done, it comes again"
MOST_MESSAGES, MOST_WAIT_S = 1000, 60.0
_RECEIPTS = items(text("receipt of a message", 200), MOST_MESSAGES, "receipts that `fetch` has returned")
_ANY: Schema = {"description": "any JSON"}
_ID = text("UUID")
_WHOLE: Schema = {"type": "integer"}
_TEXT: Schema = {"type": "string"}


@dataclass(frozen=True)
class HttpOperation:
    """An operation.

    Args:
        name: in metrics and in the document.
        method, path: of its requests; what is in braces are parameters.
        role: that a token must have.
        summary: a line of the document.
        run: does it.
        body: schema of the request's body; ``None`` if it has none.
        query: schemas of the parameters of the query; all are required but those that say ``optional``.
        answer: schema of the answer; ``None`` for a stream of events.
    """

    name: str
    method: str
    path: str
    role: str
    summary: str
    run: Callable[[HttpServices, CheckedRequest], Awaitable[Any]]
    body: Schema | None = None
    query: Mapping[str, Schema] = field(default_factory=dict)
    answer: Schema | None = None


# -- sending -----------------------------------------------------------------------------------------------------------


async def _send(site: HttpServices, asked: CheckedRequest) -> Any:
    topic, given = asked.path["topic"], asked.body["messages"]
    messages = [outgoing(topic, one, f"messages[{position}]") for position, one in enumerate(given)]
    receipts = await site.call(lambda: site.app.send_many(topic, messages))
    return {
        "messages": [
            {"id": one.id, "partition": one.partition, "offset": one.offset, "created": one.created} for one in receipts
        ]
    }


async def _call(site: HttpServices, asked: CheckedRequest) -> Any:
    given, options = asked.body, {}
    for name, option in (("key", "key"), ("id", "task_id"), ("delay_s", "countdown"), ("priority", "priority")):
        if name in given:
            options[option] = given[name]

    def call() -> Any:
        return site.app.send_task(
            asked.path["task"],
            given.get("args", ()),
            given.get("kwargs"),
            group=asked.path["group"],
            topic=asked.path["topic"],
            **options,
        )

    receipt = await site.call(call)
    return {"id": receipt.id, "topic": asked.path["topic"]}


async def _signal(site: HttpServices, asked: CheckedRequest) -> Any:
    topic, flow, name = asked.path["topic"], asked.body["flow"], asked.body["name"]

    def signal() -> None:
        followed.flow_of(site.app, topic, flow)  # the topic on which it runs decides who may signal it
        try:
            site.app.signal(flow, name, asked.body.get("value"), topic=topic)
        except EmsError as error:
            raise fault_of(error, (409, "flow_refuses")) from None

    await site.call(signal)
    site.tell("signal %r to flow %r by token %r", name, flow, asked.token.name)
    return {}


# -- receiving ---------------------------------------------------------------------------------------------------------


async def _fetch(site: HttpServices, asked: CheckedRequest) -> Any:
    given = asked.body
    found = await site.pulls.fetch(
        asked.path["topic"],
        asked.path["group"],
        given.get("n", 1),
        float(given.get("wait_s", 0)),
        float(given.get("lease_s", site.lease_s)),
        asked.wait_until_gone,
    )
    return {"messages": [{"receipt": receipt, **message} for receipt, message in found]}


async def _ack(site: HttpServices, asked: CheckedRequest) -> Any:
    return await _settle(site, asked, "ack", lambda consumer, message: consumer.ack(message))


async def _nack(site: HttpServices, asked: CheckedRequest) -> Any:
    given = asked.body
    delay, dead, error = given.get("delay_s"), given.get("dead", False), given.get("error")
    if dead and delay is not None:
        raise HttpFault(400, "invalid", "delay_s is given together with dead: a dead letter is not retried")

    def nack(consumer: PullConsumer, message: Message) -> None:
        consumer.nack(message, delay=delay, dead=dead, error=error)

    return await _settle(site, asked, "nack", nack)


async def _release(site: HttpServices, asked: CheckedRequest) -> Any:
    return await _settle(site, asked, "release", lambda consumer, message: consumer.release(message))


async def _extend(site: HttpServices, asked: CheckedRequest) -> Any:
    seconds = float(asked.body["seconds"])
    return await _settle(site, asked, "extend", lambda consumer, message: consumer.extend(message, seconds), False)


async def _settle(
    site: HttpServices,
    asked: CheckedRequest,
    name: str,
    act: Callable[[PullConsumer, Message], None],
    confirms: bool = True,
) -> Any:
    """Settle the messages of receipts, each by itself; the answer names those for which it failed."""
    failed: dict[str, HttpFault] = {}
    by_group: dict[PulledGroup, dict[str, HeldMessage]] = {}
    for receipt in asked.body["receipts"]:
        found = site.pulls.find(receipt)
        if found is None or not asked.token.reaches(found[0].topic):
            failed[receipt] = HttpFault(409, "not_in_hand", _NOT_KNOWN)
        else:
            by_group.setdefault(found[0], {})[receipt] = found[1]
    for pulled, held in by_group.items():
        refused = await site.call(partial(pulled.settle, held, name, act, confirms=confirms))
        failed |= {receipt: fault_of(error) for receipt, error in refused.items()}
    if failed:
        several = [{"receipt": receipt, "code": one.code, "message": one.text} for receipt, one in failed.items()]
        first = several[0]
        told = f"{len(failed)} of {len(asked.body['receipts'])}: {first['message']}"
        raise HttpFault(409, first["code"], told, failed=several)
    return {}


# -- results and flows -------------------------------------------------------------------------------------------------


async def _result(site: HttpServices, asked: CheckedRequest) -> Any:
    return await site.call(lambda: followed.result_of(site.app, asked.path["topic"], asked.query["id"]))


async def _flow(site: HttpServices, asked: CheckedRequest) -> Any:
    return await site.call(lambda: followed.flow_of(site.app, asked.path["topic"], asked.query["id"]))


async def _follow_result(site: HttpServices, asked: CheckedRequest) -> Any:
    if asked.last_event_id.endswith(followed.END):
        return Response(status_code=204)  # by which a browser stops to come again
    topic, id = asked.path["topic"], asked.query["id"]
    await site.call(lambda: followed.result_of(site.app, topic, id))  # what is wrong is told by a status
    return site.stream(EventStream(followed.follow_result(site.app, topic, id)))


async def _follow_flow(site: HttpServices, asked: CheckedRequest) -> Any:
    last = asked.last_event_id or asked.query.get("after", "0")
    if last.endswith(followed.END):
        return Response(status_code=204)
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise HttpFault(400, "invalid", f"after = {last[:50]!r} must be the number of the last value")
    topic, id = asked.path["topic"], asked.query["id"]
    await site.call(lambda: followed.flow_of(site.app, topic, id))
    return site.stream(EventStream(followed.follow_flow(site.app, topic, id, int(last))))


# -- the list ----------------------------------------------------------------------------------------------------------

_NEW_MESSAGE = members(
    body=_ANY,
    body_base64={"type": "string", "description": "bytes instead of a body", "contentEncoding": "base64"},
    key=text("messages with the same key share a partition"),
    tag=text("one word that groups can filter by"),
    headers={"type": "object", "additionalProperties": _TEXT},
    id=text("a UUID of your own: a second message with it is not written, so a send can be repeated"),
    delay_s=number("seconds before it may be read", 0, LONGEST_S),
    priority=number("higher ones are run first", 0, 9, "integer"),
    dedup_key=text("not sent again while the message with this key is unfinished"),
    dedup_window_s=number("seconds for which that lasts at least", 0, LONGEST_S),
)
_MESSAGE = {
    "type": "object",
    "required": ["receipt", "id", "topic", "partition", "offset", "attempt"],
    "properties": {
        "receipt": _TEXT,
        "id": _TEXT,
        "topic": _TEXT,
        "partition": _WHOLE,
        "offset": _WHOLE,
        "attempt": {"type": "integer", "description": "1 for the first"},
        "born_at": {"type": "string", "format": "date-time"},
        "key": {"type": ["string", "null"]},
        "tag": {"type": ["string", "null"]},
        "headers": {"type": "object", "additionalProperties": _TEXT},
        "body": _ANY,
        "body_base64": {"type": "string", "description": "of a body of bytes, or one that cannot be read"},
        "problem": {"type": "string", "description": "why the body cannot be read"},
    },
}
_SENT = {
    "type": "object",
    "required": ["id", "created"],
    "properties": {
        "id": _TEXT,
        "partition": {"type": ["integer", "null"]},
        "offset": {"type": ["integer", "null"], "description": "null while it is delayed"},
        "created": {"type": "boolean", "description": "false if a message with this id was there"},
    },
}
_RESULT = {
    "type": "object",
    "required": ["id", "status"],
    "properties": {
        "id": _TEXT,
        "status": {"enum": ["pending", "done", "failed", "cancelled"]},
        "value": _ANY,
        "error": {"type": "object", "properties": {"type": _TEXT, "message": _TEXT}},
        "progress": {"type": ["object", "null"]},
    },
}
_FLOW = {
    "type": "object",
    "required": ["id", "state"],
    "properties": {
        "id": _TEXT,
        "state": {"enum": ["ready", "running", "waiting", "done", "failed", "cancelled"]},
        "value": _ANY,
        "error": {"type": "object", "properties": {"type": _TEXT, "message": _TEXT}},
    },
}
_NOTHING = {"type": "object"}
_LEASE = number("seconds that each may be in hand; then it counts as failed, and is retried", 1, 12 * 3600)
_AFTER = {"type": "string", "description": "the number of the last value that was had", "optional": True}


def _list_of(name: str, schema: Schema) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: {"type": "array", "items": schema}}}


OPERATIONS: Sequence[HttpOperation] = (
    HttpOperation(
        "send", "POST", "/v1/topics/{topic}/messages", "producer",
        "Send messages; the answer comes after their commit.", _send,
        members(("messages",), messages=items(_NEW_MESSAGE, MOST_MESSAGES)), answer=_list_of("messages", _SENT),
    ),
    HttpOperation(
        "call", "POST", "/v1/topics/{topic}/groups/{group}/tasks/{task}", "producer",
        "Call a task by its name; a worker of the group runs it.", _call,
        members(
            args={"type": "array", "items": _ANY}, kwargs={"type": "object"}, key=text("as of a message"),
            id=text("a UUID of your own, as of a message"),
            delay_s=number("seconds before it may be run", 0, LONGEST_S),
            priority=number("higher ones are run first", 0, 9, "integer"),
        ),
        answer={"type": "object", "required": ["id", "topic"], "properties": {"id": _TEXT, "topic": _TEXT}},
    ),
    HttpOperation(
        "fetch", "POST", "/v1/topics/{topic}/groups/{group}/fetch", "worker",
        "Take messages in hand; waits for the first one.", _fetch,
        members(
            n=number("the most to take; 1", 1, MOST_MESSAGES, "integer"),
            wait_s=number("seconds to wait for the first; 0", 0, MOST_WAIT_S),
            lease_s=_LEASE,
        ),
        answer=_list_of("messages", _MESSAGE),
    ),
    HttpOperation(
        "ack", "POST", "/v1/ack", "worker",
        "Count messages as done; the answer comes when that is written down.", _ack,
        members(("receipts",), receipts=_RECEIPTS), answer=_NOTHING,
    ),
    HttpOperation(
        "nack", "POST", "/v1/nack", "worker",
        "Count the attempts as failed: they are retried as the group says, or become dead letters.", _nack,
        members(
            ("receipts",), receipts=_RECEIPTS, delay_s=number("seconds until the next attempt", 0, LONGEST_S),
            dead={"type": "boolean", "description": "make them dead letters at once"},
            error=text("stored with the attempt", 10_000),
        ),
        answer=_NOTHING,
    ),
    HttpOperation(
        "release", "POST", "/v1/release", "worker",
        "Give messages back with no attempt charged; they are delivered again at once.", _release,
        members(("receipts",), receipts=_RECEIPTS), answer=_NOTHING,
    ),
    HttpOperation(
        "extend", "POST", "/v1/extend", "worker",
        "Keep messages in hand for at least this many seconds from now.", _extend,
        members(("receipts", "seconds"), receipts=_RECEIPTS, seconds=number("seconds from now", 1, 12 * 3600)),
        answer=_NOTHING,
    ),
    HttpOperation(
        "signal", "POST", "/v1/topics/{topic}/signals", "producer",
        "Give a flow a signal; one that comes before it is waited for is kept.", _signal,
        members(("flow", "name"), flow=text("id of the flow"), name=text("of the signal", 190), value=_ANY),
        answer=_NOTHING,
    ),
    HttpOperation(
        "result", "GET", "/v1/topics/{topic}/results", "reader",
        "Look at the result of a call.", _result, query={"id": _ID}, answer=_RESULT,
    ),
    HttpOperation(
        "follow_result", "GET", "/v1/topics/{topic}/results/events", "reader",
        "Follow a call by server-sent events: `progress`, and `result` at the end.", _follow_result, query={"id": _ID},
    ),
    HttpOperation(
        "flow", "GET", "/v1/topics/{topic}/flows", "reader",
        "Look at a flow.", _flow, query={"id": text("id of the flow")}, answer=_FLOW,
    ),
    HttpOperation(
        "follow_flow", "GET", "/v1/topics/{topic}/flows/events", "reader",
        "Follow a flow by server-sent events: `value` for what it emits, and `end`.", _follow_flow,
        query={"id": text("id of the flow"), "after": _AFTER},
    ),
)  # fmt: skip
