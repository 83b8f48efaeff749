"""Flows in memory, for tests: the rules of :mod:`emsworker.flows.store.flow_store` without a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from emsworker.extending.apps import Ems, MemoryBroker
from emsworker.extending.errors import WrongArguments
from emsworker.extending.processes import ThreadPool
from emsworker.extending.publishing import OutboxTransaction
from emsworker.extending.values import NewMessage, ResultRow, Topic, new_uid
from emsworker.flows.errors import FlowLost
from emsworker.flows.places import CallPlace, end_of, read_place
from emsworker.flows.retrying import AGAIN, ENDED_WELL, GONE, LOST, RUNS, UNDONE_FLOW, can_call_again, was_undone
from emsworker.flows.rows import (
    CANCELLED,
    DONE,
    ENDED,
    FAILED,
    READY,
    RUNNING,
    UNDONE,
    WAITING,
    CallEnd,
    FlowRow,
    Loaded,
    NewFlow,
    RunChange,
    SignalRow,
    StepRow,
    StoredError,
    check_room,
    first_forgotten,
    next_number,
)


@dataclass
class KeptFlow:
    """A flow with all that belongs to it."""

    row: FlowRow
    headers: bytes
    steps: dict[int, StepRow] = field(default_factory=dict)
    ends: dict[tuple[int, int], CallEnd] = field(default_factory=dict)
    signals: list[SignalRow] = field(default_factory=list)
    taken: list[tuple[int, SignalRow]] = field(default_factory=list)
    values: list[tuple[int, bytes, datetime]] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    level: int = 0


class MemoryFlowStore:
    """The flows of a broker in memory; see :class:`emsworker.flows.store.flow_store.MysqlFlowStore`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._flows: dict[int, KeptFlow] = {}
        self._keys: dict[str, int] = {}
        self._bursts: dict[tuple[str, str], int] = {}
        self._numbers = count(1)
        self._signals = count(1)

    stream_id = "0"

    def topic(self, app: Ems, name: str) -> Topic:
        """Return a topic."""
        return self._broker.topic(name)

    def now(self) -> datetime:
        """Return the time by which the flows wait, in UTC."""
        return self._broker.now()

    def transaction(self, app: Ems) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction of the app."""
        return app.transaction()

    def start(self, transaction: Any, new: NewFlow, topic: Topic, owner: bytes) -> bool:
        """Store a flow and send the message that begins it, unless one with its id is there; return if it is new."""
        number = self._keys.get(new.key)
        if number is not None:
            new.check_same(self._flows[number].row.name, self._flows[number].row.args)
            return False
        self._undo_with(transaction, lambda: self._forget(new.key))
        kept = self._store(new, owner)
        self._send_wake(kept, transaction)
        if new.timeout_s is not None:
            self._send_wake(kept, transaction, new.timeout_s)
        return True

    def _store(self, new: NewFlow, owner: bytes) -> KeptFlow:
        number = self._keys[new.key] = next(self._numbers)
        now = self._broker.now()
        row = FlowRow(number, new.key, new.name, new.version, new.topic, READY, 0, owner, new.args, parent=new.parent)
        row.started_at = row.changed_at = now
        row.deadline_at = None if new.timeout_s is None else now + timedelta(seconds=new.timeout_s)
        kept = self._flows[number] = KeptFlow(row, new.headers, attributes=dict(new.attributes), level=new.level)
        return kept

    def debounce(self, transaction: Any, new: NewFlow, topic_id: int, owner: bytes) -> str:
        """Store the flow of a burst of starts, or change the one that is there; return its id."""
        assert new.burst is not None
        assert new.debounce_s is not None
        now, place = self._broker.now(), (new.name, new.burst)
        begins_at = now + timedelta(seconds=new.debounce_s)
        if (number := self._bursts.get(place)) is not None:
            row = self._flows[number].row
            before = row.args, row.version, row.begins_at
            self._undo_with(transaction, lambda: self._move(row, *before))
            assert row.started_at is not None
            assert row.begins_at is not None
            latest_at = row.started_at + timedelta(seconds=new.longest_s)
            self._move(row, new.args, new.version, max(row.begins_at, min(begins_at, latest_at)))
            return row.key
        self._undo_with(transaction, lambda: self._forget(new.key))
        kept = self._store(new, owner)
        row = kept.row
        row.state, row.waits, row.begins_at = WAITING, "debounce", begins_at
        self._bursts[place] = row.id
        self._send_wake(kept, transaction, new.debounce_s)
        if new.timeout_s is not None:
            self._send_wake(kept, transaction, new.timeout_s)
        return row.key

    def _move(self, row: FlowRow, args: bytes, version: int, begins_at: datetime | None) -> None:
        row.args, row.version, row.begins_at = args, version, begins_at

    def signal(self, transaction: Any, key: str, name: str, value: bytes) -> str | None:
        """Give a flow a signal, and wake it if it waits; return its state."""
        number = self._keys.get(key)
        if number is None:
            return None
        kept = self._flows[number]
        state = kept.row.state
        if state not in ENDED:
            sizes = [len(one.value or b"") for one in kept.signals]
            check_room(key, name, len(value), len(sizes), sum(sizes))
            signal = SignalRow(next(self._signals), name, value)
            self._undo_with(transaction, lambda: kept.signals.remove(signal))
            kept.signals.append(signal)
            self.wake(transaction, number)
        return state

    def _undo_with(self, transaction: Any, undo: Callable[[], object]) -> None:
        """Have something undone if its transaction is rolled back."""
        if transaction is not None:
            self._broker.transactions.held_by(transaction).undo.append(undo)

    def _forget(self, key: str) -> None:
        row = self._flows.pop(self._keys.pop(key)).row
        self._bursts.pop((row.name, row.burst), None)

    def wake(self, transaction: Any, number: int) -> None:
        """Send a message that runs a flow, if it waits."""
        kept = self._flows[number]
        if kept.row.state == WAITING and kept.row.begins_at is None:
            kept.row.state, kept.row.waits, kept.row.owner = READY, None, new_uid()
            self._send_wake(kept)

    def _send_wake(self, kept: KeptFlow, transaction: Any = None, delay_s: float | None = None) -> None:
        uid = kept.row.owner if delay_s is None else new_uid()
        body = f"[[{kept.row.id}],{{}}]".encode()
        message = NewMessage(uid, None, None, kept.headers, body, None, is_call=True, has_own_uid=True)
        message.delay_s, message.level = delay_s, kept.level
        self._broker.send(kept.row.topic, [message], transaction)

    def begin(self, number: int, owner: bytes, after: int | None = None) -> Loaded | None:
        """Begin a run of a flow; ``None`` if there is nothing to run."""
        kept = self._flows[number]
        row = kept.row
        if after not in (None, row.run):
            return None
        if row.begins_at is not None and not self._end_burst(kept):
            return None
        if row.state not in (READY, WAITING) and not (row.state == RUNNING and row.owner == owner):
            if row.state == FAILED and row.owner == owner:
                raise row.rejection()
            return None
        row.state, row.owner, row.waits, row.run = RUNNING, owner, None, row.run + 1
        steps = [replace(one) for _, one in sorted(kept.steps.items())]
        return Loaded(replace(row), steps, list(kept.signals), self._broker.now())

    def _end_burst(self, kept: KeptFlow) -> bool:
        """End the burst of starts of a flow; false if it is not over yet: it is run again later."""
        row, now = kept.row, self._broker.now()
        assert row.begins_at is not None
        if row.begins_at > now:
            self._send_wake(kept, None, (row.begins_at - now).total_seconds())
            return False
        del self._bursts[row.name, row.burst]
        row.begins_at = None
        return True

    async def abegin(self, number: int, owner: bytes, after: int | None, pool: ThreadPool) -> Loaded | None:
        """Begin a run for a coroutine, at once."""
        return self.begin(number, owner, after)

    def checkpoint(self, flow: FlowRow, step: StepRow) -> None:
        """Record a step that has ended."""
        self.write(flow, RunChange(added=[step]))

    async def acheckpoint(self, flow: FlowRow, step: StepRow, pool: ThreadPool) -> None:
        """Record a step for a coroutine, at once."""
        self.checkpoint(flow, step)

    async def awrite(self, flow: FlowRow, change: RunChange, pool: ThreadPool) -> None:
        """Write for a coroutine what its run has done, at once."""
        self.write(flow, change)

    def write(self, flow: FlowRow, change: RunChange) -> bool:
        """Write what a run has done; false if it was to wait for what is there already."""
        kept = self._flows[flow.id]
        row = kept.row
        if row.run != flow.run or row.state != RUNNING:
            raise FlowLost(f"flow {flow.key!r} is run by another message by now, or has ended")
        if change.state == WAITING and self._is_ready(kept, change):
            return False
        for step in (*change.added, *change.ended):
            kept.steps[step.number] = replace(step)
            if step in change.added:
                kept.steps[step.number].pending = step.total
        taken = dict(change.taken)
        kept.taken += [(taken[one.id], one) for one in kept.signals if one.id in taken]
        kept.signals = [one for one in kept.signals if one.id not in taken]
        kept.values += [(number, value, self._broker.now()) for number, value in change.emitted]
        if change.wake_at is not None:
            self._send_wake(kept, None, (change.wake_at - self._broker.now()).total_seconds())
        if change.state is not None:
            row.state, row.waits, row.value = change.state, change.waits, change.value
            row.failure, row.undone = change.failure or row.failure, change.undone
            row.ended_at = self._broker.now() if change.state in ENDED else None
        if change.state in ENDED:
            self._tell_parent(row, CallEnd(0, change.value, row.failure))
        return True

    def _is_ready(self, kept: KeptFlow, change: RunChange) -> bool:
        """Return whether there is what a flow is to wait for: a call, a signal, a time that has come."""
        steps, signals = change.unless
        dues = [kept.row.deadline_at, *(one.due_at for one in kept.steps.values() if not one.is_ended)]
        since, now = change.since, self._broker.now()
        return (
            any(kept.steps[one].pending == 0 for one in steps)
            or any(one.name in signals for one in kept.signals)
            or (since is not None and any(due_at is not None and since < due_at <= now for due_at in dues))
        )

    def write_in(self, transaction: Any, flow: FlowRow, change: RunChange) -> None:
        """Write what a run has done, in a transaction that is open."""
        self.write(flow, change)

    def _tell_parent(self, row: FlowRow, end: CallEnd) -> None:
        if row.parent is not None:
            parent, step, number = map(int, row.parent.split("."))
            self.end(parent, step, replace(end, number=number))

    def end(self, number: int, step: int, end: CallEnd) -> None:
        """Record the end of a call, and wake the flow if it was the last one that a step has waited for."""
        kept = self._flows.get(number)
        if kept is None or step not in kept.steps or (step, end.number) in kept.ends:
            return
        kept.ends[step, end.number] = end
        kept.steps[step].pending -= 1
        if not kept.steps[step].pending:
            self.wake(None, number)

    def signal_value(self, flow: FlowRow, signal: SignalRow) -> bytes:
        """Return the value of a signal."""
        assert signal.value is not None, "all are loaded"
        return signal.value

    def ends_of(self, flow: FlowRow, step: StepRow) -> list[CallEnd]:
        """Return the ends of the calls of a step."""
        ends = self._flows[flow.id].ends
        return [end for (number, _), end in sorted(ends.items(), key=lambda one: one[0]) if number == step.number]

    def find(self, key: str) -> FlowRow | None:
        """Return a flow by its id."""
        number = self._keys.get(key)
        return None if number is None else replace(self._flows[number].row)

    async def afind(self, key: str, _: object) -> FlowRow | None:
        """Do the same for a coroutine."""
        return self.find(key)

    def steps_of(self, flow: FlowRow) -> list[StepRow]:
        """Return the steps of a flow."""
        return [replace(one) for _, one in sorted(self._flows[flow.id].steps.items())]

    def values_of(self, flow: FlowRow, after: int, limit: int) -> list[tuple[int, bytes, datetime]]:
        """Return what a flow has emitted after a number."""
        return [one for one in self._flows[flow.id].values if one[0] > after][:limit]

    def cancel(self, flow: FlowRow) -> bool:
        """Cancel a flow and those that it has called; false if it has ended."""
        row = self._flows[flow.id].row
        if row.state in ENDED:
            return False
        self._cancel(row)
        self._tell_parent(row, CallEnd(0, None, StoredError("FlowCancelled", f"flow {flow.key!r} was cancelled")))
        return True

    def _cancel(self, row: FlowRow) -> None:
        """Cancel a flow and those below it, whose calls stay open: a retry makes them again."""
        if row.begins_at is not None:
            del self._bursts[row.name, row.burst]
        row.begins_at = None
        row.state, row.waits, row.run, row.ended_at = CANCELLED, None, row.run + 1, self._broker.now()
        for kept in self._flows.values():
            if (kept.row.parent or "").startswith(f"{row.id}.") and kept.row.state not in ENDED:
                self._cancel(kept.row)

    def retry(self, flow: FlowRow, step: int | None = None) -> bool:
        """Run a flow again that has failed or was cancelled; see :meth:`MysqlFlowStore.retry`."""
        number = flow.id
        for parent in self._failed_above(flow):
            if step is not None:
                raise WrongArguments(f"another flow has called flow {flow.key!r}, and has failed; run that again")
            number = parent
        return self._reopen(self._flows[number], step)

    def _failed_above(self, flow: FlowRow) -> Iterator[int]:
        row = flow
        while row.parent is not None:
            kept = self._flows.get(int(row.parent.split(".")[0]))
            if kept is None or kept.row.state != FAILED:
                return
            row = kept.row
            yield row.id

    def _reopen(self, kept: KeptFlow, wanted: int | None = None) -> bool:
        if kept.row.state not in (FAILED, CANCELLED):
            return False
        steps = list(kept.steps.values())
        failed = max((number for (number, _), end in kept.ends.items() if end.failure is not None), default=None)
        first = first_forgotten(steps, kept.row.state, failed, wanted)
        if first is None:
            return False
        calls_failed = kept.row.state == FAILED and first == failed
        if wanted is None and calls_failed and self._call_again(kept, kept.steps[first]):
            return True
        kept.steps = {number: one for number, one in kept.steps.items() if number < first}
        kept.ends = {place: one for place, one in kept.ends.items() if place[0] < first}
        kept.signals += [signal for number, signal in kept.taken if number >= first]
        kept.taken = [one for one in kept.taken if one[0] < first]
        self._set(kept, READY, steps, next_number(steps))
        self._send_wake(kept)
        return True

    def _set(self, kept: KeptFlow, state: str, steps: Sequence[StepRow], next_step: int = 0) -> None:
        row = kept.row
        kept.row = replace(
            row,
            state=state,
            owner=new_uid(),
            failure=row.failure if any(one.kind == UNDONE for one in steps) else None,
            ended_at=None,
            deadline_at=None,
            run=row.run + 1,
            next_step=max(row.next_step, next_step),
        )

    def _call_again(self, kept: KeptFlow, row: StepRow) -> bool:
        """Run the failed calls of a step again; false if the step is to be forgotten instead."""
        ends = {number: end for (step, number), end in kept.ends.items() if step == row.number and end.failure}
        calls = {one.row.parent: one for one in self._flows.values()}
        children = {number: calls.get(f"{kept.row.id}.{row.number}.{number}") for number in ends}
        uids = {number: CallPlace(self.stream_id, kept.row.id, row.number, number).uid for number in ends}
        found = {
            number: self._look_at_task(uids[number], ends[number]) if child is None else _look_at_flow(child)
            for number, child in children.items()
        }
        if not can_call_again(kept.row.key, row, found):
            return False
        row.pending, row.ended_at = len(found), None
        self._set(kept, WAITING, list(kept.steps.values()))
        kept.row.waits = f"{row.kind} {row.name}"
        for number, state in found.items():
            del kept.ends[row.number, number]
            child = children[number]
            if child is None:
                self._broker.requeue(uids[number])
            elif state == ENDED_WELL:
                self.end(kept.row.id, row.number, CallEnd(number, child.row.value, None))
            else:
                self._reopen(child)
        return True

    def _look_at_task(self, uid: bytes, end: CallEnd) -> str:
        if any(kept.new.uid == uid for _, kept, _ in self._broker.dead):
            return AGAIN
        if self._broker.waits(uid):
            return RUNS
        return LOST if end.failure is not None and end.failure.kind == "CallLost" else GONE


def _look_at_flow(kept: KeptFlow) -> str:
    if kept.row.state in (FAILED, CANCELLED):
        return UNDONE_FLOW if was_undone(list(kept.steps.values())) else AGAIN
    return ENDED_WELL if kept.row.state == DONE else RUNS


def follow(broker: MemoryBroker, results: Sequence[ResultRow]) -> None:
    """Record the ends of calls, and wake the flows that have waited for the last one of a step."""
    store = store_of(broker)
    for row in results:
        if (place := read_place(row)) is not None:
            store.end(place.flow, place.step, end_of(row, place.number))


def store_of(broker: MemoryBroker) -> MemoryFlowStore:
    """Return the flows of a broker, which live as long as it."""
    store: MemoryFlowStore | None = broker.kept_of_extensions.get("flows")
    if store is None:
        store = broker.kept_of_extensions["flows"] = MemoryFlowStore(broker)
    return store
