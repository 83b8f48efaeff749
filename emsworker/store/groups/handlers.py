"""Settings of each group's handlers, which recovery needs if no worker is alive."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.core.model import HandlerRow
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


def list_handlers(session: Session, group_id: int) -> dict[str, HandlerRow]:
    """Return all handlers of a group by name, as declared by the workers that started last."""
    return {row[0]: HandlerRow(*row) for row in session.rows(_SQL.list_handlers, {"group_id": group_id})}


def declare(session: Session, group_id: int, declared: Sequence[HandlerRow]) -> None:
    """Store the handlers that differ from the stored ones.

    Other stored tasks stay, because another version of the app may still run them.
    """
    known = list_handlers(session, group_id)
    subscribed = any(row.name == "" for row in declared)
    if any((name == "") != subscribed for name in known):
        session.change(_SQL.delete_others, {"group_id": group_id, "subscribed": int(subscribed)})
    for row in sorted(declared):
        if known.get(row.name) != row:
            session.change(_SQL.declare_handler, row._asdict() | {"group_id": group_id})


def delete(session: Session, group_id: int) -> None:
    """Delete the handlers of a group, inside the transaction that deletes the group."""
    session.execute(_SQL.delete_handlers, {"group_id": group_id})
