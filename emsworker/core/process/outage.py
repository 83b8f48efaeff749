"""Log of a server's outage: one line when it has not answered for a while, and one when it answers again.

A server that hangs refuses nothing and fails nothing for a long time, so no error is logged: every thread waits.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta


class Outage:
    """Logs the beginning and the end of an outage of the stream's server.

    Args:
        log: the logger of the module that watches the server.
        server: names the server, without secrets.
    """

    def __init__(self, log: logging.Logger, server: str) -> None:
        self._log, self._server = log, server
        self._since: datetime | None = None

    def note(self, silent_s: float | None) -> None:
        """Note whether the server answers.

        Args:
            silent_s: the seconds since its last answer, if that is too long; ``None`` if it answers.
        """
        now = datetime.now(UTC)
        if silent_s is not None and self._since is None:
            self._since = now - timedelta(seconds=silent_s)
            self._log.warning(
                "the server %s has not answered for %.0f s, since %s UTC; work goes on when it does",
                self._server,
                silent_s,
                f"{self._since:%Y-%m-%d %H:%M:%S}",
                extra={"server": self._server, "since": self._since.isoformat(timespec="seconds")},
            )
        elif silent_s is None and self._since is not None:
            lasted_s = (now - self._since).total_seconds()
            self._since = None
            self._log.warning("the server %s answers again, after %.0f s", self._server, lasted_s)
