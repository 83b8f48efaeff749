"""Settings of each group's handlers, which recovery needs if no worker is alive."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
    for requires in {row.requires for row in declared}:
        if any(row.requires != requires for row in known.values()):
            session.change(_SQL.set_requires, {"group_id": group_id, "requires": requires})
    for row in sorted(declared):
        if known.get(row.name) != row:
            session.change(_SQL.declare_handler, row._asdict() | {"group_id": group_id})


def list_required(session: Session, group_ids: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Return the tags that groups require, by id; without those that require none."""
    rows = session.rows(_SQL.list_required, {"group_ids": sorted(group_ids)}) if group_ids else ()
    return {int(group_id): tuple(requires.split(",")) for group_id, requires in rows}


def list_required_with_work(session: Session) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return topic, group and tags of the groups that require tags and have work."""
    found = session.rows(_SQL.list_required_with_work)
    return [(topic, group, tuple(requires.split(","))) for _, requires, topic, group in found]


def delete(session: Session, group_id: int) -> None:
    """Delete the handlers of a group, inside the transaction that deletes the group."""
    session.execute(_SQL.delete_handlers, {"group_id": group_id})
