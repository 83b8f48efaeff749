"""Commits that several flows share: of their starts, of beginnings of runs, of steps that have ended, and of ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from emsworker.extending.database import Database, Packet, Session, Sql, Statements, fill, join, literals
from emsworker.extending.errors import Duplicate
from emsworker.extending.stream import raise_counter
from emsworker.extending.values import utc
from emsworker.flows.rows import DONE, CallEnd, FlowRow, Loaded, RunChange, SignalRow, StepRow
from emsworker.flows.store.group_commit import GroupCommit
from emsworker.flows.store.table_rows import flow_of, step_of, stored_error

_SQL = Statements(__name__)
LOADED_SIGNALS = 10_000


@dataclass(frozen=True, slots=True)
class DirectStart:
    """The start of a flow whose first message goes to the stream at once.

    Attributes:
        place: its topic and partition, in whose order offsets are allocated, and its id.
        storing: the statements that store it.
        sending: the statement that sends its message, at an offset that was allocated just before.
        size: bytes of its arguments.
    """

    place: tuple[int, int, str]
    storing: Sequence[Sql]
    sending: Sql
    size: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a run.

    Attributes:
        owner: uid of the message that runs the flow.
        after: the run that goes on with this one; ``None`` if none does.
    """

    flow_id: int
    owner: bytes
    after: int | None = None
    size: int = 0

    @property
    def place(self) -> int:
        """Number of the flow."""
        return self.flow_id


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A flow after the beginning of a run.

    Attributes:
        flow: the flow as it is now; ``None`` if there is no such flow, or its topic is gone.
        loaded: what the run begins with; ``None`` if the flow cannot begin.
    """

    flow: FlowRow | None
    loaded: Loaded | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A step that has ended well, or the end of a flow that is done, to be recorded.

    Attributes:
        ended: the step, or the value of the flow.
    """

    flow: FlowRow
    ended: StepRow | bytes | None

    @property
    def place(self) -> int:
        """Number of the flow."""
        return self.flow.id

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return len((self.ended.value if isinstance(self.ended, StepRow) else self.ended) or b"")

    @classmethod
    def of_end(cls, flow: FlowRow, change: RunChange) -> Checkpoint | None:
        """Return the end of a flow, if it is done and nothing else is to be written with that."""
        only_end = RunChange(state=DONE, value=change.value)
        return cls(flow, change.value) if change == only_end and flow.parent is None and not flow.has_events else None


@dataclass(frozen=True, slots=True)
class FlowRead:
    """A read of a flow.

    Attributes:
        place: its id.
    """

    place: str
    size: int = 0


