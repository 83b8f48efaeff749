"""The chaos app with leaks planted in its handlers, to see that a soak finds them: ``EMS_TEST_LEAKS`` names them."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql

from emsworker import Message
from tests.support.servers import connect
from verification.chaos.app import ALSO, app

__all__ = ["app"]

_EVERY_S, _PADDING = 0.2, 1 << 20
_kept: list[Any] = []
_opened: list["pymysql.Connection[Any]"] = []


def keep_bodies(message: Message) -> None:
    """A cache that nobody bounds."""
    _kept.append((message.body, b"x" * _PADDING))


def open_connections(message: Message) -> None:
    """None of them is closed."""
    _opened.append(connect(os.environ["SOAK_URL"]))  # a worker takes EMS_URL out of its environment


def _now_and_then(leak: Callable[[Message], None]) -> Callable[[Message], None]:
    """Not with every message: the machine's memory, and the server's connections, have to last."""
    lock, due = threading.Lock(), time.monotonic()

    def leak_if_due(message: Message) -> None:
        nonlocal due
        with lock:
            if time.monotonic() < due:
                return
            due = time.monotonic() + _EVERY_S
        leak(message)

    return leak_if_due


LEAKS = {"bodies": keep_bodies, "connections": open_connections}
ALSO += [_now_and_then(LEAKS[name]) for name in os.environ["EMS_TEST_LEAKS"].split(",")]
