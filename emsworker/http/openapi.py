"""The document of OpenAPI 3.1 that describes the operations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from emsworker import __version__
from emsworker.http.operations import OPERATIONS, HttpOperation

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        },
        "failed": {
            "type": "array",
            "description": "the receipts for which it failed; it is done for the others",
            "items": {
                "type": "object",
                "required": ["receipt", "code", "message"],
                "properties": {name: {"type": "string"} for name in ("receipt", "code", "message")},
            },
        },
    },
}


def document() -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "EMS", "version": __version__, "description": "Messages of a stream by HTTP."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
    }


def _operation(one: HttpOperation) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", one.path)
    parameters = [_parameter(name, "path", {"type": "string"}) for name in names]
    parameters += [_parameter(name, "query", schema) for name, schema in one.query.items()]
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "description": f"Needs a token of the role {one.role}.",
        "parameters": parameters,
        "responses": {
            "200": {"description": "done", "content": _content(one)},
            "default": {
                "description": "why nothing was done, or for which receipts",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if one.body is not None:
        is_needed = bool(one.body.get("required"))
        found["requestBody"] = {"required": is_needed, "content": {"application/json": {"schema": one.body}}}
    return found


def _content(one: HttpOperation) -> dict[str, Any]:
    if one.answer is None:
        return {"text/event-stream": {"schema": {"type": "string"}}}
    return {"application/json": {"schema": one.answer}}


def _parameter(name: str, place: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    plain = {word: value for word, value in schema.items() if word != "optional"}
    return {"name": name, "in": place, "required": not schema.get("optional", False), "schema": plain}
