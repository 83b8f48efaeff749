"""Leases: who is alive, and who leads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.store.session import Session
from emsworker.store.sql import Statements

_SQL = Statements("clients")


@dataclass(frozen=True)
class ClientRow:
    """A client as ``ems clients`` shows it."""

    client_id: str
    process_id: str
    name: str
    started_at: str
    renewed_at: str
    expires_at: str
    alive: bool


@dataclass(frozen=True)
class LeaderRow:
    """Who holds a service."""

    service: str
    holder: str
    expires_at: str
    alive: bool


def register(session: Session, client_ids: Sequence[str], process_id: str, name: str, lease_s: float) -> None:
    """Write new clients with a fresh lease."""

    def work(session: Session) -> None:
        for client_id in sorted(client_ids):
            values = {"client_id": client_id, "process_id": process_id, "name": name, "lease_s": lease_s}
            row = "(%(client_id)s, %(process_id)s, %(name)s, NOW(6), NOW(6), NOW(6) + INTERVAL %(lease_s)s SECOND)"
            session.execute(f"{_SQL.insert_clients} {row}", values)

    session.transaction(work)


def renew(session: Session, client_ids: Sequence[str], lease_s: float) -> bool:
    """Prolong leases; false if one of them has run out already (then its work may be somebody else's)."""
    args = {"client_ids": sorted(client_ids), "lease_s": lease_s}
    return session.change(_SQL.renew_clients, args) == len(client_ids)


def delete_process(session: Session, process_id: str) -> int:
    """Delete the clients of a process that is dead or about to die; recovery finds what they held at once."""
    return session.change(_SQL.delete_process, {"process_id": process_id})


def deregister(session: Session, client_ids: Sequence[str]) -> None:
    """Delete clients; a claim that one of them still holds is an orphan from now on."""
    if client_ids:
        session.change(_SQL.delete_clients, {"client_ids": sorted(client_ids)})


def delete_expired(session: Session) -> int:
    """Delete clients whose lease is gone and whose claims have been recovered; those that somebody holds come later."""
    found = [client_id for (client_id,) in session.rows(_SQL.find_expired_clients)]

    def work(session: Session) -> int:
        locked = [client_id for (client_id,) in session.rows(_SQL.lock_expired_clients, {"client_ids": found})]
        return session.execute(_SQL.delete_expired_clients, {"client_ids": locked}).affected if locked else 0

    return session.transaction(work) if found else 0


def list_clients(session: Session) -> list[ClientRow]:
    """All clients, the living and those not yet swept away."""
    return [ClientRow(*row) for row in session.rows(_SQL.list_clients)]


def try_to_lead(session: Session, service: str, holder: str, lease_s: float) -> bool:
    """Take or keep a service; true while ``holder`` leads."""
    args = {"service": service, "holder": holder, "lease_s": lease_s}

    # Each is a transaction by itself: the first row of a service is written once, and by one of those that try.
    return bool(session.change(_SQL.try_to_lead, args) or session.change(_SQL.add_leader, args))


def resign(session: Session, service: str, holder: str) -> None:
    """Give a service up, so that another can take it at once."""
    session.change(_SQL.resign, {"service": service, "holder": holder})


def list_leaders(session: Session) -> list[LeaderRow]:
    """Who leads."""
    return [LeaderRow(*row) for row in session.rows(_SQL.list_leaders)]
