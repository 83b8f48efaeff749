"""Keeps passwords out of the command line that every user of the machine can read."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_PASSWORD = re.compile(rb"(?<=://)([^:/@\0]*:)([^\0]*)(?=@)")
_STAT = Path("/proc/self/stat")
# The 48th and 49th field: where in our memory the arguments begin and end (man 5 proc).
_FIELDS = slice(47, 49)


def hide_passwords() -> None:
    """Blank the passwords of URLs among our arguments, as MySQL's own client does; on Linux only.

    Until this has run they can be seen, so the environment remains the better place for an address.
    """
    try:
        pid, _, rest = _STAT.read_text().rpartition(") ")
    except OSError:
        return
    begin, end = (int(field) for field in [*pid.split(" ", 1), *rest.split()][_FIELDS])
    if not 0 < begin < end:
        return  # the kernel does not tell
    arguments = ctypes.string_at(begin, end - begin)
    hidden = _PASSWORD.sub(lambda match: match[1] + b"*" * len(match[2]), arguments)
    if hidden != arguments:
        ctypes.memmove(begin, hidden, len(hidden))
