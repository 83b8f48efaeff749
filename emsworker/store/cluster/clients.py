"""Leases of clients, and of the leaders of services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.core.servers import MAIN
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


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
    """The leader of a service."""

    service: str
    holder: str
    expires_at: str
    alive: bool


def register(
    session: Session,
    client_ids: Sequence[str],
    process_id: str,
    name: str,
    lease_s: float,
    servers: Sequence[str] = (MAIN,),
    tags: Sequence[str] = (),
) -> None:
    """Insert new clients with a fresh lease.

    Args:
        servers: the names of those that the process can reach.
        tags: those that its worker was started with.
    """
    common = {"process_id": process_id, "name": name, "lease_s": lease_s}
    common |= {"servers": " ".join(servers), "tags": ",".join(tags)}
    rows = [common | {"client_id": client_id} for client_id in sorted(client_ids)]

    def work(session: Session) -> None:
        packet = session.packet()
        packet.insert_many(_SQL.insert_clients, _SQL.client_row, rows)
        packet.send()

    session.transaction(work)


def renew(session: Session, client_ids: Sequence[str], lease_s: float) -> bool:
    """Renew leases; return False if one has expired already (its work may have another owner by now)."""
    args = {"client_ids": sorted(client_ids), "lease_s": lease_s}
    return session.change(_SQL.renew_clients, args) == len(client_ids)


def renew_process(session: Session, process_id: str, lease_s: float) -> int:
    """Renew the leases of a process that have not expired; return their number."""
    return session.change(_SQL.renew_process, {"process_id": process_id, "lease_s": lease_s})


def revive(session: Session, client_ids: Sequence[str], lease_s: float) -> bool:
    """Renew leases that have expired; return False, and delete the clients, if one of them is no longer there.

    While a client has its row, recovery has not ended; but it may have taken claims of it.
    """
    args = {"client_ids": sorted(client_ids), "lease_s": lease_s}

    def work(session: Session) -> bool:
        if session.execute(_SQL.revive_clients, args).affected == len(client_ids):
            return True
        session.execute(_SQL.delete_clients, args)
        return False

    return session.transaction(work)


def shorten(session: Session) -> int:
    """End leases in time that were renewed while the server's clock was ahead; return their number."""
    return session.change(_SQL.shorten_clients)


def delete_process(session: Session, process_id: str) -> int:
    """Delete the clients of a process that is dead or about to die, so that recovery finds their claims at once."""
    return session.change(_SQL.delete_process, {"process_id": process_id})


def deregister(session: Session, client_ids: Sequence[str]) -> None:
    """Delete clients; a claim that one of them still holds is an orphan from now on."""
    if client_ids:
        session.change(_SQL.delete_clients, {"client_ids": sorted(client_ids)})


def delete_expired(session: Session) -> int:
    """Delete clients whose lease has expired and whose claims were recovered; locked rows are left for a later call."""
    found = [client_id for (client_id,) in session.rows(_SQL.find_expired_clients)]

    def work(session: Session) -> int:
        locked = [client_id for (client_id,) in session.rows(_SQL.lock_expired_clients, {"client_ids": found})]
        return session.execute(_SQL.delete_expired_clients, {"client_ids": locked}).affected if locked else 0

    return session.transaction(work) if found else 0


def list_clients(session: Session) -> list[ClientRow]:
    """Return all clients: the live ones, and the expired ones not deleted yet."""
    return [ClientRow(*row) for row in session.rows(_SQL.list_clients)]


def is_any_alive(session: Session) -> bool:
    """Return whether any client has a lease that has not expired."""
    return bool(session.rows(_SQL.find_live))


def find_without(session: Session, server: str) -> list[str]:
    """Find the live processes that know no server of that name; return their names and ids."""
    found = session.rows(_SQL.list_named_servers)
    return [f"{name} ({process_id})" for name, process_id, servers in found if server not in servers.split()]


def find_with(session: Session, server: str) -> list[str]:
    """Find the live processes that know a server of that name; return their names and ids."""
    found = session.rows(_SQL.list_named_servers)
    return [f"{name} ({process_id})" for name, process_id, servers in found if server in servers.split()]


def list_tags(session: Session) -> list[frozenset[str]]:
    """Return the tags of the live clients, each combination once."""
    return [frozenset(filter(None, tags.split(","))) for (tags,) in session.rows(_SQL.list_tags)]


def try_to_lead(session: Session, service: str, holder: str, lease_s: float) -> bool:
    """Take or keep the leadership of a service; return True if ``holder`` leads."""
    args = {"service": service, "holder": holder, "lease_s": lease_s}

    # Each is a transaction of its own: the row of a service is inserted once, by one of the candidates.
    return bool(session.change(_SQL.try_to_lead, args) or session.change(_SQL.add_leader, args))


def resign(session: Session, service: str, holder: str) -> None:
    """Give a service up, so that another can take it at once."""
    session.change(_SQL.resign, {"service": service, "holder": holder})


def list_leaders(session: Session) -> list[LeaderRow]:
    """Return the leaders of all services."""
    return [LeaderRow(*row) for row in session.rows(_SQL.list_leaders)]
