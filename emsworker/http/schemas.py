"""JSON of requests: read within limits, and checked against the schemas that the OpenAPI document shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emsworker.http.faults import HttpFault

Schema = Mapping[str, Any]
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_BOUNDS: Sequence[tuple[str, Callable[[Any, Any], bool], str]] = (
    ("minimum", lambda value, most: value >= most, "at least"),
    ("maximum", lambda value, most: value <= most, "at most"),
    ("minLength", lambda value, most: len(value) >= most, "of a length of at least"),
    ("maxLength", lambda value, most: len(value) <= most, "of a length of at most"),
    ("minItems", lambda value, most: len(value) >= most, "of a length of at least"),
    ("maxItems", lambda value, most: len(value) <= most, "of a length of at most"),
)


def text(description: str, most: int = 255, **more: Any) -> dict[str, Any]:
    """Return the schema of a text."""
    return {"type": "string", "description": description, "minLength": 1, "maxLength": most, **more}


def number(description: str, least: float, most: float, kind: str = "number", **more: Any) -> dict[str, Any]:
    """Return the schema of a number."""
    return {"type": kind, "description": description, "minimum": least, "maximum": most, **more}


def members(required: tuple[str, ...] = (), **properties: Schema) -> dict[str, Any]:
    """Return the schema of an object with these members and no others."""
    found: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | {"required": [*required]} if required else found


def items(schema: Schema, most: int, description: str = "") -> dict[str, Any]:
    """Return the schema of a list that is not empty."""
    return {"type": "array", "description": description, "items": schema, "minItems": 1, "maxItems": most}


def read_json(raw: bytes) -> Any:
    """Return what a body says; an empty one is an empty object.

    Raises:
        HttpFault: it is not JSON.
    """
    try:
        return json.loads(raw, parse_constant=_refuse) if raw.strip() else {}
    except (ValueError, RecursionError) as error:
        raise HttpFault(400, "not_json", f"the body is not JSON: {str(error)[:200]}") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def check(value: Any, schema: Schema, place: str = "the body") -> None:
    """Check a value against a schema of the words that are used here.

    Raises:
        HttpFault: it does not fit.
    """
    kind = schema.get("type")
    if kind is None:
        return
    fits = isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not fits:
        raise _misfit(place, value, f"must be of the type {kind}")
    if kind == "string" and not _has_utf8(value):
        raise _misfit(place, value, "has no UTF-8 form")
    for name, holds, words in _BOUNDS:
        if name in schema and not holds(value, schema[name]):
            raise _misfit(place, value, f"must be {words} {schema[name]}")
    if kind == "array":
        for position, one in enumerate(value):
            check(one, schema["items"], f"{place}[{position}]")
    elif kind == "object":
        _check_members(value, schema, place)


def _check_members(value: Mapping[str, Any], schema: Schema, place: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            raise HttpFault(400, "invalid", f"{place} must have {name!r}")
    for name, one in value.items():
        inner = f"{place}.{name[:100]}" if place != "the body" else name[:100]
        if name in known:
            check(one, known[name], inner)
        elif others is False:
            raise _misfit(inner, one, f"is not known here; known are {', '.join(known)}")
        elif others is not True:
            check(one, others, inner)


def _has_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _misfit(place: str, value: Any, why: str) -> HttpFault:
    shown = f"{value!r:.80}" if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return HttpFault(400, "invalid", f"{place} = {shown} {why}".encode(errors="replace").decode())
