"""Idempotency keys: marked done in a caller's transaction, or begun and finished in two transactions of the store."""

from __future__ import annotations

import os
from typing import Any

from emsworker.core.model import Begun, OnceState
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
_TRIES = 10


def do_in(transaction: Any, key: bytes, ttl_s: float) -> bool:
    """Mark a key as done inside the caller's transaction; returns false if it is already done."""
    args = {"key": key, "token": os.urandom(16), "ttl_s": ttl_s}
    return bool(transaction.execute(_SQL.insert_done, args).rowcount == 1)


def begin(session: Session, key: bytes, ttl_s: float, running_s: float) -> Begun:
    """Begin an effect, unless it is done or another attempt is running."""
    token = os.urandom(16)
    args = {"key": key, "token": token, "ttl_s": ttl_s, "running_s": running_s}
    for _ in range(_TRIES):
        if session.change(_SQL.insert_begun, args) == 1:
            return Begun(OnceState.FIRST, token)
        rows = session.rows(_SQL.get_state, {"key": key})
        if not rows:
            continue  # cancelled or swept in between
        state, left_s, was = rows[0]
        if was == token:
            return Begun(OnceState.FIRST, token)  # our earlier try, whose answer was lost
        if state == "done":
            return Begun(OnceState.DONE, token)
        if left_s > 0:
            return Begun(OnceState.BUSY, token, float(left_s))
        if session.change(_SQL.take_over, args | {"was": was}) == 1:
            return Begun(OnceState.UNCERTAIN, token)
    return Begun(OnceState.BUSY, token, running_s)


def finish(session: Session, key: bytes, token: bytes, ttl_s: float) -> bool:
    """Record that the effect has happened; returns false if another attempt has taken over meanwhile."""
    args = {"key": key, "token": token, "ttl_s": ttl_s}
    return session.change(_SQL.finish, args) == 1


def cancel(session: Session, key: bytes, token: bytes) -> None:
    """Record that the effect has not happened, so that another attempt may begin at once."""
    session.change(_SQL.cancel, {"key": key, "token": token})


def sweep(session: Session, limit: int) -> int:
    """Delete at most ``limit`` expired keys; returns how many."""
    return session.change(_SQL.delete_expired, {"limit": limit})
