"""The screens of ``ems top``: what they read, what their rows are, and which screen a row opens."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from emsworker.extending.administration import (
    Admin,
    ClientView,
    DeadFilter,
    GroupLag,
    GroupStatus,
    GroupTrace,
    Monitoring,
    Servers,
    Standings,
    Trace,
)
from emsworker.extending.console import Row
from emsworker.extending.errors import AccessDenied, EmsError, error_line
from emsworker.extending.settings import redact
from emsworker.extending.values import counted, short_client, uid_text, utc

if TYPE_CHECKING:
    from datetime import datetime

    from emsworker.extending.administration import DeadEntry, Running, TaskView, WaitingRetry
    from emsworker.extending.database import Database
    from emsworker.extending.stream import LeaderRow

T = TypeVar("T")

_COUNTED = 10_000
"""Retries and dead letters of a group are counted up to here."""
_LISTED = 200
"""Rows of one list on a screen."""
_CLAIMS = 1000
"""Live claims that are read for the number of running messages."""
_ERROR_CHARACTERS = 500
"""Of an error on a screen."""
_TASKS_WITHIN_S = 600.0
"""Figures of tasks on a screen are of this time."""
_SAME_S = 1.0
"""Samples of the beat that are less apart are one."""

GROUP_COLUMNS = ("topic", "group", "state", "lag", "in_rate", "out_rate", "oldest_s", "running", "retries", "dead")


class Rates:
    """Messages in and out of each group a second, between two readings."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[float, int, int]] = {}
        self.of: dict[tuple[str, str], tuple[float | None, float | None]] = {}

    def note(self, lags: Sequence[GroupLag], now_s: float) -> None:
        """Take the readings of a moment.

        Args:
            now_s: by any clock that runs on.
        """
        found, rates = {}, {}
        for lag in lags:
            place = (lag.topic.name, lag.group.name)
            found[place] = (now_s, lag.written, lag.written - lag.lag)
            rates[place] = _rate(self._before.get(place), found[place])
        self._before, self.of = found, rates


def _rate(before: tuple[float, int, int] | None, now: tuple[float, int, int]) -> tuple[float | None, float | None]:
    if before is None or now[0] <= before[0]:
        return None, None
    past_s = now[0] - before[0]
    return round((now[1] - before[1]) / past_s, 1), round(max(0, now[2] - before[2]) / past_s, 1)


