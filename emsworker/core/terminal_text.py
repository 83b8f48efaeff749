"""Text for a terminal or a log: control characters become escapes, so that no data can control a terminal."""

from __future__ import annotations

import json
import re

# Control characters, Unicode's separators of lines, what changes the direction of the text around it, and what has no
# width: with these, one name looks like another.
_UNSEEN = (
    r"\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_CONTROL = re.compile(rf"[\x00-\x1f{_UNSEEN}]")
_IN_LINES = re.compile(rf"[\x00-\x08\x0b-\x1f{_UNSEEN}]")


def escape_control(text: str) -> str:
    """Write the control characters of a text as escapes, except line feeds and tabs."""
    return _IN_LINES.sub(_escaped, text)


def escape_all_control(text: str) -> str:
    """Write all control characters of a text as escapes, so that it is one line."""
    return _CONTROL.sub(_escaped, text)


def escape_json(text: str) -> str:
    """Write the control characters of a JSON text, except line feeds and tabs, as JSON's own escapes."""
    return _IN_LINES.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else r"\u007f", text)


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
