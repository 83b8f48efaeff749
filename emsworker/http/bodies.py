"""Messages as JSON, and back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from emsworker.extending.errors import DecodeError
from emsworker.extending.publishing import Outgoing
from emsworker.extending.values import Message, encode_json, errors
from emsworker.http.faults import HttpFault

_RENAMED = {"id": "uid", "delay_s": "countdown", "dedup_window_s": "dedup_window"}


def outgoing(topic: str, given: Mapping[str, Any], place: str) -> Outgoing:
    """Return the message that a client sends.

    Raises:
        HttpFault: it has no body or two, or one that is not Base64.
        EmsError: an option is wrong.
    """
    options = {_RENAMED.get(name, name): value for name, value in given.items()}
    if ("body" in options) == ("body_base64" in options):
        raise HttpFault(400, "invalid", f"{place} must have either 'body' or 'body_base64'")
    encoded = options.pop("body_base64", None)
    if encoded is not None:
        try:
            options["body"] = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise HttpFault(400, "invalid", f"{place}.body_base64 is not Base64: {error}") from None
    return Outgoing(topic, **options)


def as_json(value: Any) -> Any:
    """Return a value that was decoded as plain JSON again: dates and the like as they are on their way."""
    return json.loads(encode_json(value))


def incoming(message: Message) -> dict[str, Any]:
    """Return a message as clients get it; what cannot be decoded, and bytes, are in ``body_base64``."""
    found: dict[str, Any] = {
        "id": message.id,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "attempt": message.attempt,
        "born_at": message.born_at.isoformat(),
        **_named("key", message.key),
        **_named("tag", message.tag),
    }
    try:
        found["headers"] = dict(message.headers)
        body = message.body
        return found | ({"body_base64": _base64(body)} if isinstance(body, bytes) else {"body": as_json(body)})
    except (DecodeError, errors.ContentRefused, errors.EncodeError) as error:
        return found | {"body_base64": _base64(message.raw), "problem": str(error)}


def _named(name: str, value: str | bytes | None) -> dict[str, Any]:
    return {f"{name}_base64": _base64(value)} if isinstance(value, bytes) else {name: value}


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
