"""The chaos app with leaks planted in its handlers, to see that a soak finds them: ``EMS_TEST_LEAKS`` names them."""

import os
import threading
import time
from typing import Any

import pymysql

from emsworker import Message
from tests.chaos.app import ALSO, app
from tests.support.servers import connect

__all__ = ["app"]

_EVERY_S = 1.0
_kept: list[Any] = []
_opened: list["pymysql.Connection[Any]"] = []
_opening = threading.Lock()
_next = time.monotonic()


def keep_bodies(message: Message) -> None:
    """A cache that nobody bounds."""
    _kept.append(message.body)


def open_connections(message: Message) -> None:
    """One in a second, and none is closed."""
    global _next
    with _opening:
        if time.monotonic() < _next:
            return
        _next = time.monotonic() + _EVERY_S
    _opened.append(connect(os.environ["EMS_URL"]))


LEAKS = {"bodies": keep_bodies, "connections": open_connections}
ALSO += [LEAKS[name] for name in os.environ["EMS_TEST_LEAKS"].split(",")]
