"""One run of a message, as its handler sees it: how long it may still take, and how far it has come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from emsworker.core.durations import LONGEST_S

MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class Report:
    """How far a run had come when it told so.

    Attributes:
        uid: of the message.
        attempt: which run of the message tells it.
        fraction: 0 to 1, or ``None`` if it is not known.
        text: for people.
    """

    uid: bytes
    attempt: int
    fraction: float | None
    text: str

    @classmethod
    def checked(cls, uid: bytes, attempt: int, fraction: float | None, text: str) -> Report:
        """A report as a handler gives it.

        Raises:
            ValueError: the fraction does not lie between 0 and 1.
        """
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"fraction = {fraction!r}: must lie between 0 and 1")
        return cls(uid, attempt, fraction, text.encode(errors="backslashreplace").decode()[:MAX_TEXT])


@dataclass(frozen=True, slots=True)
class Progress:
    """What the last report of a message said.

    Attributes:
        fraction: 0 to 1, or ``None`` if the handler told none.
        text: for people.
        attempt: which run told it.
        client_id: who ran it.
        reported_at: by the server's clock, in UTC.
    """

    fraction: float | None
    text: str
    attempt: int
    client_id: str
    reported_at: datetime

    def __str__(self) -> str:
        share = f"{self.fraction:.0%}" if self.fraction is not None else ""
        return f"{share} {self.text}".strip()


class Run:
    """The run of a message that nobody watches, as in a test that calls a handler itself: it has no limits."""

    __slots__ = ()

    @property
    def time_left(self) -> float:
        """Seconds until the first of its limits (the soft one, the hard one, the timeout); 0 when it has passed."""
        return math.inf

    def extend(self, seconds: float) -> None:
        """Ask for more time: the message may run for at least so many seconds from now.

        All of its limits move by the same span, so that the time between the soft and the hard one stays; they never
        move closer. Other messages, and the next attempt at this one, are not concerned.

        Raises:
            RunEnded: its time was over; the message is somebody else's by now.
            ValueError: it is no span of time.
        """
        check_span(seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Tell how far the message has come, for `ems clients`, `ems trace` and :attr:`AsyncResult.progress`.

        It costs next to nothing, however often it is called: the last report is written along twice a second.

        Args:
            fraction: 0 to 1.
            text: for people, at most 500 characters.

        Raises:
            RunEnded: the message is somebody else's by now.
            ValueError: the fraction does not lie between 0 and 1.
        """
        Report.checked(b"", 1, fraction, text)


def check_span(seconds: float) -> None:
    """See that a handler asks for a span of time.

    Raises:
        ValueError: it is none.
    """
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"extend({seconds!r}): must be a number of seconds, 0 or more")


UNWATCHED = Run()