class Reader:
    """Reads streams for the screens; one reading costs a server the same whatever its stream holds.

    Args:
        databases: the streams by server.
        clock: seconds, by a clock that runs on.

    Attributes:
        away: the servers that could not be read the last time, with the reason.
    """

    def __init__(self, databases: Mapping[str, Database], clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = Servers(databases)
        self._streams = {name: _StreamReader(database, clock) for name, database in databases.items()}
        self.away: dict[str, EmsError] = {}

    @property
    def names(self) -> Sequence[str]:
        return list(self._streams)

    @property
    def several(self) -> bool:
        """True if there are several servers."""
        return len(self.names) > 1

    def groups(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return a row for each group.

        Args:
            limit: of each server, only this number of groups, those with the most lag.

        Raises:
            StoreUnavailable: no server can be read.
        """
        read = self._read(lambda stream: stream.groups(limit))
        return [{"server": name, **row} for name, rows in read.items() for row in rows]

    @property
    def count(self) -> int:
        """The number of groups, as of the last reading of their rows."""
        return sum(one.count for one in self._streams.values())

    @property
    def is_fresh(self) -> bool:
        """True if the last rows of groups of a server were read themselves, not from samples of the beat."""
        return any(one.age_s is None for one in self._streams.values())

    @property
    def age_s(self) -> float | None:
        """The age of the last rows of groups, the oldest of all servers; ``None`` if they were read themselves."""
        return max((one.age_s for one in self._streams.values() if one.age_s is not None), default=None)

    def clients(self) -> tuple[list[tuple[str, ClientView]], list[tuple[str, LeaderRow]]]:
        """Return the clients and the leaders of the beat, each with its server; see :meth:`groups`."""
        read = self._read(_StreamReader.clients)
        clients = [(name, one) for name, (found, _) in read.items() for one in found]
        return clients, [(name, one) for name, (_, found) in read.items() for one in found]

    def tasks(self) -> list[tuple[str, TaskView]]:
        """Return the tasks of all groups, each with its server; see :meth:`groups`."""
        read = self._read(_StreamReader.tasks)
        return [(name, one) for name, found in read.items() for one in found]

    def messages(self, server: str, topic: str, group: str) -> list[dict[str, Any]]:
        """Return messages of a group that run, wait for a retry, or are dead; no bodies and no errors are read."""
        return self._read(lambda stream: stream.messages(topic, group), server)[server]

    def trace(self, server: str, topic: str, partition: int, offset: int) -> Trace:
        """Return the trace of a message; without headers and errors if this user must not read them."""
        return self._read(lambda stream: stream.trace(topic, partition, offset), server)[server]

    def _read(self, read: Callable[[_StreamReader], T], server: str | None = None) -> dict[str, T]:
        found = self._servers.ask(
            lambda name, _: read(self._streams[name]), names=self._streams if server is None else [server]
        )
        away = {name: one for name, one in found.items() if isinstance(one, EmsError)}
        if len(away) == len(found):
            raise next(iter(away.values()))
        self.away = away if server is None else self.away
        return {name: one for name, one in found.items() if not isinstance(one, EmsError)}


class _StreamReader:
    """The part of a reader for one stream.

    Attributes:
        age_s: the age of the last rows of groups in seconds; ``None`` if they were read themselves.
        count: the number of groups.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self.admin, self.monitoring = Admin(database), Monitoring(database)
        self._standings = Standings(database)
        self._clock, self._rates = clock, Rates()
        self.age_s: float | None = None
        self.count = 0
        self._noted_s = -math.inf

    def groups(self, limit: int | None) -> list[dict[str, Any]]:
        """Return a row for each group; see :meth:`Reader.groups`."""
        standing = self._standings.groups(limit, most=_COUNTED)
        lags, self.age_s, self.count = standing.groups, standing.age_s, standing.total.groups
        read_s = self._clock() - (self.age_s or 0.0)
        if self.age_s is None or read_s - self._noted_s > _SAME_S:
            self._rates.note(lags, read_s)
            self._noted_s = read_s
        claims = self.admin.lists.running(limit=_CLAIMS).rows
        running = Counter((one.topic, one.group) for one in claims if one.offset is not None)
        rates = {lag.group.id: self._rates.of.get((lag.topic.name, lag.group.name), (None, None))[1] for lag in lags}
        known = any(rate is not None for rate in rates.values())  # after the second reading
        states = self._standings.states(lags, rates if known else None)
        return [self._group(lag, running[lag.topic.name, lag.group.name], states[lag.group.id]) for lag in lags]

    def _group(self, lag: GroupLag, running: int, status: GroupStatus) -> dict[str, Any]:
        entering, leaving = self._rates.of.get((lag.topic.name, lag.group.name), (None, None))
        return {
            "topic": lag.topic.name,
            "group": lag.group.name,
            "lag": lag.lag,
            "in_rate": entering,
            "out_rate": leaving,
            "oldest_s": lag.oldest_age_s,
            "running": running,
            "retries": lag.retries,
            "dead": lag.dead,
            "capped": lag.capped,
            "paused": lag.group.paused,
            "state": str(status),
            "alarms": list(status.alarms),
        }

    def clients(self) -> tuple[list[ClientView], list[LeaderRow]]:
        """Return the clients and the leaders of the beat."""
        return self.monitoring.clients(), self.monitoring.leaders()

    def tasks(self) -> list[TaskView]:
        """Return the tasks; without what waits and runs, and errors, if this user must not read headers and errors."""
        tasks = self.admin.tasks
        try:
            return tasks.list(within_s=_TASKS_WITHIN_S)
        except AccessDenied:
            return tasks.list(within_s=_TASKS_WITHIN_S, details=False)

    def messages(self, topic: str, group: str) -> list[dict[str, Any]]:
        """Return messages of a group that run, wait for a retry, or are dead; no bodies and no errors are read."""
        lists = self.admin.lists
        rows = [
            _row("running", one, None, one.since, one.client_id, None, str(one.progress or ""))
            for one in lists.running(topic, group, limit=_LISTED).rows
            if one.offset is not None
        ]
        rows += [
            _row("retry" if one.due_at else "blocked", one, one.attempt, one.due_at)
            for one in lists.retries(topic, group, limit=_LISTED).rows
        ]
        rows += [
            _row("dead", one, one.attempts, one.dead_at, None, one.task, one.error_type)
            for one in self.admin.dead.page(DeadFilter(topic, group), limit=_LISTED).rows
        ]
        return rows

    def trace(self, topic: str, partition: int, offset: int) -> Trace:
        """Return the trace of a message; without headers and errors if this user must not read them."""
        try:
            return self.monitoring.trace_at(topic, partition, offset)
        except AccessDenied:
            return self.monitoring.trace_at(topic, partition, offset, details=False)


def _row(
    state: str,
    one: Running | WaitingRetry | DeadEntry,
    attempt: int | None,
    at: datetime | None,
    client: str | None = None,
    task: str | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    return {
        "state": state,
        "partition": one.partition,
        "offset": one.offset,
        "id": one.id,
        "task": task,
        "attempt": attempt,
        "at": at,
        "client": client,
        "text": text,
    }


@dataclass
class Screen(ABC):
    """One list of ``ems top``, with its sort order, its filter and its selected row.

    Attributes:
        title: stands above the rows.
        columns: of the table; the first of ``spare`` is left out first.
        sort: the column by which rows are sorted, ``None`` for the order of reading.
        wanted: only rows that contain this text are shown.
        identity: the columns by which a row is known again after the next reading.
        selected: the index of the selected row; it follows a row that was selected by a key.
        facts: stands beside the title.
        folds: rows may have several lines of text.
        problem: the reason why the last reading failed; the rows are then older.
    """

    title: str
    columns: tuple[str, ...]
    spare: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    sort: str | None = None
    descending: bool = True
    wanted: str = ""
    selected: int = 0
    problem: str | None = None
    facts: str = ""
    folds: bool = False
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _held: tuple[Any, ...] | None = None

    @abstractmethod
    def read(self, reader: Reader) -> list[dict[str, Any]]:
        """Return the rows."""

    def opens(self, row: Row) -> Screen | None:
        return None

    def refresh(self, reader: Reader) -> None:
        """Read the rows anew; if that fails, keep those of before."""
        try:
            self.read_now(reader)
            self.problem = None
        except EmsError as error:
            self.problem = redact(str(error))

    def read_now(self, reader: Reader) -> None:
        """Read the rows anew; errors are raised."""
        self._rows = self.read(reader)

    @property
    def count(self) -> int:
        """The number of rows that were read."""
        return len(self._rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that contain the wanted text, sorted."""
        text = self.wanted.casefold()
        found = [row for row in self._rows if not text or _contains(row, self.columns, text)]
        if (column := self.sort) is not None:
            found.sort(key=lambda row: _sortable(row[column]), reverse=self.descending)
        held = next((at for at, row in enumerate(found) if self._identity_of(row) == self._held), self.selected)
        self.selected = max(0, min(held, len(found) - 1))
        return found

    def move(self, rows: int) -> None:
        """Select the row that is this many below; above, if it is negative."""
        found = self.rows()
        self.selected = max(0, min(self.selected + rows, len(found) - 1))
        self._held = self._identity_of(found[self.selected]) if found else None

    def _identity_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.identity)

    def sort_next(self) -> None:
        """Sort by the next column."""
        orders = [None, *self.columns]
        column = self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
        self.descending = not any(column is not None and isinstance(row[column], str) for row in self._rows)

    def opened(self) -> Screen | None:
        """Return the screen that the selected row opens."""
        rows = self.rows()
        return self.opens(rows[self.selected]) if rows else None


def _contains(row: Row, columns: Sequence[str], text: str) -> bool:
    return any(text in str(row[column]).casefold() for column in columns if row[column] is not None)


def _sortable(value: Any) -> tuple[bool, Any]:
    return (value is not None, "" if value is None else value)


class GroupsScreen(Screen):
    """All groups with their lag and their rates.

    Args:
        sort, wanted: see :class:`Screen`.
        limit: the maximum number of rows in the order of lag; only these are read.
    """

    def __init__(self, sort: str | None = "lag", wanted: str = "", limit: int | None = None) -> None:
        descending = sort not in ("server", "topic", "group")
        spare = ("in_rate", "running")
        known = ("server", "topic", "group")
        super().__init__("Groups", GROUP_COLUMNS, spare, known, sort=sort, descending=descending, wanted=wanted)
        self._limit, self._total = limit, 0

    @property
    def count(self) -> int:
        """The number of groups."""
        return self._total

    @property
    def limit(self) -> int | None:
        """The number of rows to read; ``None`` for all, which another order or a filter needs."""
        return self._limit if self.sort == "lag" and self.descending and not self.wanted else None

    def read(self, reader: Reader) -> list[dict[str, Any]]:
        rows = reader.groups(self.limit)
        self._total = reader.count
        clients, leaders = reader.clients()
        live = sum(view.row.alive for _, view in clients)
        processes = len({view.row.process_id for _, view in clients if view.row.alive})
        self.facts = f"{counted(live, 'client')} in {counted(processes, 'process')}, {_beats(reader, leaders)}"
        if reader.age_s is not None:
            self.facts += f", as sampled {reader.age_s:.0f} s ago"
        if reader.several:
            self.columns = ("server", *GROUP_COLUMNS)
        return rows

    def opens(self, row: Row) -> Screen | None:
        return GroupScreen(row["server"], row["topic"], row["group"])


def _beats(reader: Reader, leaders: Sequence[tuple[str, LeaderRow]]) -> str:
    """Say who leads the beat; of several servers, where none does, and which are away."""
    leading = {name: one.holder for name, one in leaders if one.alive}
    if not reader.several:
        return f"beat led by {short_client(next(iter(leading.values())))}" if leading else "no beat leads"
    idle = [name for name in reader.names if name not in leading and name not in reader.away]
    said = [f"no beat leads on {', '.join(idle)}"] if idle else ["beats lead"]
    return ", ".join([*said, *(f"{name} is away" for name in reader.away)])


class ClientsScreen(Screen):
    """All clients with their leases, their claims and their progress."""

    def __init__(self) -> None:
        columns = ("client", "name", "lease", "claims", "progress", "renewed_at")
        super().__init__("Clients", columns, ("renewed_at",), ("client",), sort="claims")

    def read(self, reader: Reader) -> list[dict[str, Any]]:
        clients, leaders = reader.clients()
        where = "{} on {}" if reader.several else "{}"
        leading = [
            f"{where.format(one.service, name)} led by {short_client(one.holder)}" for name, one in leaders if one.alive
        ]
        self.facts = ", ".join([*leading, *(f"{name} is away" for name in reader.away)]) or "no beat leads"
        if reader.several:
            self.columns = ("server", *(column for column in self.columns if column != "server"))
        return [
            {
                "server": name,
                "client": view.row.client_id,
                "name": view.row.name,
                "lease": "live" if view.row.alive else "expired",
                "claims": view.claims,
                "progress": str(view.progress[-1]) if view.progress else "",
                "renewed_at": utc(view.row.renewed_at),
            }
            for name, view in clients
        ]


class GroupScreen(Screen):
    """Messages of one group that run, wait for a retry, or are dead."""

    def __init__(self, server: str, topic: str, group: str) -> None:
        columns = ("state", "partition", "offset", "id", "task", "attempt", "at", "client", "text")
        super().__init__(f"{topic} / {group}", columns, ("id", "client", "task", "at"), ("partition", "offset"))
        self._server, self._topic, self._group = server, topic, group

    def read(self, reader: Reader) -> list[dict[str, Any]]:
        rows = reader.messages(self._server, self._topic, self._group)
        counts = Counter(row["state"] for row in rows)
        self.facts = ", ".join(f"{_count(counts[state])} {state}" for state in ("running", "retry", "blocked", "dead"))
        return rows

    def opens(self, row: Row) -> Screen | None:
        return TraceScreen(self._server, self._topic, row["partition"], row["offset"])


def _count(number: int) -> str:
    return f"{number}+" if number >= _LISTED else str(number)


class TraceScreen(Screen):
    """History of one message in each group."""

    def __init__(self, server: str, topic: str, partition: int, offset: int) -> None:
        columns = ("group", "state", "attempt", "at", "client", "text")
        super().__init__(
            f"{topic}/{partition}/{offset}", columns, ("client", "at", "attempt"), ("group", "at"), folds=True
        )
        self._place = (server, topic, partition, offset)

    def read(self, reader: Reader) -> list[dict[str, Any]]:
        trace = reader.trace(*self._place)
        self.facts = _about(trace)
        return [row for one in trace.groups for row in _steps(one)]


def _about(trace: Trace) -> str:
    message = trace.message
    if message is None:
        return "deleted by retention"
    uid = uid_text(message.uid) if message.uid else "no id"
    task = trace.headers.get("ems-task")
    sent = f"{message.born_at:%Y-%m-%d %H:%M:%SZ} by {message.producer_id}"
    return f"{uid}{f', task {task}' if task else ''}, {counted(message.size_bytes, 'byte')}, sent {sent}"


def _steps(one: GroupTrace) -> list[dict[str, Any]]:
    """Return the state of a message in a group, and below it the attempts, the last one first."""
    history = one.history
    at = history.dead.dead_at if history.dead else history.claim.progress_at if history.claim else None
    if history.retry is not None and history.retry.due_at is not None:
        at = history.retry.due_at
    text = history.dead.reason if history.dead else str(one.progress or "")
    head = {"group": one.group.name, "state": one.state.value, "attempt": None, "at": at, "client": one.client_id}
    attempts = [
        {
            "group": "",
            "state": attempt.outcome.value,
            "attempt": attempt.attempt,
            "at": attempt.ended_at,
            "client": attempt.client_id,
            "text": error_line(attempt.error)[:_ERROR_CHARACTERS],
        }
        for attempt in reversed(history.attempts)
    ]
    return [head | {"text": text}, *attempts]
