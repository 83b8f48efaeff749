"""Flows as operators see and change them, behind ``ems flows`` and the dashboard.

Lists read bounded parts of the flows in a state, or with an attribute, and leave out what does not match; a page ends
when it is full, or when many flows were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from emsworker.extending.administration import Listing, decode_token, encode_token
from emsworker.extending.database import Database, Session, Statements, check_extension, stream_id
from emsworker.extending.errors import AccessDenied, ConfigError, EmsError, Problem, StoreUnavailable
from emsworker.extending.values import PreviewDecoder, in_utc, uid_text, utc
from emsworker.flows.errors import FlowEnded, UnknownFlow
from emsworker.flows.extension import EXTENSION
from emsworker.flows.places import CallPlace
from emsworker.flows.retrying import first_step, refusal, was_undone
from emsworker.flows.rows import CALL, CANCELLED, DONE, ENDED, FAILED, READY, RUNNING, UNDONE, WAITING, encode_value
from emsworker.flows.store.flow_store import MysqlFlowStore

STATES = (READY, RUNNING, WAITING, DONE, FAILED, CANCELLED)
OPEN = (READY, RUNNING, WAITING)
MOST_LOOKED, MOST_STEPS = 20_000, 1000
_PART, _FEW = 1000, 100
_EVER, _NEVER, _LARGEST = datetime(1000, 1, 1), datetime(9999, 12, 31), (1 << 64) - 1
_STOPS = (StoreUnavailable, AccessDenied)  # what is true of one flow then is true of all
_COLUMNS = (
    "f.id, f.`key`, f.name, f.version, t.name, f.state, f.waits, f.error_type, f.undone, f.parent, f.started_at, "
    "f.changed_at, f.begins_at, f.deadline_at, f.ended_at"
)
_SQL = Statements(__name__, columns=_COLUMNS)
_STORE = Statements("emsworker.flows.store.flow_store")


@dataclass(frozen=True)
class FlowFilter:
    """A choice of flows; what is ``None`` or empty does not narrow it.

    Args:
        states: any of these.
        name: of the function.
        waits: for what it waits, or how that begins: ``signal``, ``call shop.pack``.
        error: class of the error that it ended with.
        attributes: all of these.
        since, until: of its latest change.
        roots: only those that no other flow has called.
        undone: only those whose steps were undone, or only others.
    """

    states: Sequence[str] = ()
    name: str | None = None
    waits: str | None = None
    error: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    roots: bool = False
    undone: bool | None = None

    @property
    def is_looked_through(self) -> bool:
        """True if no index leads to what is meant, apart from the state and the time."""
        return self.roots or (self.name, self.waits, self.error, self.undone) != (None, None, None, None)

    def matches(self, flow: FlowEntry) -> bool:
        """Return whether a flow is meant, apart from its attributes."""
        return (
            flow.state in (self.states or STATES)
            and self.name in (None, flow.name)
            and self.error in (None, flow.error_type)
            and self.undone in (None, flow.undone)
            and (self.waits is None or (flow.waits or "").startswith(self.waits))
            and (self.since is None or flow.changed_at >= self.since)
            and (self.until is None or flow.changed_at <= self.until)
            and not (self.roots and flow.parent)
        )


@dataclass(frozen=True)
class FlowEntry:
    """A flow in a list.

    Attributes:
        number: of its row.
        id: as users see it.
        waits: for what it waits.
        parent: of a flow that another one has called: ``FLOW.STEP.NUMBER``.
        begins_at: before which it does not begin, while further starts of a burst may come.
        undone: its steps were undone, so it cannot be run again.
    """

    number: int
    id: str
    name: str
    version: int
    topic: str | None
    state: str
    waits: str | None
    error_type: str | None
    undone: bool
    parent: str | None
    started_at: datetime
    changed_at: datetime
    begins_at: datetime | None
    deadline_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class FlowCount:
    """Flows of one state that have the same function, reason and error.

    Attributes:
        undone: their steps were undone, so they cannot be run again.
        capped: there are more, and this number of them was counted.
        oldest, latest: of their latest changes.
    """

    state: str
    name: str
    waits: str | None
    error_type: str | None
    undone: bool
    count: int
    capped: bool
    oldest: datetime
    latest: datetime


@dataclass(frozen=True)
class StepEntry:
    """A step of a flow.

    Attributes:
        state: ``waiting``, ``done`` or ``failed``.
        total, pending, failed: of calls.
        message: id of the message of a call, by which `ems trace` finds it.
        value, error: with details only.
    """

    number: int
    kind: str
    name: str
    state: str
    total: int
    pending: int
    failed: int
    error_type: str | None
    due_at: datetime | None
    began_at: datetime
    ended_at: datetime | None
    message: str | None
    value: bytes | None = None
    error: str | None = None


@dataclass(frozen=True)
class FailedCall:
    """A call that has failed for good; ``message`` is the id of its dead letter, unless it called a flow."""

    step: int
    number: int
    message: str
    error_type: str
    error: str | None
    ended_at: datetime


@dataclass(frozen=True)
class GivenSignal:
    """A signal; ``step`` is the one that has taken it."""

    name: str
    step: int | None
    sent_at: datetime


@dataclass(frozen=True)
class FlowDetail:
    """A flow with what belongs to it.

    Attributes:
        parent: id of the flow that has called it.
        steps: the last ones, in their order.
        count: of all steps.
        children: the first ones.
        args, value, error: with details only.
    """

    flow: FlowEntry
    parent: str | None
    attributes: Mapping[str, str]
    steps: Sequence[StepEntry]
    count: int
    failed: Sequence[FailedCall]
    signals: Sequence[GivenSignal]
    children: Sequence[FlowEntry]
    args: bytes | None = None
    value: bytes | None = None
    error: str | None = None


class Flows:
    """The flows of a stream.

    Args:
        database: of the stream.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = MysqlFlowStore(database)

    def check(self) -> None:
        """Check that there are tables for flows.

        Raises:
            SchemaMissing: there are none.
        """
        self._database.call(lambda session: check_extension(session, EXTENSION))

    # -- looking -------------------------------------------------------------------------------------------------------

    def page(self, only: FlowFilter, *, after: str | None = None, limit: int = 50) -> Listing[FlowEntry]:
        """Return a page of flows: the latest change first; those with an attribute in the order of their start.

        It may be shorter than the limit, or empty, and yet not the last one, if few of many flows match.
        """
        read = self._with_attribute if only.attributes else self._in_states
        return self._database.call(lambda session: read(session, only, after, limit))

    def _in_states(self, session: Session, only: FlowFilter, after: str | None, limit: int) -> Listing[FlowEntry]:
        since, until = _span(only)
        place: list[Any] = decode_token(after, datetime, int) or [until, _LARGEST]
        size = _PART if only.is_looked_through else min(limit + 1, _PART)
        found: list[FlowEntry] = []
        for _ in range(MOST_LOOKED // _PART):
            args = {"since": since, "until": place[0], "before": place[1]}
            packet = session.packet()
            for state in only.states or STATES:
                packet.add(_SQL.list_in_state, {**args, "state": state, "limit": size})
            part = sorted((_entry(row) for one in packet.send() for row in one.rows), key=_place_of, reverse=True)
            for flow in part[:size]:
                if len(found) == limit:
                    return Listing(tuple(found), encode_token(place))
                place = [_text(flow.changed_at), flow.number]
                if only.matches(flow):
                    found.append(flow)
            if len(part) < size:
                return Listing(tuple(found), None)
        return Listing(tuple(found), encode_token(place))

    def _with_attribute(self, session: Session, only: FlowFilter, after: str | None, limit: int) -> Listing[FlowEntry]:
        (before,) = decode_token(after, int) or [_LARGEST]
        (name, value), *others = only.attributes.items()
        found: list[FlowEntry] = []
        for _ in range(MOST_LOOKED // _PART):
            args = {"name": name, "value": value, "before": before, "limit": _PART}
            part = [_entry(row) for row in session.rows(_SQL.list_with_attribute, args)]
            numbers = {flow.number for flow in part}
            for pair in others:
                numbers &= _having(session, numbers, *pair)
            for flow in part:
                if len(found) == limit:
                    return Listing(tuple(found), encode_token([before]))
                before = flow.number
                if flow.number in numbers and only.matches(flow):
                    found.append(flow)
            if len(part) < _PART:
                return Listing(tuple(found), None)
        return Listing(tuple(found), encode_token([before]))

    def each(self, only: FlowFilter) -> Iterator[FlowEntry]:
        """Yield all flows that match; one that is changed meanwhile does not come again."""
        after = None
        while True:
            page = self.page(only, after=after, limit=_PART)
            yield from page.rows
            after = page.after
            if after is None:
                return

    def counts(self, only: FlowFilter, most: int = MOST_LOOKED) -> list[FlowCount]:
        """Count flows by state, function, reason and error, up to a number in each state; attributes are not asked."""
        return self._database.call(lambda session: count_flows(session, only, most))

    def find(self, key: str) -> FlowEntry:
        """Return a flow by its id.

        Raises:
            UnknownFlow: there is none.
        """
        rows = self._database.call(lambda session: session.rows(_SQL.find_flow, {"key": key}))
        if not rows:
            raise UnknownFlow(f"there is no flow {key!r}")
        return _entry(rows[0])

    def show(self, key: str, *, details: bool = True) -> FlowDetail:
        """Return a flow with its steps and all else that belongs to it.

        Args:
            details: read arguments, values and errors too.

        Raises:
            UnknownFlow: there is none.
        """
        flow = self.find(key)
        return self._database.call(lambda session: _detail(session, flow, details))

    def values(self, key: str, after: int = 0, limit: int = _FEW) -> list[tuple[int, bytes, datetime]]:
        """Return what a flow has emitted after a number."""
        return self.follow(key, after, limit)[1]

    def follow(self, key: str, after: int, limit: int = _FEW) -> tuple[FlowEntry, list[tuple[int, bytes, datetime]]]:
        """Return a flow, and what it has emitted after a number; all of that if the flow has ended, up to the limit."""
        flow = self.find(key)  # first: what it emits until its end is there when that is seen
        args = {"flow_id": flow.number, "after": after, "limit": limit}
        rows = self._database.call(lambda session: session.rows(_STORE.list_values, args))
        return flow, [(number, value, utc(at)) for number, value, at in rows]

    # -- changing ------------------------------------------------------------------------------------------------------

    def cancel(self, key: str) -> bool:
        """Cancel a flow and those that it has called; false if it has ended."""
        return self._store.cancel(self._row(key))

    def retry(self, key: str, step: str | None = None) -> bool:
        """Run a flow again that has failed or was cancelled; false if it is no such flow.

        Args:
            step: number or name of the first step that runs again; by default what failed last.

        Raises:
            WrongArguments: it has no such step, or its steps were undone.
        """
        row = self._row(key)
        if row.state not in (FAILED, CANCELLED):
            return False
        steps = self._store.steps_of(row)
        done = self._store.retry(row, first_step(key, steps, step))
        if not done and was_undone(steps):
            raise refusal(key)
        return done

    def delete(self, key: str) -> bool:
        """Delete a flow that has ended, and those that it has called and that have ended; false if it has not."""

        def delete(session: Session) -> bool:
            todo, deleted = [flow], 0
            while todo:
                one = todo.pop()
                rows = session.rows(_SQL.list_children, {"prefix": f"{one.number}.%", "limit": _LARGEST})
                if session.execute(_SQL.mark_deleted, {"flow_id": one.number}).affected:
                    deleted += 1
                    todo += map(_entry, rows)
                elif one is flow:
                    return False
            return True

        flow = self.find(key)
        return self._database.call(lambda session: session.transaction(delete))

    def signal(self, key: str, name: str, value: Any) -> None:
        """Give a flow a signal; see :meth:`Ems.signal`.

        Raises:
            UnknownFlow: there is none.
            FlowEnded: it has ended.
        """
        state = self._store.signal(None, key, name, encode_value(value, f"the value of signal {name!r}"))
        if state is None:
            raise UnknownFlow(f"there is no flow {key!r}")
        if state in ENDED:
            raise FlowEnded(f"flow {key!r} has ended ({state}); signal {name!r} was not given")

    def _row(self, key: str) -> Any:
        row = self._store.find(key)
        if row is None:
            raise UnknownFlow(f"there is no flow {key!r}")
        return row


def count_flows(session: Session, only: FlowFilter, most: int) -> list[FlowCount]:
    """Count flows by state, function, reason and error; see :meth:`Flows.counts`."""
    since, until = _span(only)
    packet, states = session.packet(), only.states or STATES
    for state in states:
        packet.add(_SQL.count_in_state, {"since": since, "until": until, "state": state, "limit": most})
    found: list[FlowCount] = []
    for state, result in zip(states, packet.send(), strict=True):
        capped = sum(row[4] for row in result.rows) >= most
        found += [
            FlowCount(state, name, waits, error, bool(undone), count, capped, utc(oldest), utc(latest))
            for name, waits, error, undone, count, oldest, latest in result.rows
            if only.name in (None, name)
            and only.error in (None, error)
            and only.undone in (None, undone)
            and (only.waits is None or (waits or "").startswith(only.waits))
        ]
    return found


def change_all(
    flows: Flows, only: FlowFilter, work: Callable[[str], bool], step: Callable[[int], Any] = lambda count: None
) -> tuple[int, dict[str, str]]:
    """Change all flows that match, each in a transaction of its own.

    Args:
        work: changes one by its id.
        step: called after each.

    Returns:
        how many were changed, and why others were not, by id.
    """
    changed, refused = 0, dict[str, str]()
    for flow in flows.each(only):
        try:
            changed += work(flow.id)
        except _STOPS:
            raise
        except (EmsError, ValueError) as error:  # of one row, perhaps of somebody's making: the others are changed
            refused[flow.id] = str(error)
        step(1)
    return changed, refused


def count_flow(result: object) -> int:
    """Return 1 if a flow was changed, of the results of all transactions of the change; for the audit."""
    return int(result is True or (isinstance(result, list) and bool(result)))


def count_given(result: object) -> int:
    """Return 1 if a signal was given; for the audit."""
    return int(result in (READY, RUNNING, WAITING))


def as_shown(decoder: PreviewDecoder, raw: bytes | None) -> tuple[Any, str | None]:
    """Return a stored value as people may see it, and why it is not decoded; whatever it holds, nothing is raised."""
    if raw is None:
        return None, None
    found = decoder.preview_of({}, raw)
    return found.body, found.problem


def read_states(given: Sequence[str]) -> tuple[str, ...]:
    """Check states.

    Raises:
        ConfigError: there is no such state.
    """
    for one in given:
        if one not in STATES:
            raise ConfigError([Problem("state", repr(one), f"must be one of {', '.join(STATES)}")])
    return tuple(given)


def _having(session: Session, numbers: set[int], name: str, value: str) -> set[int]:
    if not numbers:
        return set()
    args = {"name": name, "value": value, "flows": sorted(numbers)}
    return {number for (number,) in session.rows(_SQL.filter_by_attribute, args)}


def _detail(session: Session, flow: FlowEntry, details: bool) -> FlowDetail:
    args, stream = {"flow_id": flow.number, "limit": MOST_STEPS}, stream_id(session)
    failures = {step: (count, kind) for step, count, kind in session.rows(_SQL.count_failed_calls, args)}
    rows = session.rows(_SQL.list_last_steps, args)[::-1]
    contents: dict[int, tuple[bytes | None, str | None]] = {}
    own: Sequence[Any] = (None, None, None)
    failed: list[FailedCall] = []
    if details:
        first = rows[0][0] if rows else 0
        found = session.rows(_SQL.list_step_contents, {**args, "step": first})
        contents = {step: (value, error) for step, value, error in found}
        (own,) = session.rows(_SQL.get_contents, args) or [own]
        failed = [
            FailedCall(step, number, uid_text(CallPlace(stream, flow.number, step, number).uid), kind, error, utc(at))
            for step, number, kind, error, at in session.rows(_SQL.list_failed_calls, {**args, "limit": _FEW})
        ]
    signals = session.rows(_SQL.list_given_signals, {**args, "limit": _FEW})
    children = session.rows(_SQL.list_children, {"prefix": f"{flow.number}.%", "limit": _FEW})
    by_flows = {int(row[9].split(".")[1]) for row in children}
    parent = None
    if flow.parent is not None:
        found_parent = session.rows(_SQL.get_key, {"flow_id": int(flow.parent.partition(".")[0])})
        parent = found_parent[0][0] if found_parent else None
    return FlowDetail(
        flow,
        parent,
        dict(session.rows(_SQL.list_attributes, args)),
        [
            _step(
                stream,
                flow,
                row,
                failures.get(row[0], (0, None)),
                contents.get(row[0], (None, None)),
                row[0] in by_flows,
            )
            for row in rows
        ],
        session.rows(_SQL.count_steps, args)[0][0],
        failed,
        [GivenSignal(name, step, utc(at)) for _, name, step, at in signals],
        [_entry(row) for row in children],
        *own,
    )


def _step(
    stream: str,
    flow: FlowEntry,
    row: Sequence[Any],
    failed: tuple[int, str | None],
    contents: tuple[bytes | None, str | None],
    calls_flow: bool,
) -> StepEntry:
    number, kind, name, total, pending, error_type, *times = row
    due_at, began_at, ended_at = (None if at is None else utc(at) for at in times)
    state = WAITING if ended_at is None else FAILED if error_type or failed[0] else DONE
    message = (
        uid_text(CallPlace(stream, flow.number, number, 0).uid) if kind in (CALL, UNDONE) and not calls_flow else None
    )
    assert began_at is not None
    return StepEntry(
        *(number, kind, name, state, total, pending, failed[0], error_type or failed[1]),
        *(due_at, began_at, ended_at, message, *contents),
    )


def _entry(row: Sequence[Any]) -> FlowEntry:
    times = [None if at is None else utc(at) for at in row[10:]]
    return FlowEntry(*(*row[:8], bool(row[8]), row[9]), *times)


def _place_of(flow: FlowEntry) -> tuple[datetime, int]:
    return flow.changed_at, flow.number


def _span(only: FlowFilter) -> tuple[datetime, datetime]:
    """Return the times between which a flow has changed last."""
    return _plain(only.since or _EVER), _plain(only.until or _NEVER)


def _plain(at: datetime) -> datetime:
    return in_utc(at).replace(tzinfo=None)


def _text(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(sep=" ")
