"""The leases of a process: one client id for each consumer thread, renewed together.

A lease is trusted from *before* the renewal call until a margin before its end, on a clock that goes on while the
process is stopped. A process that cannot renew stops working first and asks the server afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from emsworker.core.config import Settings
from emsworker.core.errors import REFUSED, StoreError
from emsworker.core.ids import new_client_id
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.outage import best_effort
from emsworker.core.process.runnable import Runnable, Trouble
from emsworker.core.servers import MAIN, parse_servers
from emsworker.store import Database, Session
from emsworker.store.cluster import clients

log = logging.getLogger(__name__)

_RETRY_S = 0.25


class LeaseRenewer(Runnable):
    """Registers client ids and keeps them alive.

    Args:
        database: where the clients are written.
        settings: lease_s, renew_s, lease_margin_s.
        process_id: groups the clients of this process.
        name: the worker's name, for display.
        ip: the first part of the client ids.
        on_death: see :class:`Runnable`.
        revives: clients whose leases ran out go on while their rows are there; the owner of their claims looks then
            which of them are left (``gaps``). Without that look an order could be broken.
        tags: those that the worker was started with.

    Attributes:
        generation: counts the times that all clients were lost, and register again.
        gaps: counts the times that leases ran out, and the clients went on.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        process_id: str,
        name: str,
        ip: str,
        on_death: Callable[[str, BaseException], None],
        *,
        revives: bool = False,
        tags: Sequence[str] = (),
    ) -> None:
        super().__init__("ems-lease", on_death)
        self._revives = revives
        self._tags = tags
        self._database = database
        self._session = database.session()
        self._abandoned = False
        self._settings = settings
        self._process_id = process_id
        self._worker_name = name
        self._ip = ip
        self._servers = (MAIN, *(one.name for one in parse_servers(settings.servers)))
        self._mutex = forks.Lock()
        self._clients: set[str] = set()
        self._valid_until = 0.0
        self.generation = 0
        self.gaps = 0
        self._in_gap = False  # they ran out, and it is not known that they were taken up again
        self._trouble = Trouble(log)

    @property
    def good(self) -> bool:
        """True if the clients of this process may work."""
        return ticks() < self._valid_until and not self._abandoned

    @property
    def refused_by(self) -> BaseException | None:
        """The error by which the server refuses the user now, or ``None``."""
        return self._trouble.error if isinstance(self._trouble.error, REFUSED) else None

    @property
    def term(self) -> tuple[int, int]:
        """Identity of the time since which the leases have held without a gap."""
        return self.generation, self.gaps

    def register(self, session: Session) -> tuple[str, int]:
        """Register the calling thread under a new client id, over its own session.

        The server is called outside the lock: while one thread connects slowly, the others' leases must be renewed.

        Returns:
            the client id, and the generation that it belongs to.
        """
        client_id = new_client_id(self._ip)
        began = ticks()
        lease_s = self._settings.lease_s
        name, servers = self._worker_name, self._servers
        clients.register(session, [client_id], self._process_id, name, lease_s, servers, self._tags)
        with self._mutex:
            self._clients.add(client_id)
            trusted_until = began + self._settings.lease_s - self._settings.lease_margin_s
            alone = len(self._clients) == 1
            self._valid_until = trusted_until if alone else min(self._valid_until, trusted_until)
            return client_id, self.generation

    def deregister(self, session: Session, client_id: str) -> None:
        """Stop renewing a client id, and delete it; a claim that it still has is recovered by the beat."""
        with self._mutex:
            self._clients.discard(client_id)
        clients.deregister(session, [client_id])

    def abandon(self) -> None:
        """End all leases of this process, which dies now, so that its work need not wait until they expire.

        No lock is taken, because its holder may be waiting for a server that does not answer.
        """
        self._abandoned = True
        with (
            best_effort(log, "could not end the leases"),
            self._database.session() as session,  # this is not the renewer's own thread
        ):
            end_leases(session, self._process_id)

    def step(self) -> None:
        """Wait until the next renewal is due, and renew."""
        self.sleep(self._pause())
        if not self.stopping.is_set():
            self.renew()

    def _pause(self) -> float:
        due = self._valid_until - self._settings.lease_s + self._settings.lease_margin_s + self._settings.renew_s
        return min(max(due - ticks(), _RETRY_S), self._settings.renew_s)

    def renew(self) -> None:
        """Renew all clients at once; if the leases are lost, begin a new generation: every thread registers again."""
        with self._mutex:
            if not self._clients or self._abandoned:
                return
            began = ticks()
            try:
                renewed = clients.renew(self._session, sorted(self._clients), self._settings.lease_s)
                renewed = self._end_gap() if renewed else self._revive()
            except StoreError as error:
                self._trouble.note("cannot renew the leases", error)
                return
            self._trouble.over("the leases are renewed")
            if renewed:
                self._trust_from(began)
                return
            log.error("the leases of this process ran out; its work is run elsewhere, its threads register anew")
            self._clients.clear()
            self._in_gap = False
            self._valid_until = 0.0
            self.generation += 1

    def _revive(self) -> bool:
        """Go on after an outage that was longer than the lease, if recovery has not ended these clients."""
        if not self._revives:
            return False
        self._in_gap = True
        return clients.revive(self._session, sorted(self._clients), self._settings.lease_s) and self._end_gap()

    def _end_gap(self) -> bool:
        """Count a gap that is over; its end may have been committed by an earlier call whose answer was lost."""
        if self._in_gap:
            log.warning(
                "the leases of this process ran out, and were taken up again; it keeps what nobody else has taken"
            )
            self.gaps += 1
            self._in_gap = False
        return True

    def _trust_from(self, began: float) -> None:
        self._valid_until = began + self._settings.lease_s - self._settings.lease_margin_s

    def shut_down(self) -> None:
        """Close the session; the consumers have deregistered themselves."""
        self._session.close()


def end_leases(session: Session, process_id: str) -> None:
    """End all leases of a process that is gone, so that its work need not wait until they expire."""
    clients.delete_process(session, process_id)


def renew_leases(session: Session, process_id: str, lease_s: float) -> None:
    """Renew all leases of a process that cannot do it by itself."""
    clients.renew_process(session, process_id, lease_s)
