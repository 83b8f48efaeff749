"""Cluster-wide rate and concurrency limits, counted in one row per group, by the server's clock.

Only groups that have a limit use them: their workers acquire permits in one packet before each claim. An unused permit
is returned with the next request. A slot belongs to a client; it is free if the client has no valid lease.
"""

from __future__ import annotations

from typing import Any

from emsworker.core.errors import UnknownGroup
from emsworker.core.limits import Limit, Permit
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements
from emsworker.store.groups.task_pauses import add_paused
from emsworker.store.stream.guards import hold_group

_SQL = Statements(__name__)
_SAVE_S = 0.05  # seconds of permits, worth waiting for: fewer and larger claims
_FULL_S, _LONGEST_S, _SHORTEST_S = 0.05, 1.0, 0.005


def acquire(
    session: Session,
    group_id: int,
    client_id: str,
    wanted: int,
    *,
    at_once: bool = False,
    refund: int = 0,
    held: bool = False,
) -> Permit:
    """Acquire permits for a group's next claim, and a slot that the client keeps until it asks again or releases it.

    Args:
        wanted: how many messages the claim is to hold.
        at_once: the claim runs its messages concurrently, not one after another.
        refund: permits that were granted and not used; negative for permits used without having been granted.
        held: some tasks of the group are paused; read which.
    """
    args = {"group_id": group_id, "client_id": client_id, "wanted": wanted, "at_once": int(at_once), "refund": refund}

    def attempt() -> Permit:
        packet = session.packet()
        packet.begin()
        for statement in _ACQUIRE:
            packet.add(statement, args)
        packet.commit()
        number = packet.add(_SQL.get_granted, args)
        if held:
            add_paused(packet, group_id)
        results = packet.send()
        granted, per_s, tokens, capacity = results[number].rows[0]
        paused = frozenset(task for (task,) in results[-1].rows) if held else frozenset[str]()
        return Permit(int(granted), per_s is not None, _wait_s(per_s, tokens, capacity), paused)

    return session.retry_on_conflict(attempt)


_ACQUIRE = (
    _SQL.forget,
    _SQL.lock_limit,
    _SQL.refill,
    _SQL.read_tokens,
    _SQL.count_others,
    _SQL.grant,
    _SQL.spend,
    _SQL.take_slot,
    _SQL.drop_slot_unless_granted,
)


def _wait_s(per_s: Any, tokens: Any, capacity: Any) -> float:
    if per_s is None or capacity is None or float(tokens) >= 1:
        return _FULL_S
    worth = min(float(capacity), max(1.0, float(per_s) * _SAVE_S))
    return min(max((worth - float(tokens)) / float(per_s), _SHORTEST_S), _LONGEST_S)


def release(session: Session, group_id: int, client_id: str) -> None:
    """Release a client's slot."""
    session.change(_SQL.release, {"group_id": group_id, "client_id": client_id})


def get_limit(session: Session, group_id: int) -> Limit:
    rows = session.rows(_SQL.get_limit, {"group_id": group_id})
    return Limit(*rows[0]) if rows else Limit()


def count_running(session: Session, group_id: int) -> int:
    """Count the slots of a group that are taken."""
    return int(session.rows(_SQL.count_slots, {"group_id": group_id})[0][0])


def declare(session: Session, group_id: int, limit: Limit) -> Limit:
    """Set the limits of a group that has none; return those in effect.

    Raises:
        UnknownGroup: the group has been deleted.
    """
    _write(session, _SQL.declare_limit, group_id, limit)
    return get_limit(session, group_id)


def set_limit(session: Session, group_id: int, limit: Limit) -> None:
    """Set the limits of a group; workers follow within a fifth of a second.

    A group without limits keeps its row, so that what its app declares does not come back.

    Raises:
        UnknownGroup: the group has been deleted.
    """
    _write(session, _SQL.set_limit, group_id, limit)


def _write(session: Session, statement: Sql, group_id: int, limit: Limit) -> None:
    def work(session: Session) -> None:
        if not hold_group(session, group_id):
            raise UnknownGroup("the group was deleted meanwhile; nothing was written")
        session.execute(statement, _row(group_id, limit))

    session.transaction(work)


def _row(group_id: int, limit: Limit) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "rate": limit.rate,
        "max_running": limit.max_running,
        "max_running_per_key": limit.max_running_per_key,
        "per_s": limit.per_s,
        "capacity": limit.capacity,
    }


def delete(session: Session, group_id: int) -> None:
    """Delete the limits and slots of a group, inside the transaction that deletes the group."""
    session.execute(_SQL.delete_limit, {"group_id": group_id})
    session.execute(_SQL.delete_slots, {"group_id": group_id})


def sweep(session: Session, limit: int) -> int:
    """Delete the slots of clients that are gone, at most ``limit``; return how many."""
    return session.change(_SQL.sweep_slots, {"limit": limit})
