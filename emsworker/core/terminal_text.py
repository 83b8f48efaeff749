"""Text for a terminal or a log: control characters become escapes, so that no data can control a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """Write the control characters of a text as escapes, except line feeds and tabs."""
    return _IN_LINES.sub(_escaped, text)


def harmless_line(text: str) -> str:
    """Write all control characters of a text as escapes, so that it is one line."""
    return _CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
