"""Flows in the database of their stream.

Every write of a run begins with its fence: it takes effect only while the run is the flow's present one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from emsworker.extending.database import (
    Database,
    Packet,
    Session,
    Sql,
    Statements,
    fill,
    foreign,
    identifier,
    insertion,
    literals,
)
from emsworker.extending.errors import Duplicate
from emsworker.extending.publishing import Transaction
from emsworker.extending.values import ResultRow, new_uid, storable, utc
from emsworker.flows.errors import FlowLost
from emsworker.flows.places import end_of, read_place
from emsworker.flows.rows import (
    ENDED,
    FAILED,
    WAITING,
    CallEnd,
    Change,
    Failure,
    FlowRow,
    Loaded,
    NewFlow,
    SignalRow,
    StepRow,
    is_undone,
)

_SQL = Statements(__name__)
_ENDS_A_STATEMENT, _BYTES_A_STATEMENT = 500, 1 << 20
_NO_STEP, _NO_SIGNAL = (0,), ("",)


class _Ready(Exception):
    """What the flow was to wait for is there."""


class _Written(Exception):
    """An earlier try was committed, and its answer lost: only the run itself ends or waits without a new run."""


class FlowStore:
    """The flows of one stream.

    Args:
        database: the stream's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._name = identifier(database.name)

    # -- in a transaction of anybody's ---------------------------------------------------------------------------------

    def start(self, transaction: Any, new: NewFlow, topic_id: int, owner: bytes) -> tuple[int, bool]:
        """Store a flow, unless one with its id is there; return its number, and whether it is the new one.

        Args:
            transaction: what :func:`emsworker.store.engine.foreign.run` takes.
            owner: uid of the message that will begin it.

        Raises:
            FlowExists: the flow with this id is of another function, or has other arguments.
        """
        args = {
            "key": new.key,
            "name": new.name,
            "version": new.version,
            "topic_id": topic_id,
            "owner": owner,
            "headers": new.headers,
            "args": new.args,
            "parent": new.parent,
            "timeout_s": new.timeout_s,
        }
        self._run(transaction, _SQL.insert_flow, args)
        ((number, its_owner, name, its_args, _),) = self._run(transaction, _SQL.find_started, {"key": new.key})
        if its_owner != owner:
            new.check_same(name, its_args)
            return number, False
        if new.attributes:
            head = fill(_SQL.insert_attributes, {"database": self._name})
            rows = [
                fill(_SQL.attribute_row, literals({"name": name, "value": value, "flow_id": number}))
                for name, value in new.attributes.items()
            ]
            foreign.run(transaction, insertion(head, rows))
        return number, True

    def signal(self, transaction: Any, key: str, name: str, value: bytes) -> str | None:
        """Give a flow a signal, and wake it if it waits.

        Returns:
            its state; ``None`` if there is no such flow. One that has ended gets no signal.
        """
        self._run(transaction, _SQL.lock_flow, {"key": key})
        found = self._run(transaction, _SQL.find_by_key, {"key": key})
        if not found:
            return None
        ((number, state),) = found
        if state not in ENDED:
            self._run(transaction, _SQL.insert_signal, {"flow_id": number, "name": name, "value": value})
            self.wake(transaction, number)
        return str(state)

    def wake(self, transaction: Any, number: int) -> None:
        """Send a message that runs a flow, if it waits."""
        args = {"flow_id": number, "owner": new_uid()}
        self._run(transaction, _SQL.wake_waiting, args)
        self._run(transaction, _SQL.send_wake, args)

    def _run(self, transaction: Any, statement: Sql, args: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return foreign.run(transaction, fill(statement, {**literals(args), "database": self._name}))

    # -- a run ---------------------------------------------------------------------------------------------------------

    def begin(self, number: int, owner: bytes, after: int | None = None) -> Loaded | None:
        """Begin a run of a flow; ``None`` if there is nothing to run: it has ended, or another message runs it.

        Args:
            owner: uid of the message that runs it.
            after: the run that goes on with this one. If another has begun since, it was overtaken.
        """

        def begin(session: Session) -> Loaded | None:
            args = {"flow_id": number, "owner": owner, "run": after}
            packet = session.packet()
            begun = packet.add(_SQL.begin_run, args)
            for statement in (_SQL.get_flow, _SQL.list_steps, _SQL.list_signals):
                packet.add(statement, args)
            results = packet.send()
            if not results[begun].affected:
                if after is None:
                    self._reopen(results[begun + 1].rows, owner)
                return None
            flow, steps, signals = (result.rows for result in results[begun + 1 :])
            return Loaded(_flow(flow[0]), [_step(row) for row in steps], [*map(_signal, signals)], utc(flow[0][-1]))

        return self._database.call(begin)

    def _reopen(self, rows: Sequence[Sequence[Any]], owner: bytes) -> None:
        """Run a flow that has failed again, because the dead letter of its message was requeued."""
        if rows and (flow := _flow(rows[0])).state == FAILED and flow.owner == owner:
            self.retry(flow)

    def checkpoint(self, flow: FlowRow, step: StepRow, took_s: float) -> None:
        """Record a step that has ended.

        Raises:
            FlowLost: the run is not the present one.
        """
        args = {"flow_id": flow.id, "run": flow.run, "took_s": took_s, **_values(step)}

        def checkpoint(session: Session) -> int:
            return session.retry_on_conflict(lambda: session.change(_SQL.add_step, args))

        try:
            added = self._database.call(checkpoint)
        except Duplicate:  # an earlier try was committed, and its answer lost: the fence held
            return
        if not added:
            raise _lost(flow)

    def write(self, flow: FlowRow, change: Change) -> bool:
        """Write what a run has done, in a transaction of its own; false if it was to wait for what is there already.

        Raises:
            FlowLost: the run is not the present one.
        """

        def write(session: Session) -> None:
            if not session.change(_SQL.fence, {"flow_id": flow.id, "run": flow.run}):
                if change.state is not None and session.rows(_SQL.get_run, {"flow_id": flow.id}) == ((flow.run,),):
                    raise _Written
                raise _lost(flow)
            if change.state == WAITING and session.rows(*_count_ready(flow, change))[0][0]:
                raise _Ready
            for statement in self._statements(flow, change):
                session.execute(statement)

        try:
            self._database.call(lambda session: session.transaction(write))
        except _Ready:
            return False
        except (Duplicate, _Written):
            return True
        return True

    def write_in(self, transaction: Transaction, flow: FlowRow, change: Change) -> None:
        """Write what a run has done, in a transaction that is open.

        Raises:
            FlowLost: the run is not the present one; the transaction must be rolled back.
        """
        fence = fill(_SQL.fence, literals({"flow_id": flow.id, "run": flow.run}))
        if not transaction.execute(fence).rowcount:
            raise _lost(flow)
        for statement in self._statements(flow, change):
            transaction.execute(statement)

    def _statements(self, flow: FlowRow, change: Change) -> Iterable[Sql]:
        """Yield the statements of a change, without its fence."""
        flow_id = literals({"flow_id": flow.id})
        if change.added:
            rows = [fill(_SQL.step_row, {**flow_id, **literals({"took_s": 0, **_values(one)})}) for one in change.added]
            yield insertion(_SQL.insert_steps, rows)
        for step in change.ended:
            yield fill(_SQL.end_step, {**flow_id, **literals(_values(step))})
        for signal, number in change.taken:
            yield fill(_SQL.take_signal, {**flow_id, **literals({"id": signal, "step": number})})
        if change.emitted:
            rows = [
                fill(_SQL.value_row, {**flow_id, **literals({"number": number, "value": value})})
                for number, value in change.emitted
            ]
            yield insertion(_SQL.insert_values, rows)
        if change.state is not None:
            args: dict[str, Any] = {
                "state": change.state,
                "waits": (change.waits or "")[:190] or None,
                "value": change.value,
            }
            args |= {"is_ended": change.state in ENDED, **_failed(change.failure)}
            yield fill(_SQL.set_state, {**flow_id, **literals(args)})
        if change.state in ENDED:
            yield from self._tell_parent(flow.parent, CallEnd(0, change.value, change.failure or flow.failure))

    def _tell_parent(self, place: str | None, end: CallEnd) -> Iterable[Sql]:
        """Yield what tells the flow that has called one of its end."""
        if place is not None:
            parent, step, number = map(int, place.split("."))
            yield from end_statements(self._name, parent, step, [CallEnd(number, end.value, end.failure)])

    def ends_of(self, flow: FlowRow, step: StepRow) -> list[CallEnd]:
        """Return the ends of the calls of a step."""
        args = {"flow_id": flow.id, "step": step.number}
        rows = self._database.call(lambda session: session.rows(_SQL.list_ends, args))
        return [CallEnd(number, value, _failure(kind, text)) for number, value, kind, text in rows]

    # -- looking, and changing from outside ----------------------------------------------------------------------------

    def find(self, key: str) -> FlowRow | None:
        """Return a flow by its id."""
        rows = self._database.call(lambda session: session.rows(_SQL.get_flow_by_key, {"key": key}))
        return _flow(rows[0]) if rows else None

    def steps_of(self, flow: FlowRow) -> list[StepRow]:
        """Return the steps of a flow."""
        rows = self._database.call(lambda session: session.rows(_SQL.list_steps, {"flow_id": flow.id}))
        return [_step(row) for row in rows]

    def values_of(self, flow: FlowRow, after: int, limit: int) -> list[tuple[int, bytes, datetime]]:
        """Return what a flow has emitted after a number."""
        args = {"flow_id": flow.id, "after": after, "limit": limit}
        rows = self._database.call(lambda session: session.rows(_SQL.list_values, args))
        return [(number, value, utc(at)) for number, value, at in rows]

    def cancel(self, flow: FlowRow) -> bool:
        """Cancel a flow and those that it has called; false if it has ended.

        A run that is under way ends at its next step.
        """

        def cancel(session: Session) -> bool:
            if not session.change(_SQL.cancel, {"flow_id": flow.id}):
                return False
            for statement in self._tell_parent(flow.parent, _cancelled(flow.key)):
                session.execute(statement)
            todo = [flow.id]
            while todo:
                for number, place, key in session.rows(_SQL.list_children, {"prefix": f"{todo.pop()}.%"}):
                    if session.change(_SQL.cancel, {"flow_id": number}):
                        todo.append(number)
                        for statement in self._tell_parent(place, _cancelled(key)):  # which may be retried
                            session.execute(statement)
            return True

        return self._database.call(lambda session: session.transaction(cancel))

    def retry(self, flow: FlowRow, step: int | None = None) -> bool:
        """Run a flow again that has failed or was cancelled; false if it is no such flow now.

        One whose steps were undone is run again only from a given step: its checkpoints no longer tell what holds.

        Args:
            step: number of the first step that is forgotten; by default the calls that have failed last, if the flow
                ended with their failure.
        """

        def retry(session: Session) -> bool:
            if not session.rows(_SQL.lock_ended, {"flow_id": flow.id}):
                return False
            steps = session.rows(_SQL.list_steps, {"flow_id": flow.id})
            if step is None and is_undone([_step(row) for row in steps]):
                return False
            last = steps[-1][0] if steps else 0
            first = step if step is not None else _failed_call(session, flow, last)
            args: dict[str, Any] = {"flow_id": flow.id, "step": first, "owner": new_uid(), "next_step": last + 1}
            for statement in (_SQL.delete_steps, _SQL.delete_ends, _SQL.give_signals_back, _SQL.reopen):
                session.execute(statement, args)
            session.execute(send_wake(self._name, flow.id, args["owner"]))
            return True

        return self._database.call(lambda session: session.transaction(retry))


def _cancelled(key: str) -> CallEnd:
    return CallEnd(0, None, Failure("FlowCancelled", f"flow {key!r} was cancelled"))


def _lost(flow: FlowRow) -> FlowLost:
    return FlowLost(f"flow {flow.key!r} is run by another message by now, or has ended")


def follow(packet: Packet, results: Sequence[ResultRow]) -> None:
    """Record the ends of calls with their acks, and wake the flows that have waited for the last one of a step."""
    ends: dict[tuple[int, int], list[CallEnd]] = {}
    for row in results:
        if (place := read_place(row)) is not None:
            ends.setdefault(place[:2], []).append(end_of(row, place[2]))
    for (flow_id, step), those in sorted(ends.items()):
        for statement in end_statements(identifier(packet.session.database), flow_id, step, those):
            packet.add(statement)


def end_statements(database: Sql, flow_id: int, step: int, ends: Sequence[CallEnd]) -> Iterable[Sql]:
    """Yield the statements that record ends of the calls of a step."""
    place = literals({"flow_id": flow_id, "step": step})
    for part in _parts(ends):
        rows = [
            fill(
                _SQL.end_row,
                {
                    **place,
                    **literals({"number": end.number, "value": end.value}),
                    **literals(_failed(end.failure)),
                },
            )
            for end in part
        ]
        yield insertion(_SQL.insert_ends, rows)
        yield fill(_SQL.count_ends, place)
    owner = new_uid()
    yield fill(_SQL.wake_joined, literals({"flow_id": flow_id, "step": step, "owner": owner}))
    yield send_wake(database, flow_id, owner)


def send_wake(database: Sql, flow_id: int, owner: bytes) -> Sql:
    """Return the statement that sends the message of a flow that was woken just before."""
    return fill(_SQL.send_wake, {**literals({"flow_id": flow_id, "owner": owner}), "database": database})


def _parts(ends: Sequence[CallEnd]) -> Iterable[Sequence[CallEnd]]:
    """Split ends so that each part makes one statement that every server takes."""
    part: list[CallEnd] = []
    size = 0
    for end in ends:
        weight = len(end.value or b"") * 2
        if part and (len(part) == _ENDS_A_STATEMENT or size + weight > _BYTES_A_STATEMENT):
            yield part
            part, size = [], 0
        part.append(end)
        size += weight
    if part:
        yield part


def _count_ready(flow: FlowRow, change: Change) -> tuple[Sql, dict[str, Any]]:
    steps, signals = change.unless
    args: dict[str, Any] = {"steps": list(steps or _NO_STEP), "signals": list(signals or _NO_SIGNAL)}
    return _SQL.count_ready, args | {"flow_id": flow.id, "since": change.since and change.since.replace(tzinfo=None)}


def _failed_call(session: Session, flow: FlowRow, last: int) -> int:
    """Return the number of the last step if one of its calls has failed, else the number after it."""
    ((failed,),) = session.rows(_SQL.find_failed_call, {"flow_id": flow.id})
    return last if failed == last and last else last + 1


def _values(step: StepRow) -> dict[str, Any]:
    return {
        "step": step.number,
        "kind": step.kind,
        "name": step.name,
        "total": step.total,
        "topics": step.topics,
        "value": step.value,
        "due_at": None if step.due_at is None else step.due_at.replace(tzinfo=None),
        "is_ended": step.is_ended,
        **_failed(step.failure),
    }


def _failed(failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return {"error_type": None, "error": None}
    return {"error_type": failure.kind[:190], "error": storable(failure.text)}


def _failure(kind: str | None, text: str | None) -> Failure | None:
    return None if kind is None else Failure(kind, text or "")


def _flow(row: Sequence[Any]) -> FlowRow:
    (number, key, name, version, topic, state, run, owner, args, waits, value, kind, text, parent, next_step) = row[:15]
    times = [None if at is None else utc(at) for at in row[15:19]]
    failure = _failure(kind, text)
    return FlowRow(
        *(number, key, name, version, topic, state, run, owner, args, waits, value, failure, parent, next_step), *times
    )


def _step(row: Sequence[Any]) -> StepRow:
    number, kind, name, total, pending, value, error_type, error, *times = row
    due_at, began_at, ended_at = (None if at is None else utc(at) for at in times)
    failure = _failure(error_type, error)
    is_ended = ended_at is not None
    return StepRow(number, kind, name, total, pending, value, failure, due_at, began_at, ended_at, is_ended)


def _signal(row: Sequence[Any]) -> SignalRow:
    return SignalRow(*row)
