"""Text for a terminal or a log: control characters become escapes, so that no data can control a terminal."""

from __future__ import annotations

import re

# Control characters, Unicode's separators of lines, and what changes the direction of the text around it.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def escape_control(text: str) -> str:
    """Write the control characters of a text as escapes, except line feeds and tabs."""
    return _IN_LINES.sub(_escaped, text)


def escape_all_control(text: str) -> str:
    """Write all control characters of a text as escapes, so that it is one line."""
    return _CONTROL.sub(_escaped, text)


def in_utf8(text: str) -> str:
    """Return a text with halves of surrogate pairs, which have no UTF-8 form, written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def shortened(text: str, most: int) -> str:
    """Return a text without its middle if it has more than ``most`` characters: an error may hold a whole response."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters are left out ...\n{text[-half:]}"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
