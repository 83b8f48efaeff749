"""Somebody else's transaction is open for ten minutes, beside everything else: work is as quick at its end as before."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emsworker import Ems
from emsworker.local import LocalDatabase as Server
from tests.process.stream import Stream, open_stream
from tests.support.servers import connect
from tests.support.waiting import until
from verification.chaos.running import Row
from verification.chaos.throughput import AFTER, UNDER, Feeder, begin_snapshot, sender

NAME = "transaction held open"
_LOAD, _CALM = 20_000, 500
_COUNT = "SELECT COUNT(*) FROM ems_claim"
_HISTORY = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
_SETTLE_S = 120


class Held:
    """A stream on a server of its own, with a worker and little to do while the transaction is open.

    Only the beginning and the end are measured, when nothing else should run.

    Args:
        server: of its own; folder: for logs.
        phase_s: how long each of the three measurements is; open_s: for how long the transaction is open.
    """

    def __init__(self, server: Server, folder: Path, phase_s: float, open_s: float) -> None:
        self._server, self._folder, self._phase_s, self._open_s = server, folder, phase_s, open_s
        self._end = contextlib.ExitStack()
        self._began = time.monotonic()
        self._opened: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the transaction was opened."""
        return self._opened is not None

    def begin(self) -> None:
        """Measure without the transaction, open it, and leave little to do."""
        self._folder.mkdir(parents=True)
        self._server.start(120)
        self._end.callback(self._server.kill)
        self._stream = self._end.enter_context(open_stream(self._server, self._folder))
        app = self._end.enter_context(contextlib.closing(Ems("loader", url=self._stream.url)))
        settings = {"lease_s": 10, "renew_s": 2}
        self._worker = self._stream.worker(app="verification.chaos.steady:app", threads=4, settings=settings)
        passed = "SELECT COALESCE(SUM(next_offset), 0) FROM ems_cursor"
        self._feeder = self._end.enter_context(Feeder(sender(app), lambda: int(self._stream.one(passed)), load=_LOAD))
        self._clean = self._rate()
        self._feeder.trickle()
        until(lambda: self._feeder.backlog < _CALM, _SETTLE_S, "there is little left to do")
        self._foreign = self._end.enter_context(_foreign_transaction(self._stream))
        self._saw = self._claims_seen()
        self._opened = time.monotonic()

    def rows(self) -> Iterator[Row]:
        """Wait until its time is over, and measure under it and after it."""
        opened = self._opened
        assert opened is not None
        until(lambda: time.monotonic() > opened + self._open_s, self._open_s + 60, "its time is over", 1.0)
        open_s = time.monotonic() - opened
        under = self._rate()
        history = int(_admin(self._server, _HISTORY))
        assert self._claims_seen() == self._saw, "it has seen nothing of what happened since"
        self._foreign.connection.rollback()
        after = self._rate()
        self._feeder.stop()
        self._stream.wait_settled(_SETTLE_S)
        assert self._worker.stop() == 0
        yield self._row(open_s, under, after, history)

    def _row(self, open_s: float, under: float, after: float, history: int) -> Row:
        note = f"{self._clean:,.0f}/s; {under / self._clean:.0%} after {open_s / 60:.0f} min under it, "
        note += f"{after / self._clean:.0%} after it"
        slow = under < UNDER * self._clean or after < AFTER * self._clean
        text = (
            f"slower than {UNDER:.0%} under and {AFTER:.0%} after: {note} (history list: {history:,})" if slow else ""
        )
        (sent,), (run,) = self._stream.rows(
            "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0 UNION ALL SELECT SUM(hi - lo + 1) FROM ems_claim"
        )
        sent, run, took_s = int(sent), int(run), round(time.monotonic() - self._began, 1)
        return Row(
            NAME, self._server.flavor, "mysql", sent, run, sent - run, 0, 0, 0, 0, None, None, took_s, text, note
        )

    def _rate(self) -> float:
        self._feeder.fill()
        before = self._feeder.passed()
        until(lambda: self._feeder.passed() > before + 5_000, 60, f"it runs:\n{self._stream.logs()}")
        return self._feeder.rate(self._phase_s)

    def _claims_seen(self) -> int:
        self._foreign.execute(_COUNT)
        return int(self._foreign.fetchall()[0][0])

    def close(self) -> None:
        """End everything."""
        self._end.close()


@contextlib.contextmanager
def _foreign_transaction(stream: Stream) -> Iterator[Any]:
    with connect(stream.url, autocommit=False) as foreign, foreign.cursor() as cursor:
        begin_snapshot(cursor)
        cursor.execute("INSERT INTO account VALUES (77, 1)")
        yield cursor


def _admin(server: Server, statement: str) -> Any:
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()[0][0]
