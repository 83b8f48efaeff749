"""Flows in the database of their stream.

Every write of a run begins with its fence: it takes effect only while the run is the flow's present one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any

from emsworker.extending.apps import Ems, MysqlBroker
from emsworker.extending.database import (
    Database,
    Session,
    Sql,
    Statements,
    fill,
    foreign,
    identifier,
    insertion,
    literals,
    server_now,
    stream_id,
)
from emsworker.extending.errors import AccessDenied, AssertionBroken, Duplicate, StatementRefused, WrongArguments
from emsworker.extending.processes import ThreadPool, forks
from emsworker.extending.publishing import OutboxTransaction, Transaction
from emsworker.extending.stream import cancel, kept_topic_id_text
from emsworker.extending.values import Topic, new_uid, partition_number, partition_of, utc
from emsworker.flows.errors import FlowLost
from emsworker.flows.places import CallPlace
from emsworker.flows.rows import (
    ENDED,
    FAILED,
    MOST_SIGNALS,
    READY,
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
)
from emsworker.flows.store.events import send_event, send_started
from emsworker.flows.store.reopening import Reopening
from emsworker.flows.store.shared_commits import (
    LOADED_SIGNALS,
    Beginning,
    BegunRun,
    Checkpoint,
    DirectStart,
    FlowRead,
    SharedCommits,
)
from emsworker.flows.store.table_rows import error_columns, step_of, stored_error
from emsworker.flows.store.waking import WAKE, send_wake

_SQL = Statements(__name__)
_ENDS_A_STATEMENT, _BYTES_A_STATEMENT = 500, 1 << 20
_NO_STEP, _NO_SIGNAL = (0,), ("",)


class _Ready(Exception):
    """The flow need not wait: there is what it was to wait for."""


class _Ended(Exception):
    """The flow has ended, so that it gets no signal; its state."""


class _Written(Exception):
    """An earlier try was committed, and its answer lost: only the run itself ends or waits without a new run."""


class MysqlFlowStore:
    """The flows of one stream.

    Args:
        database: the stream's.
        stream: moves what is committed into the stream at once; without it the beat does.
    """

    def __init__(self, database: Database, stream: MysqlBroker | None = None) -> None:
        self._database, self._stream = database, stream
        self._outbox = None if stream is None else stream.outbox
        self._name = identifier(database.name)
        self._shared = SharedCommits(database)

    @forks.lazy
    def stream_id(self) -> str:
        """Identity of the stream that keeps the flows."""
        return self._database.call(stream_id)

    def topic(self, app: Ems, name: str) -> Topic:
        """Return a topic as the stream has it, which may be kept by another server."""
        return app.broker.topic_on(self._of_app, name)

    def now(self) -> datetime:
        """Return the time of the server, in UTC."""
        return self._database.call(server_now)

    def transaction(self, app: Ems) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction in the stream's database."""
        return self._of_app.transaction(app)

    @property
    def _of_app(self) -> MysqlBroker:
        assert self._stream is not None, "who operates flows does not run them"
        return self._stream

    # -- in a transaction of anybody's ---------------------------------------------------------------------------------

    def start(self, transaction: Any, new: NewFlow, topic: Topic, owner: bytes) -> bool:
        """Store a flow and the message that begins it, unless one with its id is there; return whether it is new.

        Args:
            transaction: what :func:`emsworker.store.engine.foreign.run` takes; ``None`` for one of its own.
            owner: uid of that message.

        Raises:
            FlowExists: the flow with this id is of another function, or has other arguments.
            AssertionBroken: the topic was deleted, or has moved to another server; nothing was stored.
        """
        filled = self._filled(new, topic.id, owner)
        if transaction is None and topic.server is None and self._start_directly(new, topic, owner, filled):
            return True
        *statements, last = self._starting(new, topic.id, owner, filled)
        ((its_owner, name, args),) = self._run_all(transaction, statements, last)
        if its_owner != owner:
            new.check_same(name, args)
            return False
        if self._outbox is not None:
            self._outbox.move_after(transaction)
        return True

    def _start_directly(self, new: NewFlow, topic: Topic, owner: bytes, filled: Mapping[str, Sql]) -> bool:
        """Start a flow and send its first message to the stream in one commit; false if nothing was started."""
        partition = partition_number(new.level, partition_of(owner, topic.partitions))
        storing = [fill(_insert(new), filled), *self._describing(new, owner, filled)]
        sending = fill(_SQL.send_first_directly, {**filled, **literals({"partition": partition})})
        try:
            self._shared.starts.settle(DirectStart((topic.id, partition, new.key), storing, sending, len(new.args)))
        except (Duplicate, AssertionBroken, StatementRefused):
            # The id or the offset is taken, an earlier try was committed, or the partition takes no message now: the
            # other way can tell which, or leaves the message in the outbox.
            return False
        if self._outbox is not None:
            self._outbox.notify([topic.id])
        return True

    def debounce(self, transaction: Any, new: NewFlow, topic_id: int, owner: bytes) -> str:
        """Store the flow of a burst of starts, or give the one that is there new arguments and a later beginning.

        Returns:
            its id, that of the new one if there was none.
        """
        *statements, last = self._debouncing(new, topic_id, owner)
        ((key,),) = self._run_all(transaction, statements, last)
        return str(key)

    def _run_all(self, transaction: Any, statements: Sequence[Sql], last: Sql) -> Sequence[Sequence[Any]]:
        """Run statements in a transaction, and return the rows of the last one."""
        if transaction is None:
            return self._database.call(partial(_run_together, statements, last))
        for statement in statements:
            foreign.run(transaction, statement)
        return foreign.run(transaction, last)

    def _starting(self, new: NewFlow, topic_id: int, owner: bytes, filled: Mapping[str, Sql]) -> Iterable[Sql]:
        """Yield the statements that start a flow; the last one reads which one has its id."""
        if new.parent is None:  # a flow that another one calls is kept with that one
            yield self._hold_topic(topic_id)
        yield fill(_insert(new), filled)
        yield from self._accompanying(new, owner, filled)
        yield fill(_SQL.find_started, filled)

    def _debouncing(self, new: NewFlow, topic_id: int, owner: bytes) -> Iterable[Sql]:
        """Yield the statements of one start of a burst; the last one reads the id of its flow."""
        filled = self._filled(new, topic_id, owner)
        yield self._hold_topic(topic_id)
        yield fill(_SQL.lock_burst, filled)
        yield fill(_SQL.insert_waiting, filled)
        yield from self._accompanying(new, owner, filled)
        yield fill(_SQL.move_start, filled)
        yield fill(_SQL.find_burst, filled)

    def _hold_topic(self, topic_id: int) -> Sql:
        """Return a statement that fails if the topic has left the server, and keeps it there until the commit.

        So all flows that were started before a move are seen by who starts one after it.
        """
        return fill(_SQL.hold_topic, {"topic_id": kept_topic_id_text(self._database.name, topic_id)})

    def _accompanying(self, new: NewFlow, owner: bytes, filled: Mapping[str, Sql]) -> Iterable[Sql]:
        """Yield what belongs to a flow that was stored just before: its messages, its attributes and its event."""
        yield fill(_SQL.send_first, filled)
        yield from self._describing(new, owner, filled)

    def _describing(self, new: NewFlow, owner: bytes, filled: Mapping[str, Sql]) -> Iterable[Sql]:
        if new.timeout_s is not None:
            yield fill(_SQL.send_deadline, filled)
        for name, value in new.attributes.items():
            yield fill(_SQL.insert_attribute, {**filled, **literals({"name": name, "value": value})})
        yield send_started(self._name, new.key, owner)

    def _filled(self, new: NewFlow, topic_id: int, owner: bytes) -> dict[str, Sql]:
        values = {
            "key": new.key,
            "name": new.name,
            "version": new.version,
            "topic_id": topic_id,
            "owner": owner,
            "level": new.level,
            "headers": new.headers,
            "args": new.args,
            "parent": new.parent,
            "timeout_s": new.timeout_s,
            "uid": new_uid(),
            "burst": new.burst,
            "debounce_s": new.debounce_s,
            "longest_s": new.longest_s,
        }
        return {**literals(values), "database": self._name}

    def signal(self, transaction: Any, key: str, name: str, value: bytes) -> str | None:
        """Give a flow a signal, and wake it if it waits.

        Args:
            transaction: as of :meth:`start`; one of its own is tried again, and gives the signal once.

        Returns:
            its state; ``None`` if there is no such flow. One that has ended gets no signal.
        """
        signal = {"key": key, "name": name, "value": value, "uid": new_uid(), "owner": new_uid()}
        if transaction is None:
            state = self._database.call(partial(_give_signal, signal))
        else:
            state = _give(partial(self._run, transaction), signal)
        if state not in (None, *ENDED) and self._outbox is not None:
            self._outbox.move_after(transaction)
        return state

    def _run(self, transaction: Any, statement: Sql, args: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return foreign.run(transaction, fill(statement, {**literals(args), "database": self._name}))

    # -- a run ---------------------------------------------------------------------------------------------------------

    def begin(self, number: int, owner: bytes, after: int | None = None) -> Loaded | None:
        """Begin a run of a flow; ``None`` if there is nothing to run: it has ended, or another message runs it.

        Args:
            owner: uid of the message that runs it.
            after: the run that goes on with this one. If another has begun since, it was overtaken.

        Raises:
            Reject: the flow has failed, and its message is run again.
        """
        beginning = Beginning(number, owner, after)
        begin = self._shared.begins.settle if after is None else self._shared.begin_alone
        return self._loaded(beginning, begin(beginning))

    async def abegin(self, number: int, owner: bytes, after: int | None, pool: ThreadPool) -> Loaded | None:
        """Begin a run for a coroutine; see :meth:`begin`."""
        if after is not None:
            return await pool.run(lambda: self.begin(number, owner, after))
        beginning = Beginning(number, owner)
        begun = await asyncio.wrap_future(self._shared.begins.submit(beginning, pool.start))
        return begun.loaded or await pool.run(lambda: self._loaded(beginning, begun))

    def _loaded(self, beginning: Beginning, begun: BegunRun) -> Loaded | None:
        flow = begun.flow
        if begun.loaded is not None or flow is None:
            return begun.loaded
        if beginning.after is None and flow.state == FAILED and flow.owner == beginning.owner:
            raise flow.rejection()  # a crash came before it was a dead letter, or somebody has requeued that
        if flow.begins_at is None:
            return None
        is_over = self._database.call(lambda session: session.transaction(partial(self._end_burst, flow)))
        return self.begin(beginning.flow_id, beginning.owner, beginning.after) if is_over else None

    def _end_burst(self, flow: FlowRow, session: Session) -> bool:
        """End the burst of starts of a flow, which can begin then; false if it is not over yet: it is run again later.

        It waits for the commit of a start that has come, and locks in the same order.
        """
        burst = {"flow_id": flow.id, "name": flow.name, "burst": flow.burst, "key": flow.key}
        session.rows(_SQL.lock_burst_of_flow, burst)
        if session.change(_SQL.end_burst, burst):
            session.execute(_SQL.delete_burst, burst)
            return True
        session.execute(fill(_SQL.send_moved, {**literals({**burst, "uid": new_uid()}), "database": self._name}))
        return False

    def checkpoint(self, flow: FlowRow, step: StepRow) -> None:
        """Record a step that has ended.

        Raises:
            FlowLost: the run is not the present one.
        """
        if not self._shared.checkpoints.settle(Checkpoint(flow, step)):
            raise _lost(flow)

    async def acheckpoint(self, flow: FlowRow, step: StepRow, pool: ThreadPool) -> None:
        """Do the same for a coroutine."""
        if not await asyncio.wrap_future(self._shared.checkpoints.submit(Checkpoint(flow, step), pool.start)):
            raise _lost(flow)

    async def awrite(self, flow: FlowRow, change: RunChange, pool: ThreadPool) -> None:
        """Write what a run has done, for a coroutine; see :meth:`write`."""
        end = Checkpoint.of_end(flow, change)
        if end is None or not await asyncio.wrap_future(self._shared.checkpoints.submit(end, pool.start)):
            await pool.run(lambda: self.write(flow, change))

    def write(self, flow: FlowRow, change: RunChange) -> bool:
        """Write what a run has done, in a transaction of its own; false if it was to wait for what is there already.

        Raises:
            FlowLost: the run is not the present one.
        """
        if change.state == WAITING and (change.unless[0] or change.unless[1] or change.since is not None):
            return self._wait(flow, change)
        end = Checkpoint.of_end(flow, change)
        if end is not None and self._shared.checkpoints.settle(end):
            return True

        def write(session: Session) -> None:
            packet = session.packet()
            packet.begin()
            packet.add(_SQL.fence, {"flow_id": flow.id, "run": flow.run})
            packet.assert_one_matched()
            for statement in self._statements(flow, change):
                packet.add(statement)
            packet.commit()
            packet.send()

        try:
            self._database.call(lambda session: session.retry_on_conflict(lambda: write(session)))
        except AssertionBroken:
            if change.state is not None and self._is_present(flow):
                return True
            raise _lost(flow) from None
        except Duplicate:  # an earlier try was committed, and its answer lost: the fence held
            return True
        return True

    def _is_present(self, flow: FlowRow) -> bool:
        """Return whether no other run has begun: then an earlier try was committed, and its answer lost."""
        return self._database.call(lambda session: session.rows(_SQL.get_run, {"flow_id": flow.id})) == ((flow.run,),)

    def _wait(self, flow: FlowRow, change: RunChange) -> bool:
        """Let a flow wait, unless what it is to wait for is there."""

        def wait(session: Session) -> None:
            if not session.change(_SQL.fence, {"flow_id": flow.id, "run": flow.run}):
                if session.rows(_SQL.get_run, {"flow_id": flow.id}) == ((flow.run,),):
                    raise _Written
                raise _lost(flow)
            if session.rows(*_count_ready(flow, change))[0][0]:
                raise _Ready
            for statement in self._statements(flow, change):
                session.execute(statement)

        try:
            self._database.call(lambda session: session.transaction(wait))
        except _Ready:
            return False
        except (Duplicate, _Written):
            return True
        return True

    def write_in(self, transaction: Transaction, flow: FlowRow, change: RunChange) -> None:
        """Write what a run has done, in a transaction that is open.

        Raises:
            FlowLost: the run is not the present one; the transaction must be rolled back.
        """
        fence = fill(_SQL.fence, literals({"flow_id": flow.id, "run": flow.run}))
        if not transaction.execute(fence).rowcount:
            raise _lost(flow)
        for statement in self._statements(flow, change):
            transaction.execute(statement)

    def _statements(self, flow: FlowRow, change: RunChange) -> Iterable[Sql]:
        """Yield the statements of a change, without its fence."""
        flow_id = literals({"flow_id": flow.id})
        if change.added:
            rows = [fill(_SQL.step_row, {**flow_id, **literals({**_values(one)})}) for one in change.added]
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
        if change.wake_at is not None:
            later = literals({"due_at": change.wake_at.replace(tzinfo=None), "uid": new_uid()})
            yield fill(_SQL.send_later, {**flow_id, **later, "database": self._name})
        if change.state is not None:
            args: dict[str, Any] = {
                "state": change.state,
                "waits": (change.waits or "")[:190] or None,
                "value": change.value,
                "undone": change.undone,
            }
            args |= {"is_ended": change.state in ENDED, **error_columns(change.failure)}
            yield fill(_SQL.set_state, {**flow_id, **literals(args)})
            if flow.has_events:
                yield send_event(self._name, flow.id)
        if change.state in ENDED:
            yield from self._tell_parent(flow.parent, CallEnd(0, change.value, change.failure or flow.failure))

    def _tell_parent(self, place: str | None, end: CallEnd) -> Iterable[Sql]:
        """Yield what tells the flow that has called one of its end."""
        if place is not None:
            parent, step, number = map(int, place.split("."))
            yield from end_statements(self._name, parent, step, [CallEnd(number, end.value, end.failure)])

    def end(self, flow: int, step: int, end: CallEnd) -> None:
        """Record the end of a call, once, and wake the flow if it was the last one that a step has waited for."""

        def write(session: Session) -> None:
            for statement in end_statements(self._name, flow, step, [end]):
                session.execute(statement)

        self._database.call(lambda session: session.transaction(write))
        if self._outbox is not None:
            self._outbox.move_after()

    def signal_value(self, flow: FlowRow, signal: SignalRow) -> bytes:
        """Return the value of a signal that was too large to be loaded with the flow."""
        args = {"flow_id": flow.id, "id": signal.id}
        ((value,),) = self._database.call(lambda session: session.rows(_SQL.get_signal_value, args))
        return bytes(value)

    def ends_of(self, flow: FlowRow, step: StepRow) -> list[CallEnd]:
        """Return the ends of the calls of a step."""
        args = {"flow_id": flow.id, "step": step.number}
        rows = self._database.call(lambda session: session.rows(_SQL.list_ends, args))
        return [CallEnd(number, value, stored_error(kind, text)) for number, value, kind, text in rows]

    # -- looking, and changing from outside ----------------------------------------------------------------------------

    def find(self, key: str) -> FlowRow | None:
        """Return a flow by its id."""
        return self._shared.reads.settle(FlowRead(key))

    async def afind(self, key: str, pool: ThreadPool) -> FlowRow | None:
        """Do the same for a coroutine: thousands that wait look with one statement."""
        return await asyncio.wrap_future(self._shared.reads.submit(FlowRead(key), pool.start))

    def steps_of(self, flow: FlowRow) -> list[StepRow]:
        """Return the steps of a flow."""
        return self._database.call(lambda session: _steps(session, flow.id))

    def values_of(self, flow: FlowRow, after: int, limit: int) -> list[tuple[int, bytes, datetime]]:
        """Return what a flow has emitted after a number."""
        args = {"flow_id": flow.id, "after": after, "limit": limit}
        rows = self._database.call(lambda session: session.rows(_SQL.list_values, args))
        return [(number, value, utc(at)) for number, value, at in rows]

    def cancel(self, flow: FlowRow) -> bool:
        """Cancel a flow, those that it has called, and their calls; false if it has ended.

        Runs and calls that are under way are interrupted, as :meth:`Ems.cancel` does it.
        """
        numbers = self._database.call(lambda session: session.transaction(lambda session: self._cancel(session, flow)))
        for number in numbers:
            self._database.call(partial(_cancel_runs, self.stream_id, number))
        return bool(numbers)

    def _cancel(self, session: Session, flow: FlowRow) -> list[int]:
        """Cancel a flow and those below it; return their numbers."""
        if flow.begins_at is not None:
            session.execute(_SQL.delete_burst, {"name": flow.name, "burst": flow.burst, "key": flow.key})
        if not session.change(_SQL.cancel, {"flow_id": flow.id}):
            return []
        for statement in self._tell_parent(flow.parent, _cancelled(flow.key)):
            session.execute(statement)
        if flow.has_events:
            session.execute(send_event(self._name, flow.id))
        cancelled = [flow.id]
        for number in cancelled:  # it grows meanwhile
            children = session.rows(_SQL.list_children, {"prefix": f"{number}.%"})
            below = [child for (child,) in children if session.change(_SQL.cancel, {"flow_id": child})]
            for child in below if flow.has_events else ():
                session.execute(send_event(self._name, child))
            cancelled += below
        return cancelled

    def retry(self, flow: FlowRow, step: int | None = None) -> bool:
        """Run a flow again that has failed or was cancelled; false if it is no such flow now, or its steps were undone.

        One whose steps were undone is run again only from a given step: its checkpoints no longer tell what holds. One
        that another flow has called, which has failed with it, is run again as a part of that.

        Args:
            step: number of the first step that is forgotten; by default none is if the flow ended with the failure of
                calls that can be run again.

        Raises:
            WrongArguments: it is not known what has become of a call.
        """
        reopened: list[Reopening] = []

        def retry(session: Session) -> bool:
            flows = Reopening(session, self.stream_id, self._name, _steps, self._end_statements)
            number = flow.id
            for parent in self._failed_above(session, flow):
                if step is not None:
                    raise WrongArguments(f"another flow has called flow {flow.key!r}, and has failed; run that again")
                number = parent
            reopened[:] = [flows]
            return flows.reopen(number, step)

        if not self._database.call(lambda session: session.transaction(retry)):
            return False
        self._database.call(lambda _: reopened[0].finish())
        return True

    def _failed_above(self, session: Session, flow: FlowRow) -> Iterator[int]:
        """Yield the flows above a flow that have failed, from the one that has called it upwards."""
        parent = flow.parent
        while parent is not None:
            rows = session.rows(_SQL.get_parent, {"flow_id": int(parent.split(".")[0])})
            if not rows or rows[0][0] != FAILED:
                return
            ((_, number, parent),) = rows
            yield number

    def _end_statements(self, flow: int, step: int, ends: Sequence[CallEnd]) -> Iterable[Sql]:
        return end_statements(self._name, flow, step, ends)


def _insert(new: NewFlow) -> Sql:
    return _SQL.insert_flow if new.parent is None else _SQL.insert_child


def _steps(session: Session, flow: int) -> list[StepRow]:
    return [step_of(row) for row in session.rows(_SQL.list_steps, {"flow_id": flow})]


def _cancelled(key: str) -> CallEnd:
    return CallEnd(0, None, StoredError("FlowCancelled", f"flow {key!r} was cancelled"))


def _run_together(statements: Sequence[Sql], last: Sql, session: Session) -> Sequence[Sequence[Any]]:
    """Run statements in a transaction of their own, and return the rows of the last one."""

    def run() -> Sequence[Sequence[Any]]:
        packet = session.packet()
        packet.begin()
        for statement in statements:
            packet.add(statement)
        found = packet.add(last)
        packet.commit()
        return packet.send()[found].rows

    return session.retry_on_conflict(run)


def _give_signal(signal: Mapping[str, Any], session: Session) -> str | None:
    """Give a signal in a transaction of its own; after a lost answer again, but only once."""
    database = identifier(session.database)

    def run(statement: Sql, args: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return session.execute(fill(statement, {**literals(args), "database": database})).rows

    def give(_: Session) -> str | None:
        state = _give(run, signal)
        if state in ENDED:
            ((number, _),) = run(_SQL.find_by_key, signal)
            run(_SQL.insert_signal, {**signal, "flow_id": number})  # a duplicate if an earlier try gave it
            raise _Ended(state)  # rolls it back if not
        return state

    try:
        return session.transaction(give)
    except Duplicate:
        return READY
    except _Ended as ended:
        return str(ended)


def _give(run: Callable[[Sql, Mapping[str, Any]], Sequence[Sequence[Any]]], signal: Mapping[str, Any]) -> str | None:
    """Give a signal in an open transaction, and return the flow's state; see :meth:`MysqlFlowStore.signal`."""
    run(_SQL.lock_flow, signal)
    for number, state in run(_SQL.find_by_key, signal):
        if state not in ENDED:
            ((count, size),) = run(_SQL.measure_signals, {**signal, "flow_id": number, "most": MOST_SIGNALS})
            check_room(signal["key"], signal["name"], len(signal["value"]), count, int(size))
            for statement in (_SQL.insert_signal, _SQL.wake_waiting, WAKE):
                run(statement, {**signal, "flow_id": number})
        return str(state)
    return None


def _cancel_runs(stream: str, flow_id: int, session: Session) -> None:
    """Cancel the run of a flow, and its calls that have not ended, and were not forwarded to another server."""
    ((topic_id, owner),) = session.rows(_SQL.get_runner, {"flow_id": flow_id})
    with contextlib.suppress(AccessDenied):  # without the right to cancel messages the run ends at its next step
        cancel(session, topic_id, owner)
    for step, total, topics in session.rows(_SQL.list_pending_calls, {"flow_id": flow_id}):
        ended = {number for number, *_ in session.rows(_SQL.list_ends, {"flow_id": flow_id, "step": step})}
        for number in range(total):
            uid = CallPlace(stream, flow_id, step, number).uid
            if number not in ended:
                any(cancel(session, int(topic), uid) for topic in topics.split(","))


def _lost(flow: FlowRow) -> FlowLost:
    return FlowLost(f"flow {flow.key!r} is run by another message by now, or has ended")


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
                    **literals(error_columns(end.failure)),
                },
            )
            for end in part
        ]
        yield insertion(_SQL.insert_ends, rows)
        yield fill(_SQL.count_ends, place)
    owner = new_uid()
    yield fill(_SQL.wake_joined, literals({"flow_id": flow_id, "step": step, "owner": owner}))
    yield send_wake(database, flow_id, owner)


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


def _count_ready(flow: FlowRow, change: RunChange) -> tuple[Sql, dict[str, Any]]:
    steps, signals = change.unless
    args: dict[str, Any] = {"steps": list(steps or _NO_STEP), "signals": list(signals or _NO_SIGNAL)}
    args["loaded"] = LOADED_SIGNALS
    return _SQL.count_ready, args | {"flow_id": flow.id, "since": change.since and change.since.replace(tzinfo=None)}


def _values(step: StepRow) -> dict[str, Any]:
    return {
        "step": step.number,
        "kind": step.kind,
        "name": step.name,
        "branch": step.branch,
        "total": step.total,
        "topics": step.topics,
        "took_s": step.took_s,
        "value": step.value,
        "due_at": None if step.due_at is None else step.due_at.replace(tzinfo=None),
        "is_ended": step.is_ended,
        **error_columns(step.failure),
    }
