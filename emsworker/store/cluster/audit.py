"""Audit of what people change: a row for each transaction of an action, written by that transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.ids import uid_text
from emsworker.core.terminal_text import in_utf8
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
_LENGTHS = {"actor": 190, "action": 64, "target": 400, "detail": 2000}
_LOOKED_AT = 10_000
LATEST = b"\xff" * 16


@dataclass(frozen=True)
class AuditRow:
    """An action of a person.

    Attributes:
        actor: who did it.
        action: what was done, like ``requeue``.
        target: to what: a topic, a group, a message.
        detail: its options, as text.
        changed: the number of things that were changed.
        steps: the number of its transactions.
    """

    action_id: bytes
    actor: str
    action: str
    target: str
    detail: str
    changed: int
    steps: int
    begun_at: datetime
    ended_at: datetime

    @property
    def id(self) -> str:
        """The id of the action, as text."""
        return uid_text(self.action_id)


def note_step(session: Session, action_id: bytes, step: int, changed: int, **texts: str) -> None:
    """Record one step of an action, inside the step's own transaction.

    Args:
        step: its number within the action; numbers may be left out.
        changed: the number of things that the step changed.
        texts: ``actor``, ``action``, ``target`` and ``detail``, the same for each step; longer ones are cut.
    """
    cut = {name: in_utf8(texts[name])[:length] for name, length in _LENGTHS.items()}
    session.execute(_SQL.add_step, {"action_id": action_id, "step": step, "changed": changed} | cut)


def list_actions(session: Session, before: bytes, limit: int) -> list[AuditRow]:
    """Return at most ``limit`` actions that began before the one with this id, the latest first."""
    return [_row(row) for row in session.rows(_SQL.list_actions, {"before": before, "limit": limit})]


def get_action(session: Session, action_id: bytes) -> AuditRow | None:
    rows = session.rows(_SQL.get_action, {"action_id": action_id})
    return _row(rows[0]) if rows else None


def find_cancel(session: Session, message_id: str) -> AuditRow | None:
    """Return the action that cancelled a message, if it is among the latest ones."""
    rows = session.rows(_SQL.find_cancel, {"target": f"% {message_id}", "most": _LOOKED_AT})
    return _row(rows[0]) if rows else None


def delete_old(session: Session, keep_s: float, limit: int) -> int:
    """Delete at most ``limit`` rows of actions that began longer ago; return how many."""
    return session.change(_SQL.delete_old, {"keep_s": keep_s, "limit": limit})


def _row(row: tuple[Any, ...]) -> AuditRow:
    action_id, actor, action, target, detail, changed, steps, begun_at, ended_at = row
    return AuditRow(action_id, actor, action, target, detail, int(changed), int(steps), utc(begun_at), utc(ended_at))
