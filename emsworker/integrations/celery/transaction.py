"""Publishing in the caller's transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_connection: ContextVar[Any] = ContextVar("emsworker.integrations.celery.connection", default=None)


@contextlib.contextmanager
def in_transaction(connection: Any) -> Iterator[None]:
    """Publish everything that this thread publishes in the block with a transaction of the caller's own.

    The messages are committed with the transaction and rolled back with it. Its opener commits it, inside of
    the block or after it. Blocks nest: the inner one counts.

    Args:
        connection: open on the server of the broker: ``django.db.connection`` (in ``atomic()``), a Session or
            Connection of SQLAlchemy, or a DB-API connection, such as PyMySQL's or mysqlclient's.

    Raises:
        TypeError: it is ``None``, as a connection that was closed often is.
    """
    if connection is None:
        raise TypeError("in_transaction(None): give the connection whose transaction the messages are part of")
    token = _connection.set(connection)
    try:
        yield
    finally:
        _connection.reset(token)


@contextlib.contextmanager
def outside_transaction() -> Iterator[None]:
    """Publish at once in the block, also within one of :func:`in_transaction`."""
    token = _connection.set(None)
    try:
        yield
    finally:
        _connection.reset(token)


def callers_connection() -> Any | None:
    """Return the connection of the innermost :func:`in_transaction`, or ``None`` outside of one."""
    return _connection.get()
