"""Log of outages of a server: one line when one begins or changes, and one when it is over.

While a server hangs, threads wait and no call fails for a long time, so nothing else is logged. A full disk is noticed
only by writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from emsworker.core.errors import EmsError, StoreError


@contextmanager
def best_effort(log: logging.Logger, what: str, level: int = logging.WARNING) -> Iterator[None]:
    """Log that the block has failed because of the server, instead of raising.

    Args:
        log: the logger of the module that tries it.
        what: the start of the log line: what could not be done, and what happens instead.
    """
    try:
        yield
    except (StoreError, EmsError) as error:
        log.log(level, "%s: %s", what, error)


class Outage:
    """Logs that the stream's server does not answer, refuses the user, or has a full disk; and when that is over.

    Args:
        log: the logger of the module that watches the server.
        server: names the server, without secrets.
    """

    def __init__(self, log: logging.Logger, server: str) -> None:
        self._log, self._server = log, server
        self._since: datetime | None = None
        self._kind = ""

    def note(self, silent_s: float | None, refusal: str = "", full: str = "") -> None:
        """Note whether the server serves.

        Args:
            silent_s: the seconds since its last answer, if that is too long; ``None`` if it answers.
            refusal: the error by which it refuses the user; empty if it does not.
            full: the error by which it says that its disk is full; empty if it has room.
        """
        now = datetime.now(UTC)
        kind = "refuses" if refusal else "silent" if silent_s is not None else "full" if full else ""
        if kind == self._kind:
            return
        before, self._kind = self._kind, kind
        if not kind:
            lasted_s = (now - self._since).total_seconds() if self._since is not None else 0.0
            self._since = None
            over = {"silent": "answers again", "refuses": "takes the user again", "full": "has room again"}[before]
            self._log.warning("the server %s %s, after %.0f s", self._server, over, lasted_s)
            return
        if self._since is None or before == "full":
            self._since = now - timedelta(seconds=silent_s or 0.0)
        if kind == "silent":
            self._log.warning(
                "the server %s has not answered for %.0f s, since %s UTC; work goes on when it does",
                self._server,
                silent_s,
                f"{self._since:%Y-%m-%d %H:%M:%S}",
                extra=self._fields,
            )
        elif kind == "refuses":
            text = "the server %s refuses the user: %s; work goes on when it takes it again"
            self._log.error(text, self._server, refusal, extra=self._fields)
        else:
            text = "the server %s has a full disk: %s; messages cannot be sent until then"
            self._log.error(text, self._server, full, extra=self._fields)

    @property
    def _fields(self) -> dict[str, str]:
        since = "" if self._since is None else self._since.isoformat(timespec="seconds")
        return {"server": self._server, "since": since}
