"""Worker tags: a task requires some, and only a worker that was started with all of them runs it."""

from __future__ import annotations

import re
from collections.abc import Collection

from emsworker.core.options import Check

Requires = str | tuple[str, ...] | list[str]

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}")
_MOST = 8


def read_tags(value: Requires | None) -> tuple[str, ...]:
    """Return tags in order, each once: ``"gpu"``, ``"gpu,eu"`` and ``["gpu", "eu"]`` are all allowed.

    Raises:
        ValueError: one of them is not a tag, or there are too many.
    """
    given = value.split(",") if isinstance(value, str) else value or ()
    if not isinstance(given, tuple | list) or not all(isinstance(one, str) for one in given):
        raise ValueError("must be a tag, or a tuple of tags, like ('gpu', 'eu')")
    tags = sorted({one.strip() for one in given} - {""})
    wrong = [one for one in tags if not _TAG.fullmatch(one)]
    if wrong:
        raise ValueError(f"{wrong[0]!r:.80} is not a tag; use 1 to 32 of A-Z a-z 0-9 _ . - like gpu or eu-west")
    if len(tags) > _MOST:
        raise ValueError(f"has {len(tags)} tags; at most {_MOST} are allowed")
    return tuple(tags)


def named(tags: Collection[str]) -> str:
    """Return tags in words: ``tag gpu``, ``tags eu and gpu``."""
    names = sorted(tags)
    return f"tag {names[0]}" if len(names) == 1 else f"tags {', '.join(names[:-1])} and {names[-1]}"


TAGS = Check(read_tags, read_tags, "texts")