class SharedCommits:
    """Starts flows, begins runs, and records their checkpoints, many with one commit; thread-safe.

    Attributes:
        starts: starts flows.
        begins: begins runs.
        checkpoints: records them; false if the run is not the flow's present one.
        reads: reads flows by their ids, with one statement.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.starts = GroupCommit[DirectStart, None](self._start)
        self.begins = GroupCommit[Beginning, BegunRun](self._begin)
        self.checkpoints = GroupCommit[Checkpoint, bool](self._record)
        self.reads = GroupCommit[FlowRead, FlowRow | None](self._read)

    def _start(self, starts: Sequence[DirectStart]) -> list[None]:
        self._database.call(lambda session: session.retry_on_conflict(partial(_start, starts, session)))
        return [None] * len(starts)

    def _read(self, reads: Sequence[FlowRead]) -> list[FlowRow | None]:
        keys = [one.place for one in reads]
        rows = self._database.call(lambda session: session.rows(_SQL.find_flows, {"keys": keys}))
        found = {flow.key.rstrip(" "): flow for flow in map(flow_of, rows)}  # as the server compares them
        return [found.get(key.rstrip(" ")) for key in keys]

    def begin_alone(self, beginning: Beginning) -> BegunRun:
        """Begin a run that goes on with another: tried twice, for another's sake, it would find itself overtaken."""
        return self._begin([beginning])[0]

    def _begin(self, beginnings: Sequence[Beginning]) -> list[BegunRun]:
        return self._database.call(partial(_begin, beginnings))

    def _record(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        steps = [one for one in checkpoints if isinstance(one.ended, StepRow)]
        ends = [one for one in checkpoints if not isinstance(one.ended, StepRow)]
        statements = [_adding(steps)] if steps else []
        statements += [_finishing(one) for one in ends]
        try:
            changed = self._database.call(partial(_change, statements))
        except Duplicate:  # an earlier try was committed, and its answer lost: the fence held
            if len(checkpoints) > 1:
                raise
            return [True]
        recorded: dict[int, bool] = {}
        if steps and (added := changed.pop(0)) in (0, len(steps)):
            recorded = {one.place: added > 0 for one in steps}
        elif steps:  # some: those again are duplicates
            recorded = {one.place: self._record([one])[0] for one in steps}
        recorded |= {one.place: count > 0 for one, count in zip(ends, changed, strict=True)}
        return [recorded[one.place] for one in checkpoints]


def _start(starts: Sequence[DirectStart], session: Session) -> None:
    packet = session.packet()
    packet.begin()
    for one in starts:
        for statement in one.storing:
            packet.add(statement)
        topic_id, partition, _ = one.place
        raise_counter(packet, topic_id, partition, 1)
        packet.add(one.sending)
    packet.commit()
    packet.send()


def _adding(steps: Sequence[Checkpoint]) -> Sql:
    rows = []
    for one in steps:
        step = one.ended
        assert isinstance(step, StepRow)
        rows.append(
            fill(
                _SQL.new_step,
                literals(
                    {
                        "flow_id": one.flow.id,
                        "run": one.flow.run,
                        "step": step.number,
                        "name": step.name,
                        "branch": step.branch,
                        "value": step.value,
                        "took_s": step.took_s,
                    }
                ),
            )
        )
    return fill(_SQL.add_steps, {"steps": join(" UNION ALL ", rows)})


def _finishing(one: Checkpoint) -> Sql:
    return fill(_SQL.finish, literals({"flow_id": one.flow.id, "run": one.flow.run, "value": one.ended}))


def _change(statements: Sequence[Sql], session: Session) -> list[int]:
    """Run statements in one commit; return how many rows each has changed."""

    def change() -> list[int]:
        packet = session.packet()
        numbers = _add_together(packet, statements)
        results = packet.send()
        return [results[number].affected for number in numbers]

    return session.retry_on_conflict(change)


def _add_together(packet: Packet, statements: Sequence[Sql]) -> list[int]:
    """Append statements that take effect together; return the indexes of their results."""
    if len(statements) == 1:
        return [packet.add(statements[0])]
    packet.begin()
    numbers = [packet.add(statement) for statement in statements]
    packet.commit()
    return numbers


def _begin(beginnings: Sequence[Beginning], session: Session) -> list[BegunRun]:
    """Begin runs in one commit, and load their flows after it."""
    flows = [one.flow_id for one in beginnings]
    updates = [
        fill(_SQL.begin_run, literals({"flow_id": one.flow_id, "owner": one.owner, "run": one.after}))
        for one in beginnings
    ]

    def begin() -> tuple[list[int], list[Sequence[Sequence[Any]]]]:
        packet = session.packet()
        begun = _add_together(packet, updates)
        loading = [
            packet.add(statement, {"flows": flows, "loaded": LOADED_SIGNALS})
            for statement in (_SQL.get_flows, _SQL.list_steps, _SQL.list_signals, _SQL.list_small_ends)
        ]
        results = packet.send()
        return [results[number].affected for number in begun], [results[number].rows for number in loading]

    begun, (rows, steps, signals, ends) = session.retry_on_conflict(begin)
    if len(flows) > 1 and len(signals) == LOADED_SIGNALS:  # of some flows not all were loaded
        each = [session.rows(_SQL.list_signals, {"flows": [flow], "loaded": LOADED_SIGNALS}) for flow in flows]
        signals = [row for rows in each for row in rows]
    loaded = {row[0]: Loaded(flow_of(row), [], [], utc(row[-1]), {}) for row in rows}
    for flow, *step in steps:
        loaded[flow].steps.append(step_of(step))
    for flow, *signal in signals:
        loaded[flow].signals.append(SignalRow(*signal))
    for flow, step, number, value, kind, text in ends:
        loaded[flow].call_ends[step] = CallEnd(number, value, stored_error(kind, text))
    return [_begun(loaded.get(flow), count) for flow, count in zip(flows, begun, strict=True)]


def _begun(loaded: Loaded | None, changed: int) -> BegunRun:
    return BegunRun(None, None) if loaded is None else BegunRun(loaded.flow, loaded if changed else None)
