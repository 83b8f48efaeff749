"""Values as short texts for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from emsworker.extending.values import NO_TIME, AtLeast, Estimate, utc

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))
PREVIEW_BYTES = 64 << 10


def compact(number: float | None) -> str:
    """Return a number in at most five characters or so: 950, 12.3k, 4.5M, and 20k+ if it was counted up to there."""
    if number is None:
        return "-"
    if isinstance(number, AtLeast):
        return f"{compact(int(number))}+"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size * 10 or (size >= 1e6 and abs(number) >= size):
            return f"{number / size:.3g}{unit}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.2g}"


def whole(number: int | None) -> str:
    """Return a number with its thousands apart; a + if it was counted up to there, a ~ if it is an estimate."""
    return "-" if number is None else str(number) if isinstance(number, (AtLeast, Estimate)) else f"{number:,}"


def rate(per_s: float | None) -> str:
    """Return a rate, like 12/s, or 3/min for a small one."""
    if per_s is None:
        return "-"
    if per_s == 0:
        return "0/s"
    return f"{compact(per_s)}/s" if per_s >= 0.5 else f"{compact(per_s * 60)}/min"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: 2d 3h, 4m 10s, 1.5s, 20ms."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 1:
        return "0s" if seconds < 0.001 else f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    rest = round(seconds)
    for number, (size, unit) in enumerate(_UNITS):
        if rest >= size:
            lower, name = _UNITS[number + 1] if number + 1 < len(_UNITS) else (1, "s")
            small = rest % size // lower
            return f"{rest // size}{unit} {small}{name}" if small else f"{rest // size}{unit}"
    return f"{rest}s"


def moment(when: datetime | str) -> datetime:
    """Return a time in UTC, also of one that is still as the server writes it."""
    return utc(when) if isinstance(when, str) else when


def since(when: datetime | None, now: datetime) -> str:
    """Return a time beside the present one: ``3m ago``, ``in 20s``."""
    if when is None or when == NO_TIME:
        return "-"
    seconds = (now - when).total_seconds()
    span = duration(round(abs(seconds)) if abs(seconds) >= 1 else 0)
    return f"{span} ago" if seconds > -1 else f"in {span}"


def stamp(when: datetime | None) -> str:
    """Return a time in UTC, to the millisecond."""
    if when is None or when == NO_TIME:
        return "-" if when is None else "unknown"
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def size(count: int | None) -> str:
    """Return a number of bytes: 512 B, 1.5 KB, 3 MB."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return ""


def short_id(text: str | None) -> str:
    """Return the beginning and the end of an id: the beginning is its time, the end its chance."""
    return "-" if not text else text if len(text) <= 17 else f"{text[:8]}…{text[-6:]}"


def short_client(text: str | None) -> str:
    """Return address, process and thread of a client id, without its middle."""
    if not text:
        return "-"
    parts = text.rsplit("-", 3)
    return f"{parts[0]} · {parts[1]} · {parts[3]}" if len(parts) == 4 else text


def readable(value: str | bytes | None) -> str | None:
    """Return a key or a tag as text; bytes that are no text are written as escapes."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def preview(body: Any) -> tuple[str, bool]:
    """Return a decoded body as text, and if it was cut at 64 KB."""
    if isinstance(body, bytes):
        text = body[: PREVIEW_BYTES + 1].decode(errors="backslashreplace")
    elif isinstance(body, str):
        text = body
    else:
        text = _beginning(json.JSONEncoder(indent=2, ensure_ascii=False, default=_plain).iterencode(body))
    return (text[:PREVIEW_BYTES], True) if len(text) > PREVIEW_BYTES else (text, False)


def _beginning(parts: Iterable[str]) -> str:
    """Join no more than is shown: indenting 600 kB that are nested 300 deep makes 180 MB."""
    found, size = [], 0
    for part in parts:
        found.append(part)
        size += len(part)
        if size > PREVIEW_BYTES:
            break
    return "".join(found)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
