"""The interface of a stream in memory that an app uses instead of a server; :mod:`emsworker.testing` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from emsworker.core.model import Receipt


class StandIn(Protocol):
    """A stream in memory, put in place by :meth:`start` or ``with``."""

    once_keys: Any

    @property
    def now(self) -> datetime:
        """Its time, in UTC."""
        ...

    def cancel(self, message: str | Receipt, topic: str | None) -> bool:
        """Cancel a message; see :meth:`Ems.cancel`."""
        ...

    def results(self, messages: Sequence[Receipt | str]) -> Any:
        """The results of calls."""
        ...

    def start(self) -> None:
        """Take the place of the app's stream."""
        ...

    def __enter__(self) -> Any:
        """Take the place of the app's stream, as :meth:`start` does."""
        ...

    def __exit__(self, *_: object) -> None:
        """Give the app its stream back."""
        ...
