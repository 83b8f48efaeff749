"""An ALTER TABLE under running programs: it never makes them wait for long.

An ALTER needs the table for itself for a moment, at its beginning or its end. While it waits for transactions that use
the table, every statement that comes after it waits behind it. So its wait is watched, and ended after a tenth of a
second; then it is tried again, until it finds a gap between the others' transactions.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

from emsworker.core.errors import SchemaMissing, StatementRefused, StoreError
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.store.engine.errors import code_of
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier
from emsworker.store.engine.steps import Algorithm, MigrationStep

_SQL = Statements(__name__)
PATIENCE_S = 0.1
"""Seconds for which others may have to wait."""

_TRIES_S, _LONGEST_PAUSE_S = 600.0, 2.0
_RUNS_S = 7 * 86400.0  # a large table is built anew in hours, without a word from the server
_LOOK_S = 0.02
_BUSY = frozenset({1205, 1317})  # the wait for the table took too long, or was interrupted
# Not supported, and the reason why; too many changes of this kind since the table was built anew.
_NOT_INSTANTLY = frozenset({1845, 1846, 4092})


def is_changed(session: Session, step: MigrationStep) -> bool:
    """Return whether the change of a step is there; false as well if it cannot be asked for."""
    if step.change is None:
        return False
    count = _SQL.count_columns if step.change.is_column else _SQL.count_keys
    found = session.rows(count, {"table": step.table, "name": step.change.name})[0][0] > 0
    return bool(found == step.change.adds)


def alter(session: Session, step: MigrationStep, tell: Callable[[str], None]) -> None:
    """Alter a table, unless that is done.

    Args:
        session: the migration's own; the table is altered on another one, which may be interrupted.
        tell: is told of waits.

    Raises:
        SchemaMissing: there was no gap between the transactions that use the table.
    """
    ways = [_SQL.instantly, _SQL.in_place] if step.algorithm is Algorithm.INSTANT else [_SQL.in_place]
    with session.sibling(_RUNS_S) as altering:
        until, pause_s = ticks() + _TRIES_S, _LOOK_S
        while not is_changed(session, step):
            try:
                _try(session, altering, step.table, fill(step.sql, {"instantly": ways[0], "in_place": ways[0]}))
                return
            except StoreError as error:
                code = code_of(error.__cause__) if error.__cause__ is not None else 0
                if code in _NOT_INSTANTLY:
                    ways.pop(0)
                    if not ways:
                        raise StatementRefused(f"the server cannot {step.text} while programs run: {error}") from error
                    tell("the server cannot do it instantly; done in place")
                elif code not in _BUSY:
                    raise
                elif ticks() > until:
                    raise SchemaMissing(
                        f"table {step.table} was in use at every try for {_TRIES_S:.0f} seconds; end the longest "
                        "transaction in SHOW PROCESSLIST, and run `ems migrate` again: it goes on where it was"
                    ) from error
                else:
                    tell(f"{step.table} is in use by a transaction; tried again")
                    time.sleep(random.uniform(pause_s / 2, pause_s))  # who waited behind this goes first
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _try(session: Session, altering: Session, table: str, statement: Sql) -> None:
    altering.execute(_SQL.wait_briefly)
    with _Watch(session, int(altering.rows(_SQL.get_connection)[0][0]), table):
        altering.execute(statement)


class _Watch:
    """Interrupts what a connection runs as soon as a reader of its table has waited for too long.

    Args:
        session: of the database; others of the same are opened.
        connection: the number of the connection.
        table: that it alters.
    """

    def __init__(self, session: Session, connection: int, table: str) -> None:
        self._reader, self._judge = session.sibling(), session.sibling()
        self._connection = connection
        self._read = fill(_SQL.read_table, {"table": identifier(table)})
        self._ended = forks.Event()
        self._reads_since: float | None = None

    def __enter__(self) -> None:
        for session in (self._reader, self._judge):  # connected before the wait begins
            session.execute(_SQL.read_nothing)
        work = (self._read_often, self._interrupt)
        self._threads = [threading.Thread(target=one, name="ems-migrate-watch", daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:  # nothing that runs later is interrupted
            thread.join()
        self._reader.close()
        self._judge.close()

    def _read_often(self) -> None:
        with contextlib.suppress(StoreError):  # without it the wait ends after a second, see wait_briefly
            while not self._ended.wait(_LOOK_S):
                self._reads_since = ticks()
                self._reader.execute(self._read)
                self._reads_since = None

    def _interrupt(self) -> None:
        with contextlib.suppress(StoreError):
            while not self._ended.wait(_LOOK_S):
                since = self._reads_since
                if since is not None and ticks() - since > PATIENCE_S - 2 * _LOOK_S:
                    self._judge.execute(_SQL.read_nothing)  # on a server that is slow this takes as long
                    if self._reads_since == since and not self._ended.is_set():
                        self._judge.execute(_SQL.interrupt, {"id": self._connection})
