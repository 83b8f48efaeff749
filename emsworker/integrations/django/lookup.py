"""Results of Django's tasks, from the message, its history and its stored result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from emsworker.extending.administration import GroupTrace, Monitoring, TraceState
from emsworker.extending.apps import Ems
from emsworker.extending.errors import EmsError, InvalidName, UnknownMessage
from emsworker.extending.stream import AttemptRow, read_sent, topics
from emsworker.extending.values import TASK_HEADER, Outcome, decode_headers, parse_uid
from emsworker.integrations.django.framework import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus

_RUNNING = (TraceState.CLAIMED, TraceState.RUNNING)
_FAILED = (TraceState.DEAD, TraceState.DROPPED, TraceState.SKIPPED)
_ENDED_WELL = (Outcome.DONE, Outcome.IGNORED, Outcome.EXPIRED, Outcome.CANCELLED)
# The first line of a traceback's error: it stands after the last indented line.
_ERROR = re.compile(r"(?:^|\n)(?P<path>[A-Za-z_][\w.]*)(?::[^\n]*)?(?=\n|$)")


class Backend(Protocol):
    """The parts of a task backend that a look-up needs."""

    alias: str

    @property
    def app(self) -> Ems:
        """The app with its tasks."""
        ...

    def task_named(self, path: str) -> Any:
        """Return Django's task of a module path."""
        ...


@dataclass(frozen=True)
class _Call:
    """A call as it was sent."""

    topic: str
    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    sent_at: datetime


def find_result(backend: Backend, result_id: str) -> Any:
    """Return the result of a call; see :meth:`EmsBackend.get_result`."""
    call = _find_call(backend, result_id)
    try:
        task = backend.task_named(call.path)
    except LookupError as error:
        raise TaskResultDoesNotExist(f"{result_id}: {error}") from None
    found = TaskResult(
        task=task,
        id=result_id,
        status=TaskResultStatus.READY,
        enqueued_at=call.sent_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=call.args,
        kwargs=call.kwargs,
        backend=backend.alias,
        errors=[],
        worker_ids=[],
    )
    history = _find_history(backend, result_id, call.topic)
    if history is not None:
        _tell(found, history)
        if history.state is TraceState.DONE:
            _end_well(backend, found, call)
    return found


def _find_call(backend: Backend, result_id: str) -> _Call:
    """Return a call from the stream, or from the outbox while it is delayed."""
    database, decoder = backend.app.stream.database, backend.app.stream.decoder
    try:
        uid = parse_uid(result_id)
    except InvalidName as error:
        raise TaskResultDoesNotExist(str(error)) from None
    names = {topic.id: topic.name for topic in database.call(topics.list_topics)}
    sent = database.call(lambda session: read_sent(session, list(names), uid))
    if sent is None:
        raise TaskResultDoesNotExist(
            f"no call {result_id} is kept: it was never sent, is not committed, was cancelled, or has been deleted"
        )
    try:
        headers = decode_headers(sent.raw_headers)
        args, kwargs = decoder.decode(sent.body, headers)
        return _Call(names[sent.topic_id], headers[TASK_HEADER], args, kwargs, sent.sent_at)
    except (EmsError, KeyError, ValueError, TypeError) as error:
        raise TaskResultDoesNotExist(f"message {result_id} is no call of a task: {error!r}") from None


def _find_history(backend: Backend, result_id: str, topic: str) -> GroupTrace | None:
    """Return the history of a message in the group of the tasks; ``None`` before a worker has made that group."""
    try:
        groups = Monitoring(backend.app).trace(result_id, topic)[0].groups
    except UnknownMessage:  # it waits in the outbox
        return None
    return next((one for one in groups if one.group.name == backend.app.settings.group), None)


def _tell(found: Any, one: GroupTrace) -> None:
    """Put what is known of the attempts into a result."""
    history, state = one.history, one.state
    attempts = history.attempts
    begun = [attempt.ended_at - timedelta(milliseconds=attempt.ran_ms or 0) for attempt in attempts]
    workers = [attempt.client_id or "unknown" for attempt in attempts]
    ended_at = attempts[-1].ended_at if attempts else None
    retried = history.retry is not None and history.retry.claimed_at is not None
    if state in _RUNNING or retried:
        status = TaskResultStatus.RUNNING
        claimed_at = history.retry.claimed_at if history.retry is not None and retried else None
        if claimed_at is None and history.claim is not None:
            claimed_at = history.claim.claimed_at
        begun += [claimed_at] if claimed_at is not None else []
        workers.append(one.client_id or "unknown")
    elif state in _FAILED:
        status = TaskResultStatus.FAILED
        ended_at = history.dead.dead_at if history.dead is not None else ended_at
    else:
        status = TaskResultStatus.SUCCESSFUL if state is TraceState.DONE else TaskResultStatus.READY
    if state is TraceState.DONE and not attempts and history.claim is not None:  # the first attempt succeeded
        begun, ended_at = [history.claim.claimed_at], history.claim.progress_at
        workers = [one.client_id or "unknown"]
    found.errors.extend(_error(attempt) for attempt in attempts if attempt.outcome not in _ENDED_WELL)
    found.worker_ids.extend(workers)
    _set(
        found,
        status=status,
        started_at=begun[0] if begun else None,
        last_attempted_at=begun[-1] if begun else None,
        finished_at=ended_at if status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED) else None,
    )


def _end_well(backend: Backend, found: Any, call: _Call) -> None:
    """Put the value of a call that is done into its result.

    Raises:
        TaskResultDoesNotExist: it has expired.
    """
    handler = backend.app.registry.routes[call.topic, backend.app.settings.group].tasks.get(call.path)
    if handler is not None and not handler.options.keeps_result:
        return
    topic_results = backend.app.broker.results([call.topic], backend.app.settings.group)
    row = topic_results.find([parse_uid(found.id)]).get(parse_uid(found.id))
    if row is None:
        raise TaskResultDoesNotExist(f"the result of {found.id} has expired (setting 'result_ttl_s')")
    if row.error_type is not None:  # its value could not be kept, or its error was ignored
        if not found.errors:
            found.errors.append(TaskError(exception_class_path=row.error_type, traceback=row.traceback or ""))
        _set(found, status=TaskResultStatus.FAILED)
        return
    _set(found, _return_value=backend.app.stream.decoder.decode(topic_results.load(row), {}))


def _error(attempt: AttemptRow) -> Any:
    text = attempt.error or attempt.outcome.value
    return TaskError(exception_class_path=error_path(text), traceback=text)


def error_path(text: str) -> str:
    """Return the dotted path of the exception that a traceback ends with; ``builtins.Exception`` if it names none."""
    lines = text.splitlines()
    indented = [number for number, line in enumerate(lines) if line.startswith((" ", "\t"))]
    tail = "\n".join(lines[indented[-1] + 1 if indented else 0 :])
    match = _ERROR.search(tail)
    path = match["path"] if match is not None else "Exception"
    return path if "." in path else f"builtins.{path}"


def _set(found: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(found, name, value)  # it is frozen for users
