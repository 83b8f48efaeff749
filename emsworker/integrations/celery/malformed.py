"""Check of what a worker of Celery is about to receive: anybody may write a message by plain SQL.

Celery's main process takes the parts of a message for what Celery writes. It ends by what has other types, and what
fails later, in a timer or while an error is stored, is never settled and keeps its place among the prefetched ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any

from kombu.transport.base import Message

from emsworker.extending.errors import DecodeError
from emsworker.extending.values import LONGEST_S

_MOST_CHARACTERS = 255  # of an id: results are kept under it
_MOST_NUMBER = 1 << 63


def check_call(message: Message) -> None:
    """Refuse a call of a task that Celery has not written; what is no call is left to Celery.

    Its body is decoded here, and kept by the message for Celery.

    Raises:
        DecodeError: naming the first part that is wrong.
    """
    try:
        body = message.payload
    except Exception:  # Celery refuses it by itself, with its own reason
        return
    if "task" in message.headers:
        _check(message.headers, _CALL, "header")
        if isinstance(body, dict) and "args" in body:  # a mixture of both protocols
            _check(body, {**_CALL, **_OLD_BODY, "task": _text, "id": _text}, "body")
        else:
            _check_body(body)
    elif isinstance(body, dict) and "task" in body:  # the first protocol: all is in the body
        _check(body, {**_CALL, **_OLD_BODY}, "body")
    else:
        return
    _check(message.properties, {"reply_to": _text, "correlation_id": _text}, "property")


def _check(parts: Mapping[str, Any], wanted: Mapping[str, Callable[[Any], bool]], what: str) -> None:
    for name, is_right in wanted.items():
        if not is_right(value := parts.get(name)):
            raise DecodeError(f"{what} {name} = {value!r:.100} is not what Celery writes")


def _check_body(body: Any) -> None:
    if not isinstance(body, list | tuple) or len(body) != 3:
        raise DecodeError(f"body = {body!r:.100} is not what Celery writes: a list of args, kwargs and the rest")
    args, kwargs, rest = body
    _check({"args": args, "kwargs": kwargs}, {"args": _values, "kwargs": _mapping}, "body")
    if rest is not None:
        if not isinstance(rest, dict):
            raise DecodeError(f"body[2] = {rest!r:.100} is not what Celery writes: a mapping")
        _check(rest, _EMBEDDED, "body")


def _name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_CHARACTERS


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _id(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= _MOST_CHARACTERS)


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, int) and -_MOST_NUMBER <= value < _MOST_NUMBER)


def _moment(value: Any) -> bool:
    """Accept a time that can be written in every time zone."""
    if value is None:
        return True
    try:
        return MINYEAR < datetime.fromisoformat(value).year < MAXYEAR
    except (TypeError, ValueError):
        return False


def _time_limit(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 <= value <= LONGEST_S
    )


def _time_limits(value: Any) -> bool:
    return not value or (isinstance(value, list | tuple) and len(value) == 2 and all(map(_time_limit, value)))


def _mapping(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _values(value: Any) -> bool:
    return value is None or isinstance(value, list | tuple)


def _texts(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(isinstance(one, str) for one in value))


def _signature(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and isinstance(value.get("task"), str)
        and _values(value.get("args"))
        and _mapping(value.get("kwargs"))
        and _mapping(value.get("options"))
    )


def _signatures(value: Any) -> bool:
    return not value or (isinstance(value, list | tuple) and all(one and _signature(one) for one in value))


_CALL: Mapping[str, Callable[[Any], bool]] = {
    "task": _name,
    "id": _name,
    **dict.fromkeys(("root_id", "parent_id", "group"), _id),
    **dict.fromkeys(("shadow", "argsrepr", "kwargsrepr"), _text),
    **dict.fromkeys(("eta", "expires"), _moment),
    **dict.fromkeys(("retries", "group_index", "replaced_task_nesting"), _number),
    "timelimit": _time_limits,
    "stamped_headers": _texts,
    "stamps": _mapping,
}
_EMBEDDED: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("callbacks", "errbacks", "chain"), _signatures),
    "chord": _signature,
}
_OLD_BODY: Mapping[str, Callable[[Any], bool]] = {**_EMBEDDED, "args": _values, "kwargs": _mapping}
