"""Several servers asked at once, each on a thread of its own: one that is away delays no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass
from typing import Any, TypeVar

from emsworker.admin.monitoring import ClientView, Monitoring
from emsworker.admin.standing import GroupStanding, Standings
from emsworker.app import Ems
from emsworker.core.errors import EmsError, StoreUnavailable
from emsworker.core.process.clock import ticks
from emsworker.core.servers import MAIN
from emsworker.core.url import impatient, redact
from emsworker.store.cluster.clients import LeaderRow
from emsworker.store.engine.database import Database
from emsworker.store.engine.replica import topology
from emsworker.store.engine.schema import check_version, server_facts

T = TypeVar("T")

ANSWER_S = 8.0  # below the timeout of Prometheus (10 s)
_ASK_S = 3.0


class Servers:
    """Databases by the names of their servers.

    Args:
        databases: the main server's first.
    """

    def __init__(self, databases: Mapping[str, Database]) -> None:
        self.databases = dict(databases)
        self._askers = {name: ThreadPoolExecutor(1, f"ems-server-{name}") for name in databases}

    def ask(
        self, work: Callable[[str, Database], T], timeout_s: float = ANSWER_S, names: Iterable[str] | None = None
    ) -> dict[str, T | EmsError]:
        """Return what ``work`` returns of each server, or the error for which it does not.

        Args:
            work: called with a server's name and database, always by the same thread for a server.
            timeout_s: seconds that all have together.
            names: of the servers to ask, by default all.
        """
        asked = self.databases if names is None else names
        futures = {name: self._askers[name].submit(work, name, self.databases[name]) for name in asked}
        until = ticks() + timeout_s
        return {name: _settled(future, until, timeout_s) for name, future in futures.items()}


def quick_databases(app: Ems) -> dict[str, Database]:
    """Return the databases of an app's servers by name, which give up a server that does not answer within seconds."""
    wait_s = min(_ASK_S, app.settings.connect_timeout_s)
    return {name: Database(impatient(one.url, _ASK_S), wait_s, _ASK_S) for name, one in app.streams.servers.items()}


def _settled(future: Future[Any], until: float, timeout_s: float) -> Any:
    try:
        return future.result(max(0.0, until - ticks()))
    except TookTooLong:
        future.cancel()
        return StoreUnavailable(f"the server has not answered for {timeout_s:g} s")
    except EmsError as error:
        return error


@dataclass(frozen=True)
class ServerView:
    """A server and what is on it.

    Attributes:
        address: host, port and database.
        version: product and version; empty if it does not answer, as all that follows.
        topology: the part that it plays among others; see :func:`emsworker.store.engine.replica.topology`.
        topics, groups: the number of those that it keeps.
        lag: messages that its groups have not finished.
        oldest_s: age of the oldest of them, in seconds.
        workers: the number of live clients.
        beat: true if a beat leads there.
        age_s: the age of these numbers in seconds; ``None`` if they were read just now.
        error: why it cannot be used.
    """

    name: str
    address: str
    version: str = ""
    topology: str = ""
    topics: int = 0
    groups: int = 0
    lag: int = 0
    oldest_s: float | None = None
    workers: int = 0
    beat: bool = False
    age_s: float | None = None
    error: EmsError | None = None

    @property
    def reachable(self) -> bool:
        """True if it answers, if only that it cannot be used: it has no tables, or refuses the user."""
        return not isinstance(self.error, StoreUnavailable)

    @property
    def usable(self) -> bool:
        """True if it answers and can be used."""
        return self.error is None

    @property
    def problem(self) -> str:
        """The error's text without passwords; empty if there is none."""
        if self.error is None:
            return ""
        option = "" if self.name == MAIN else f" --server {self.name}"
        return redact(str(self.error)).replace("`ems migrate`", f"`ems migrate{option}`")


def list_servers(servers: Servers, most: int | None = None, timeout_s: float = ANSWER_S) -> list[ServerView]:
    """Return each server with what is on it.

    Args:
        most: retries and dead letters of a partition are counted up to this number.
        timeout_s: seconds that a server has to answer.
    """
    found = servers.ask(lambda name, database: _look(name, database, most), timeout_s)
    return [
        ServerView(name, _address(servers.databases[name]), error=view) if isinstance(view, EmsError) else view
        for name, view in found.items()
    ]


def _look(name: str, database: Database, most: int | None) -> ServerView:
    monitoring = Monitoring(database)
    database.call(check_version)
    standing = Standings(database).groups(0, most=most)
    return look(name, database, standing, monitoring.clients(), monitoring.leaders())


def look(
    name: str,
    database: Database,
    standing: GroupStanding,
    clients: Sequence[ClientView],
    leaders: Sequence[LeaderRow],
) -> ServerView:
    """Return a server with what is on it.

    Args:
        standing, clients, leaders: what was read of it.
    """
    facts, total = database.call(server_facts), standing.total
    return ServerView(
        name,
        _address(database),
        facts.product,
        database.call(topology).name,
        total.topics,
        total.groups,
        total.lag,
        total.oldest_s,
        sum(view.row.alive for view in clients),
        any(row.alive for row in leaders),
        standing.age_s,
    )


def _address(database: Database) -> str:
    return f"{database.servers}/{database.name}"
