"""Refusals of a server: of the user, a password, a grant or TLS."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from emsworker.extending.errors import REFUSED, ConnectionLost


def in_task() -> bool:
    """Return whether this thread runs a task: nobody else would retry its failed sends, such as the rest of a chain."""
    state = sys.modules.get("celery._state")  # kombu alone has none
    return state is not None and state.get_current_worker_task() is not None


class Refusals:
    """Fails fast on a refusal of the first use, so that a wrong password ends a program at once.

    A later one counts as an outage: a password is being changed. So does the first one of a use that must not fail: the
    result of a task has nowhere else to go.
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
