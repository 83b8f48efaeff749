"""Run of a message, as seen by its handler: its time limits and its progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from emsworker.core.durations import LONGEST_S
from emsworker.core.options import is_number
from emsworker.core.terminal_text import in_utf8

MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Progress report of a run.

    Attributes:
        uid: the uid of the message.
        attempt: the run that reports.
        fraction: 0 to 1, or ``None`` if it is not known.
        text: shown to users.
    """

    uid: bytes
    attempt: int
    fraction: float | None
    text: str

    @classmethod
    def checked(cls, uid: bytes, attempt: int, fraction: float | None, text: str) -> ProgressReport:
        """Return a report with the values that a handler gives, after checking them.

        Raises:
            ValueError: the fraction does not lie between 0 and 1, or the text is none.
        """
        if fraction is not None and not (is_number(fraction) and 0 <= fraction <= 1):
            raise ValueError(f"fraction = {fraction!r}: must be a number between 0 and 1")
        if not isinstance(text, str):
            raise ValueError(f"text = {text!r}: must be text")
        return cls(uid, attempt, fraction, in_utf8(text)[:MAX_TEXT])


@dataclass(frozen=True, slots=True)
class Progress:
    """Last progress report of a message.

    Attributes:
        fraction: 0 to 1, or ``None`` if the handler gave none.
        text: shown to users.
        attempt: the run that reported.
        client_id: the client that ran it.
        reported_at: the time of the report, by the server's clock, in UTC.
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
    """Run of a message without limits, as in a test that calls a handler directly."""

    __slots__ = ()

    @property
    def time_left(self) -> float:
        """Seconds until the first of its limits (the soft one, the hard one, the timeout); 0 if it has passed."""
        return math.inf

    @property
    def waited_s(self) -> float | None:
        """Seconds for which the message had waited when this run began, by the server's clock; ``None`` if unknown."""
        return None

    @property
    def cancelled(self) -> bool:
        """True if the message was cancelled: its run is to end soon, and counts as cancelled whatever it returns."""
        return False

    def extend(self, seconds: float) -> None:
        """Ask for more time: the message may run for at least this number of seconds from now.

        All of its limits move by the same span, so that the time between the soft and the hard one stays; they never
        move closer. Other messages, and the next attempt at this one, are not affected.

        Raises:
            RunEnded: its time was over; the message has another owner now.
            ValueError: not a valid time span.
        """
        check_span(seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report the progress of the message, for `ems clients`, `ems trace` and :attr:`AsyncResult.progress`.

        Frequent calls cost next to nothing: the last report is buffered, and written by a flush at most twice a second.

        Args:
            fraction: 0 to 1.
            text: shown to users, at most 500 characters.

        Raises:
            RunEnded: the message has another owner now.
            ValueError: the fraction does not lie between 0 and 1, or the text is none.
        """
        ProgressReport.checked(b"", 1, fraction, text)


def check_span(seconds: float) -> None:
    """Check that a handler asks for a valid time span.

    Raises:
        ValueError: not a number of seconds from 0 to 100 years.
    """
    if not (is_number(seconds) and 0 <= seconds <= LONGEST_S):
        raise ValueError(f"extend({seconds!r}): must be a number of seconds, 0 or more")


UNWATCHED = Run()
