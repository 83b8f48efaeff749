"""A database that is only read: any of several replicas, and how far it is behind its primary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pymysql.err import MySQLError

from emsworker.core.errors import AccessDenied, EmsError, StoreUnavailable
from emsworker.core.url import DatabaseUrl
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
_BEHIND = ("Seconds_Behind_Source", "Seconds_Behind_Master")
_RUNS = (("Replica_IO_Running", "Slave_IO_Running"), ("Replica_SQL_Running", "Slave_SQL_Running"))

T = TypeVar("T")


class ReplicaDatabase(Database):
    """The stream as its replicas show it. If the one in use is away, the next one of the URL is asked.

    Args:
        url: names one server or several; whether they are read-only does not matter.
        connect_timeout_s, call_timeout_s: see :class:`Database`; the time of a call is shared by the servers.
    """

    def __init__(self, url: str, connect_timeout_s: float = 10.0, call_timeout_s: float = 30.0) -> None:
        super().__init__(url, connect_timeout_s, call_timeout_s)
        urls = urls_of(url)
        self._each = [Database(one, connect_timeout_s, call_timeout_s / len(urls), only_reads=True) for one in urls]
        self._current = 0

    @property
    def _now(self) -> Database:
        return self._each[self._current]

    @property
    def servers(self) -> str:
        """The address of the server in use."""
        return self._now.servers

    def session(self, patient: bool = True, answer_s: float | None = None) -> Session:
        """Create a session with the server in use."""
        return self._now.session(patient, answer_s)

    def thread_session(self) -> Session:
        """The calling thread's own session with the server in use."""
        return self._now.thread_session()

    def with_one_session(self) -> Database:
        """Return the database of the server in use with one session for all threads."""
        return self._now.with_one_session()

    def call(self, work: Callable[[Session], T], timeout_s: float | None = None) -> T:
        """Run ``work`` with the server in use, or with the next one that answers."""
        share_s = None if timeout_s is None else timeout_s / len(self._each)
        errors: list[StoreUnavailable] = []
        for step in range(len(self._each)):
            number = (self._current + step) % len(self._each)
            try:
                found = self._each[number].call(work, share_s)
            except StoreUnavailable as error:
                errors.append(error)
                continue
            self._current = number
            return found
        raise errors[0]


def urls_of(text: str) -> list[str]:
    """Return a URL of each server that a URL names."""
    url = DatabaseUrl.parse(text)
    user = quote(url.user, safe="")
    who = f"{user}:{quote(url.password, safe='')}@" if url.password else f"{user}@" if user else ""
    options = f"?{urlencode(url.options)}" if url.options else ""
    return [f"mysql://{who}{host}:{port}/{quote(url.database, safe='')}{options}" for host, port in url.servers]


_SEE = "the user may not read SHOW REPLICA STATUS; grant it REPLICATION CLIENT (MariaDB: SLAVE MONITOR)"


@dataclass(frozen=True)
class Lag:
    """The distance of a replica from its primary.

    Attributes:
        seconds: by the server's own account; ``None`` if that is not known.
        reason: why it is not known.
    """

    seconds: float | None
    reason: str = ""

    def __str__(self) -> str:
        return f"lag unknown: {self.reason}" if self.seconds is None else f"{self.seconds:g} s behind its primary"


def replica_lag(session: Session) -> Lag:
    """Return how far a server is behind the one that it replicates from."""
    try:
        status = _status(session)
    except AccessDenied:
        return Lag(None, _SEE)
    except (MySQLError, EmsError) as error:
        return Lag(None, f"SHOW REPLICA STATUS failed ({error})")
    if status is None:
        return Lag(None, "the server is no replica")
    stopped = [names[0] for names in _RUNS if not any(status.get(name) == "Yes" for name in names)]
    if stopped:
        return Lag(None, f"replication has stopped ({', '.join(stopped)} is not Yes)")
    behind = next((status[name] for name in _BEHIND if status.get(name) is not None), None)
    return Lag(None, "the server does not say") if behind is None else Lag(float(behind))


def _status(session: Session) -> dict[str, Any] | None:
    result = session.named_rows(_SQL.show_replica_status)
    return result[0] if result else None


@dataclass(frozen=True)
class Topology:
    """The part that a server plays among others.

    Attributes:
        name: ``alone``, ``replica``, ``read-only``, ``semi-synchronous``, ``asynchronous`` or ``Galera``, or a
            replication group.
        cost: what it costs or risks; empty if there is nothing to say.
    """

    name: str
    cost: str = ""


def topology(session: Session) -> Topology:
    """Return the part that a server plays.

    What the user may not see counts as absent. A server that is read-only need not be a replica: it may be a primary
    that was closed for writing.
    """
    found = {str(name): str(value) for name, value in session.rows(_SQL.show_variables)}
    found |= {str(name): str(value) for name, value in session.rows(_SQL.show_status)}
    if found.get("wsrep_on") == "ON":
        return Topology("Galera", "use one node for writing; a commit waits for the slowest node of the cluster")
    if found.get("group_replication_group_name"):
        return _group(found)
    replicates = _replicates(session)
    if replicates:
        return Topology("replica", "it can be read (EMS_READ_URL), and is behind its primary")
    if closed := [name for name in ("read_only", "super_read_only") if found.get(name, "OFF") != "OFF"]:
        known = "it replicates from no server" if replicates is False else f"whether it replicates is not known: {_SEE}"
        return Topology("read-only", f"{' and '.join(closed)} set; {known}")
    for name in ("Rpl_semi_sync_source_clients", "Rpl_semi_sync_master_clients"):
        if int(found.get(name, "0")) > 0:
            return Topology("semi-synchronous", "a commit waits until a replica has it; without one, for the timeout")
    replicas = int(found.get("Slaves_connected") or found.get("Replicas_connected") or 0)
    if replicas or int(session.rows(_SQL.count_dumps)[0][0]):
        cost = "a failover loses the messages of the last moments; semi-synchronous replication loses none"
        return Topology("asynchronous", cost)
    return Topology("alone")


def _group(found: dict[str, str]) -> Topology:
    single = found.get("group_replication_single_primary_mode") == "ON"
    mode = "single primary" if single else "multi-primary"
    consistency = found.get("group_replication_consistency", "EVENTUAL")
    costs = [] if single else ["writes on several members conflict and are repeated; write to one"]
    if consistency in ("AFTER", "BEFORE_AND_AFTER"):
        costs.append(f"with consistency {consistency} a commit waits until all members have applied it")
    return Topology(f"replication group, {mode}, consistency {consistency}", "; ".join(costs))


def _replicates(session: Session) -> bool | None:
    """Return whether a server replicates from another one; ``None`` if the user may not see it."""
    try:
        return _status(session) is not None
    except (AccessDenied, MySQLError, EmsError):
        return None
