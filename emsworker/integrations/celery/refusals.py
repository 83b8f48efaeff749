"""Refusals of a server: of the user, a password, a grant or TLS."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from emsworker.core.errors import REFUSED, ConnectionLost
from emsworker.store.engine.session import outlives_refusals


def in_task() -> bool:
    """Return whether this thread runs a task: nobody repeats what it could not send, such as the rest of a chain."""
    state = sys.modules.get("celery._state")  # kombu alone has none
    return state is not None and state.get_current_worker_task() is not None


outlives_refusals.append(in_task)


class Refusals:
    """Tells refusals apart: the first use fails by it, so that a wrong password ends a program at once.

    One that has been served before outlives it, as any other trouble of the server: a password is being changed. So
    does one that must not fail: what a task has returned cannot be told to anybody but the server.
    """

    def __init__(self) -> None:
        self._was_served = False

    @contextlib.contextmanager
    def apart(self, *, outlive_first: bool = False) -> Iterator[None]:
        """Use the server.

        Args:
            outlive_first: take the first use for a later one.

        Raises:
            AccessDenied, TlsError: the server has refused the first use.
            ConnectionLost: it has refused a later one.
        """
        try:
            yield
        except REFUSED as error:
            if not (self._was_served or outlive_first):
                raise
            raise ConnectionLost(str(error)) from error
        self._was_served = True
