"""Connections of the caller: of PyMySQL, SQLAlchemy, or any other DB-API driver of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emsworker.core.errors import AssertionBroken, ConfigError, Problem
from emsworker.core.process.forks import fork_blocked
from emsworker.store.engine.errors import asserts
from emsworker.store.engine.sql import Sql

_FIX = (
    "give the object of `app.transaction()`, a DB-API connection such as PyMySQL's, "
    "or a SQLAlchemy Connection or Session (of an async one, its sync_connection or sync_session)"
)


def run(connection: Any, statement: Sql) -> Sequence[Sequence[Any]]:
    """Run a statement without parameters in the transaction that a connection is in, and return its rows.

    Args:
        connection: anything with ``cursor()`` (DB-API), or a SQLAlchemy Connection or Session.
        statement: must hold no ``%``, so that every driver sends it unchanged.

    Raises:
        ConfigError: it is of another type, or connects to something other than MySQL.
        AssertionBroken: the statement's own assertion failed; the transaction continues without the statement.
        Exception: any error of the driver, unchanged, because the transaction belongs to the caller.
    """
    try:
        return _run(connection, statement)
    except Exception as error:
        if any(asserts(one) for one in (error, getattr(error, "orig", None)) if one is not None):
            raise AssertionBroken(str(error)) from error
        raise


def when_committed(connection: Any, call: Callable[[], object]) -> bool:
    """Arrange for a call after the commit of the transaction that a connection is in, if it can tell of that.

    A SQLAlchemy ORM Session can, and what has a method ``on_commit``, as Django's connections have.

    Returns:
        false if it cannot; then nothing was arranged.
    """
    if hasattr(connection, "on_commit"):
        if not getattr(connection, "in_atomic_block", True):  # Django's, outside of atomic()
            return False
        connection.on_commit(call)
        return True
    if not _is_session(connection):
        return False
    session = connection() if callable(connection) else connection  # a scoped_session has one for each thread
    waiting = session.info.get(_WAITING)
    if waiting is None:  # one listener for each session, because even those for one event are never removed
        with fork_blocked:
            from sqlalchemy import event

        waiting = session.info[_WAITING] = set()
        event.listen(session, "after_commit", _after_commit)
    waiting.add(call)
    return True


_WAITING = "emsworker.when_committed"


def _after_commit(session: Any) -> None:
    if not session.in_nested_transaction():  # the release of a savepoint commits nothing
        waiting = session.info[_WAITING]
        while waiting:
            waiting.pop()()


def _is_session(connection: Any) -> bool:
    """Return whether it is an ORM Session of SQLAlchemy, or a ``scoped_session`` of them."""
    return hasattr(connection, "get_bind") and hasattr(connection, "connection")


def _run(connection: Any, statement: Sql) -> Sequence[Sequence[Any]]:
    if hasattr(connection, "sync_connection") or hasattr(connection, "sync_session"):
        raise _refused(connection)
    if hasattr(connection, "exec_driver_sql"):
        return _on_sqlalchemy(connection, statement)
    if _is_session(connection):
        return _on_sqlalchemy(connection.connection(), statement)
    if hasattr(connection, "cursor"):
        return _on_dbapi(connection, statement)
    raise _refused(connection)


def _on_sqlalchemy(connection: Any, statement: Sql) -> Sequence[Sequence[Any]]:
    dialect = getattr(getattr(connection, "dialect", None), "name", None)
    if dialect not in ("mysql", "mariadb"):
        raise _refused(connection)
    result = connection.exec_driver_sql(statement)
    return [tuple(row) for row in result] if result.returns_rows else []


def _on_dbapi(connection: Any, statement: Sql) -> Sequence[Sequence[Any]]:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        rows = cursor.fetchall() if cursor.description else ()
    finally:
        cursor.close()
    return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in rows]


def _refused(connection: Any) -> ConfigError:
    return ConfigError([Problem("transaction", f"a {type(connection).__module__}.{type(connection).__name__}", _FIX)])
