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
from collections.abc import Callable, Iterator

from emsworker.core.errors import SchemaMissing, StatementRefused, StoreError
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.store.engine.errors import code_of
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill
from emsworker.store.engine.steps import Algorithm, Step

_SQL = Statements(__name__)
PATIENCE_S = 0.1
"""Seconds for which others may have to wait."""

_TRIES_S, _LONGEST_PAUSE_S = 600.0, 2.0
_RUNS_S = 7 * 86400.0  # a large table is built anew in hours, without a word from the server
_LOOK_S = 0.02
_BUSY = frozenset({1205, 1317})  # the wait for the table took too long, or was interrupted
# Not supported, and the reason why; too many changes of this kind since the table was built anew.
_NOT_INSTANTLY = frozenset({1845, 1846, 4092})


def is_changed(session: Session, step: Step) -> bool:
    """Return whether the change of a step is there; false as well if it cannot be asked for."""
    if step.change is None:
        return False
    count = _SQL.count_columns if step.change.is_column else _SQL.count_keys
    found = session.rows(count, {"table": step.table, "name": step.change.name})[0][0] > 0
    return bool(found == step.change.adds)


def alter(session: Session, step: Step, tell: Callable[[str], None]) -> None:
    """Alter a table, unless that is done.

    Args:
        session: the migration's own; the table is altered on another one, which may be interrupted.
        tell: is told of waits.

    Raises:
        SchemaMissing: there was no gap between the transactions that use the table.
    """
    ways = [_SQL.instantly, _SQL.in_place] if step.algorithm is Algorithm.INSTANT else [_SQL.in_place]
    with session.sibling(_RUNS_S) as altering, session.sibling() as watching:
        until, pause_s = ticks() + _TRIES_S, _LOOK_S
        while not is_changed(session, step):
            try:
                _try(altering, watching, fill(step.sql, {"instantly": ways[0], "in_place": ways[0]}))
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


def _try(altering: Session, watching: Session, statement: Sql) -> None:
    altering.execute(_SQL.wait_briefly)
    connection = int(altering.rows(_SQL.get_connection)[0][0])
    with _watch(watching, connection):
        altering.execute(statement)


@contextlib.contextmanager
def _watch(watching: Session, connection: int) -> Iterator[None]:
    """Interrupt what a connection runs whenever it waits for a lock for too long.

    The watch has ended when this returns, so that nothing that runs later is interrupted.
    """
    ended = forks.Event()
    watching.execute(_SQL.count_waits, {"id": connection})  # connected before the wait begins

    def watch() -> None:
        waits_since: float | None = None
        with contextlib.suppress(StoreError):  # the wait ends after a second then, see wait_briefly
            while not ended.wait(_LOOK_S):
                waits = watching.rows(_SQL.count_waits, {"id": connection})[0][0] > 0
                waits_since = (waits_since or ticks()) if waits else None
                if waits_since is not None and ticks() - waits_since > PATIENCE_S - 2 * _LOOK_S:
                    watching.execute(_SQL.interrupt, {"id": connection})
                    waits_since = None

    thread = threading.Thread(target=watch, name="ems-migrate-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
