"""The key by which a message shares a fair group: a header, which the call of a task takes from an argument."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import Signature
from typing import Any

from emsworker.core.options import Check

_HEADER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def _verify(value: Any) -> None:
    if not isinstance(value, str) or not _HEADER.fullmatch(value):
        raise ValueError(
            "must name a header, or an argument of the task: 1 to 64 of A-Z a-z 0-9 _ -, and no digit first"
        )


FAIR = Check(_verify)


def add_key(name: str | None, signature: Signature | None, first: int, body: Sequence[Any], given: Any) -> Any:
    """Return the headers of a call with that of its key: the argument of that name, unless the caller gave the header.

    Args:
        name: of the header; ``None`` if the group is not fair.
        signature: of the task's function; ``None`` if it is not known.
        first: the number of arguments that the worker gives before those of the call.
        body: the arguments as they are sent, a list and a dict.
        given: the headers that the caller gave; what is no mapping is refused later.
    """
    value = _argument(name, signature, first, body)
    if name is None or value is None:
        return given
    found = {name: str(value)}
    return {**found, **given} if isinstance(given, Mapping) else given or found


def _argument(name: str | None, signature: Signature | None, first: int, body: Sequence[Any]) -> Any:
    args, kwargs = body
    if name in kwargs:
        return kwargs[name]
    names = [] if signature is None else [*signature.parameters][first:]
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else None
