"""Files without a name, through which a process and the one that it starts tell each other texts of any length.

A command line takes 128 KiB an argument and can be read by every user of the machine. A pipe holds 64 KiB until it is
emptied, and has no end while a process that inherited it lives.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO


def open_scratch(text: str = "") -> IO[bytes]:
    """Open a file that no other user can read, in memory where the system can; it is gone when it is closed.

    Args:
        text: what it holds; it is read from the beginning.
    """
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("ems"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(text.encode())
    file.flush()
    file.seek(0)
    return file


def read_scratch(descriptor: int) -> str:
    """Read the file that the starting process has passed, and close it.

    Raises:
        OSError, ValueError: no such file was passed, or it is not text.
    """
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode()
