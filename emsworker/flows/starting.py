"""Starts flows: by a program, by another flow that calls one, or by a message that calls the flow as a task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from emsworker.extending.apps import Ems, Signature
from emsworker.extending.errors import InvalidName, TopicRuleError, WrongArguments
from emsworker.extending.values import (
    GROUP_HEADER,
    PRIORITY_HEADER,
    TASK_HEADER,
    Topic,
    encode_headers,
    level_for,
    new_uid,
    uid_text,
)
from emsworker.flows.places import CallPlace
from emsworker.flows.port import FlowFunction, FlowStore
from emsworker.flows.rows import FlowRow, NewFlow, encode_value

FLOW_HEADER = "ems-flow"
"""Of the messages that run a flow: the identity of the stream that keeps it."""
_LONGEST_KEY = 190


def wake_headers(task: FlowFunction, store: FlowStore) -> dict[str, str]:
    """Return the headers of the messages that run flows of a function."""
    words = {TASK_HEADER: task.name, GROUP_HEADER: task.group, FLOW_HEADER: store.stream_id}
    return words if task.options.priority is None else words | {PRIORITY_HEADER: str(task.options.priority)}


def new_flow(
    task: FlowFunction,
    store: FlowStore,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: str,
    *,
    timeout_s: float | None = None,
    attributes: Mapping[str, Any] | None = None,
    parent: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    debounce_s: float | None = None,
) -> NewFlow:
    """Return a flow that is to be started, checked.

    Args:
        store: that will keep it.
        headers: more of the messages that run it.
        debounce_s: the key is that of a burst of starts, whose last one starts a flow when there was none for so long.

    Raises:
        WrongArguments: the function does not take these arguments, or ``attributes`` is no dict.
        EncodeError: an argument has no JSON form.
        InvalidName: the id or an attribute is too long, or no text.
    """
    body = task.body_of(args, kwargs)
    burst, longest = None, _LONGEST_KEY
    if debounce_s is not None:
        burst, longest = key, _LONGEST_KEY - len(f"/{uid_text(new_uid())}")
        attributes = {"debounce": burst, **(attributes or {})}
    if not isinstance(key, str) or not 0 < len(key) <= longest:
        raise InvalidName(f"flow id {key!r:.200}: it must be a text of 1 to {longest} characters")
    if attributes is not None and not isinstance(attributes, Mapping):
        raise WrongArguments(f"attributes = {attributes!r:.200}: it must be a dict; no flow was started")
    words = {
        _word("an attribute's name", name, 64): _word(name, str(value), 190)
        for name, value in (attributes or {}).items()
    }
    encoded = encode_value(body, f"the arguments of flow {task.name!r}")
    encoded_headers = encode_headers({**headers, **wake_headers(task, store)})
    own = key if burst is None else f"{burst}/{uid_text(new_uid())}"
    common = own, task.name, task.version, task.topic, encoded_headers, encoded, timeout_s, words
    return NewFlow(*common, parent, burst, debounce_s)


def _word(what: str, text: Any, longest: int) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= longest:
        raise InvalidName(f"{what} = {text!r:.200}: it must have 1 to {longest} characters")
    return text


def start(store: FlowStore, task: FlowFunction, new: NewFlow, transaction: Any = None) -> bool:
    """Start a flow, perhaps with a transaction; false if one with its id was there already.

    Raises:
        FlowExists: that one is of another function, or has other arguments.
    """
    topic = _topic(store, task)
    return store.start(transaction, _with_level(new, topic, task), topic, new_uid())


def start_later(store: FlowStore, task: FlowFunction, new: NewFlow, transaction: Any = None) -> str:
    """Start the flow of a burst, or move its start; return its id."""
    topic = _topic(store, task)
    return store.debounce(transaction, _with_level(new, topic, task), topic.id, new_uid())


def _with_level(new: NewFlow, topic: Topic, task: FlowFunction) -> NewFlow:
    """Return a new flow with the level of its function's priority.

    Raises:
        InvalidPriority: the topic distinguishes no priorities.
    """
    return replace(new, level=level_for(topic.name, topic.priorities, task.options.priority))


def _topic(store: FlowStore, task: FlowFunction) -> Topic:
    """Return the topic on which flows are run.

    Raises:
        TopicRuleError: it takes no messages.
    """
    topic = store.topic(task.flow_app, task.topic)
    if not topic.rule.writable:
        raise TopicRuleError(f"topic {task.topic!r} has the rule {topic.rule.value!r}; no flow was started on it")
    return topic


def start_child(
    store: FlowStore,
    transaction: Any,
    signature: Signature[Any],
    parent: FlowRow,
    place: CallPlace,
) -> bool:
    """Start the flow that another one calls; false if it calls a task.

    Args:
        place: of the call.
    """
    task = signature.task
    if not isinstance(task, FlowFunction):
        return False
    if signature.options:
        names = ", ".join(signature.options)
        raise WrongArguments(
            f"a call of flow {task.name!r} has no options, and was given {names}; those of its tasks do"
        )
    task.check_kept_by(store)
    key = child_key(parent.key, place.step, place.number)
    caller = f"{place.flow}.{place.step}.{place.number}"
    new = new_flow(task, store, signature.args, signature.kwargs, key, parent=caller)
    start(store, task, new, transaction)
    return True


def send_alone(app: Ems, transaction: Any, signature: Signature[Any]) -> None:
    """Make a call for which no flow waits."""
    if isinstance(signature.task, FlowFunction):
        signature.task.start(*signature.args, transaction=transaction, **signature.kwargs)
    else:
        call = signature.prepare()
        app.publisher.publish(call.topic, [call], transaction)


def child_key(parent: str, step: int, number: int) -> str:
    """Return the id of the flow that another one calls."""
    key = f"{parent}/{step}.{number}"
    return key if len(key) <= _LONGEST_KEY else hashlib.sha256(key.encode()).hexdigest()
