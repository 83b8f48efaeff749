"""One run of a flow: what it asks for is answered from its history, or done and recorded.

Both faces, the plain one and that of coroutines, stand on it. Its methods block; one is under way at a time.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn

from emsworker import Ignore
from emsworker.extending.apps import ResultType, Signature, Task, full_name, result_type_of
from emsworker.extending.errors import (
    EmsError,
    EncodeError,
    StoreUnavailable,
    TransactionRolledBack,
    WrongArguments,
    text_of,
)
from emsworker.extending.processes import ticks
from emsworker.extending.publishing import OutboxTransaction, Transaction
from emsworker.extending.values import FOLLOW_HEADER, parse_duration, uid_text
from emsworker.flows.branches import present_path
from emsworker.flows.errors import CallFailed, FlowChanged, FlowLost, SignalTimeout, StepFailed
from emsworker.flows.history import FlowHistory
from emsworker.flows.places import CallPlace
from emsworker.flows.port import FlowFunction, FlowStore
from emsworker.flows.rows import (
    CALL,
    EMIT,
    LONGEST_NAME,
    PATCH,
    SLEEP,
    STEP,
    TRANSACTION,
    UNDO,
    WAIT,
    WAITING,
    CallEnd,
    FlowRow,
    Loaded,
    RunChange,
    StepRow,
    StoredError,
    decode_value,
    encode_value,
)
from emsworker.flows.starting import send_alone, start_child

_TRIES = 5
_TOPICS = 4000  # characters of their numbers

log = logging.getLogger(__name__)
_inside: ContextVar[str | None] = ContextVar("ems_inside_step", default=None)


class Suspended(BaseException):
    """The flow waits: its function is left, and called again when what it waits for is there.

    It is no Exception, so that a handler's ``except Exception`` does not catch it.
    """


class RunAgain(BaseException):
    """The flow is run again at once: it need not wait for what came meanwhile, or the store did not answer."""


class RunLost(Suspended):
    """Another run has begun since, or the flow has ended: nothing more of this one is kept, so nothing more is run."""


class FlowRun:
    """One run of a flow.

    Args:
        task: the function of the flow.
        store: where flows are kept.
        loaded: the flow as it was when the run began.
        in_order: see :class:`FlowHistory`.
    """

    def __init__(self, task: FlowFunction, store: FlowStore, loaded: Loaded, *, in_order: bool) -> None:
        self.task, self.app, self.store = task, task.flow_app, store
        self.flow: FlowRow = loaded.flow
        self.now: datetime = loaded.now
        self.history = FlowHistory(loaded.steps, loaded.flow.next_step, in_order=in_order)
        self._signals, self._call_ends = loaded.signals, loaded.call_ends
        self._unwritten = RunChange()
        self.closed = False
        self.left: BaseException | None = None
        self._changed: FlowChanged | None = None

    # -- steps that run here -------------------------------------------------------------------------------------------

    def step(self, name: str, call: Callable[[], Any], kind: ResultType | None = None) -> Any:
        """Return the checkpoint of a step; a new one is run first.

        Args:
            kind: of its value; ``None`` for plain JSON.
        """
        row = self.find(STEP, name)
        if row is not None:
            return outcome_of(row, kind)
        row = self._new(STEP, name)
        with self.inside(name), self.noting(row):
            value = call()
        return self.keep(row, value, kind)

    def keep(self, row: StepRow, value: Any, kind: ResultType | None) -> Any:
        """Record the value of a step that has run, and return it as every later run will get it."""
        row.value = _encoded(value, f"what step {row.name!r} returns", kind)
        if self._is_written:
            with self._answered():
                self.store.checkpoint(self.flow, row)
        else:
            self._write(self._take(added=[row]))
        return outcome_of(row, kind)

    async def akeep(self, row: StepRow, value: Any, kind: ResultType | None) -> Any:
        """Do the same for a coroutine: its checkpoint shares a commit with those of other flows."""
        if not self._is_written:
            return await self.app.pool.run(lambda: self.keep(row, value, kind))
        row.value = _encoded(value, f"what step {row.name!r} returns", kind)
        with self._answered():
            await self.store.acheckpoint(self.flow, row, self.app.pool)
        return outcome_of(row, kind)

    @property
    def _is_written(self) -> bool:
        """True if all that the run has noted is written."""
        return not (self._unwritten.added or self._unwritten.ended or self._unwritten.taken)

    def new_step(self, name: str) -> StepRow:
        """Return the row of a step that is about to run."""
        return self._new(STEP, name)

    @contextmanager
    def noting(self, row: StepRow) -> Iterator[None]:
        """Note how long a step takes, and its failure: that is kept if the flow goes on, with what it does next."""
        began = ticks()
        try:
            yield
            row.took_s = ticks() - began
        except Exception as error:
            row.failure = StoredError(_class_path(error), text_of(error))
            self._unwritten.added.append(row)
            raise

    def transaction(self, name: str, call: Callable[[Transaction], Any], kind: ResultType | None) -> Any:
        """Return the checkpoint of a transaction; a new one is run, and committed with it."""
        row = self.find(TRANSACTION, name)
        if row is not None:
            return outcome_of(row, kind)
        row = self._new(TRANSACTION, name)
        change = self._take(added=[row])

        def write(transaction: OutboxTransaction) -> None:
            value = call(transaction)
            row.value = _encoded(value, f"what transaction {name!r} returns", kind)
            self.store.write_in(transaction, self.flow, change)

        with self.inside(name):
            try:
                self._commit(write)
            except Exception as error:
                change.added.remove(row)
                self._put_back(change)
                row.failure = StoredError(_class_path(error), text_of(error))
                self._unwritten.added.append(row)
                raise
        return outcome_of(row, kind)

    def _commit(self, write: Callable[[OutboxTransaction], None]) -> None:
        own: list[StoreUnavailable] = []

        def attempt() -> None:
            with self.store.transaction(self.app) as transaction:
                try:
                    write(transaction)
                except StoreUnavailable as error:  # of something that the step has called
                    own.append(error)
                    raise

        for tries in range(1, _TRIES + 1):
            try:
                attempt()
                return
            except TransactionRolledBack:
                if tries == _TRIES:
                    raise
            except FlowLost as error:
                self.leave(RunLost(str(error)))
            except StoreUnavailable as error:
                if error in own:
                    raise
                log.warning("flow %r is run again: %s", self.flow.key, error)
                self.leave(RunAgain())  # perhaps it was committed: the history will tell

    def leave(self, left: BaseException) -> NoReturn:
        """Leave the function of the flow; what its ``finally`` and ``except`` ask for then is refused the same way.

        Raises:
            left: always.
        """
        self.left = left
        raise left

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Leave the function if the store keeps nothing more, or does not answer: no ``except`` of it may go on."""
        try:
            yield
        except FlowLost as error:
            self.leave(RunLost(str(error)))
        except StoreUnavailable as error:
            log.warning("flow %r is run again: %s", self.flow.key, error)
            self.leave(RunAgain())

    def _write(self, change: RunChange) -> bool:
        with self._answered():
            return self.store.write(self.flow, change)
        raise AssertionError("unreachable")

    # -- calls ---------------------------------------------------------------------------------------------------------

    def calls(self, kind: str, name: str, signatures: Sequence[Signature[Any]] | None, *, leaves: bool) -> StepRow:
        """Return the step of some calls, which are sent if it is new.

        Args:
            signatures: ``None`` if the step is known to be recorded.
            leaves: a flow that has sent calls waits for them at once; otherwise others of its coroutines may go on.

        Raises:
            Suspended: the calls have not ended.
        """
        row = self.find(kind, name)
        if row is None:
            assert signatures is not None, "what is new has calls"
            row = self._new(kind, name, total=len(signatures), pending=len(signatures), is_ended=not signatures)
            self._send(row, signatures, waits=f"{kind} {name}" if leaves and signatures else None)
            if leaves and signatures:
                self._left_waiting()
        elif signatures is not None and row.total != len(signatures):
            raise FlowChanged(
                f"the flow's code has changed: it asks for {len(signatures)} calls in {kind} {name!r} where "
                f"{row.total} were recorded (step {row.number}); run it with the code and the values that it began with"
            )
        if row.pending and leaves:
            self.suspend(f"{kind} {name}", steps=[row.number])
        return row

    def _send(self, row: StepRow, signatures: Sequence[Signature[Any]], waits: str | None) -> None:
        change = self._take(added=[row], state=None if waits is None else WAITING, waits=waits)

        def write(transaction: OutboxTransaction) -> None:
            self.send_calls(transaction, row, signatures)
            self.store.write_in(transaction, self.flow, change)

        self._commit(write)

    def send_calls(self, transaction: OutboxTransaction, row: StepRow, signatures: Sequence[Signature[Any]]) -> None:
        """Send the calls of a step in a transaction, each with a word about the place to which its end belongs."""
        by_topic: dict[str, list[Any]] = {}
        for number, signature in enumerate(signatures):
            place = CallPlace(self.store.stream_id, self.flow.id, row.number, number)
            if start_child(self.store, transaction, signature, self.flow, place):
                continue
            call = signature.prepare()
            call.headers[FOLLOW_HEADER] = place.word
            call.uid = uid_text(place.uid)
            by_topic.setdefault(call.topic, []).append(call)
        for topic, calls in by_topic.items():
            self.app.publisher.publish(topic, calls, transaction, many=True)
        row.topics = ",".join(str(self.store.topic(self.app, topic).id) for topic in by_topic) or None
        if row.topics is not None and len(row.topics) > _TOPICS:
            raise WrongArguments(f"{row.name[:50]}: calls of one step go to at most some hundred topics")

    def value_of(self, row: StepRow, call: Signature[Any] | None = None) -> Any:
        """Return what a call has returned.

        Args:
            call: whose task builds it; otherwise it is plain JSON.

        Raises:
            CallFailed: it has failed.
            DecodeError: it is not what the task's annotation says.
        """
        end = self._call_ends.get(row.number)
        if end is None:
            (end,) = self.store.ends_of(self.flow, row)
        value = value_of(row, end)
        return value if call is None else _built(value, call)

    def values_of(self, row: StepRow, calls: Sequence[Signature[Any]] = (), *, errors: bool) -> list[Any]:
        """Return what the calls of a step have returned, in their order.

        Args:
            calls: whose tasks build it; otherwise it is plain JSON.
            errors: return the error of a call that has failed in its place, instead of raising the first one.

        Raises:
            CallFailed: one has failed.
            DecodeError: a value is not what its task's annotation says.
        """
        values = []
        for end in self.store.ends_of(self.flow, row) if row.total else ():
            try:
                value = value_of(row, end)
                values.append(_built(value, calls[end.number]) if calls else value)
            except CallFailed as error:
                if not errors:
                    raise
                values.append(error)
        return values

    # -- waiting -------------------------------------------------------------------------------------------------------

    def suspend(self, waits: str, *, steps: Sequence[int] = (), signals: Sequence[str] = ()) -> NoReturn:
        """Let the flow wait.

        Raises:
            Suspended: it waits from now on.
            RunAgain: one of these steps or signals is there already.
        """
        change = self._take(state=WAITING, waits=waits, unless=(steps, signals), since=self.now)
        self.leave(Suspended() if self._write(change) else RunAgain())

    def _left_waiting(self) -> NoReturn:
        """Leave the function after the flow has begun to wait.

        The message of its deadline is not repeated if it comes while a run is under way, as it may have done just now.
        """
        deadline_at = self.flow.deadline_at
        is_over = deadline_at is not None and deadline_at <= self.store.now()
        self.leave(RunAgain() if is_over else Suspended())

    def sleep(self, seconds: float | str, *, leaves: bool) -> bool:
        """Return whether a sleep is over; a new one begins.

        Raises:
            Suspended: it is not.
        """
        row = self.find(SLEEP, "sleep")
        if row is None:
            due_at = self.store.now() + _span(seconds)
            row = self._new(SLEEP, "sleep", is_ended=False, due_at=due_at)
            self._wait_until(row, "sleep" if leaves else None)
            if leaves:
                self._left_waiting()
        if not row.is_ended and row.due_at is not None and row.due_at <= self.now:
            self._end(row)
        if not row.is_ended and leaves:
            self.suspend("sleep")
        return row.is_ended

    def wait_for(self, name: str, timeout: float | str | None, *, leaves: bool) -> StepRow:
        """Return the step that waits for a signal; it has ended if the signal came, or not in time.

        Raises:
            Suspended: neither has happened.
        """
        row = self.find(WAIT, name)
        is_new = row is None
        if row is None:
            due_at = None if timeout is None else self.store.now() + _span(timeout)
            row = self._new(WAIT, name, is_ended=False, due_at=due_at)
        if row.is_ended:
            return row
        signal = next((one for one in self._signals if one.name == name), None)
        if signal is not None:
            self._signals.remove(signal)
            self._unwritten.taken.append((signal.id, row.number))
            row.value = self.store.signal_value(self.flow, signal) if signal.value is None else signal.value
            self._end(row, is_new=is_new)
        elif not is_new and row.due_at is not None and row.due_at <= self.now:
            row.failure = StoredError(_class_path(SignalTimeout()), f"signal {name!r} did not come in time")
            self._end(row)
        elif is_new:
            self._wait_until(row, None)
        if not row.is_ended and leaves:
            self.suspend(f"signal {name}", signals=[name])
        return row

    def _end(self, row: StepRow, *, is_new: bool = False) -> None:
        """Note that a step has ended; it is written with what the flow does next, or found out again."""
        row.is_ended = True
        (self._unwritten.added if is_new else self._unwritten.ended).append(row)

    def _wait_until(self, row: StepRow, waits: str | None) -> None:
        """Record a step that waits, and send the message that runs the flow when its time has come."""
        state = None if waits is None else WAITING
        self._write(self._take(added=[row], state=state, waits=waits, wake_at=row.due_at))

    # -- the rest ------------------------------------------------------------------------------------------------------

    def undo(self, signature: Signature[Any]) -> None:
        """Note a call that is made if the flow fails later."""
        name = signature.task.name
        if self.find(UNDO, name) is None:
            row = self._new(UNDO, name)
            row.value = encode_value([signature.args, signature.kwargs, signature.options], f"the call of {name!r}")
            self._unwritten.added.append(row)

    def emit(self, value: Any) -> None:
        """Publish a value of the flow, once."""
        if self.find(EMIT, "emit") is None:
            row = self._new(EMIT, "emit")
            encoded = encode_value(value, "what the flow emits")
            self._write(self._take(added=[row], emitted=[(row.number, encoded)]))

    def patched(self, name: str) -> bool:
        """Return whether the flow began, or came here, with the code that asks this."""
        self._check_open(PATCH, name)
        if self.history.knows(PATCH, name, present_path()):
            self.find(PATCH, name)
            return True
        if not self.history.is_replayed(present_path()):
            return False
        self.find(PATCH, name)
        self._unwritten.added.append(self._new(PATCH, name))
        return True

    def find(self, kind: str, name: str) -> StepRow | None:
        """Return the recorded step that the flow asks for.

        Raises:
            FlowChanged: another one was recorded in its place.
            EmsError: it is asked for within another step, or when the run is over.
        """
        self._check_open(kind, name)
        self.check_unchanged()
        try:
            return self.history.find(kind, name, present_path())
        except FlowChanged as error:
            self._changed = error  # a handler's `except Exception` must not let it go on
            raise

    def _check_open(self, kind: str, name: str) -> None:
        if self.left is not None:
            raise self.left
        if (outer := _inside.get()) is not None:
            # The program's mistake, which no further attempt mends: it ends the flow at once.
            raise WrongArguments(
                f"{kind} {name!r} is asked for inside of step {outer!r}; a step takes no steps of its own"
            )
        if self.closed:
            raise EmsError(f"{kind} {name!r} is asked for outside of the run of flow {self.flow.key!r}")
        if len(name) > LONGEST_NAME:
            raise WrongArguments(f"{kind} {name[:50]!r}...: the name of a step has at most {LONGEST_NAME} characters")
        if len(present_path()) > LONGEST_NAME:
            raise WrongArguments(f"{kind} {name!r}: it is asked for in a coroutine of a coroutine, too many times over")

    def check_unchanged(self) -> None:
        """Raise if the flow has asked for something else than what was recorded, whatever became of that error.

        Raises:
            FlowChanged: it has.
        """
        if self._changed is not None:
            raise self._changed

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Refuse steps within a step."""
        token = _inside.set(name)
        try:
            yield
        finally:
            _inside.reset(token)

    def finish(self, calls: Sequence[Signature[Any]] = (), **end: Any) -> None:
        """Write the end of the flow, with all that was not written yet.

        Args:
            calls: made with it, so once; the flow waits for none of them.
        """
        change = self._take(**end)
        if not calls:
            self.store.write(self.flow, change)
            return

        def write(transaction: OutboxTransaction) -> None:
            for call in calls:
                send_alone(self.app, transaction, call)
            self.store.write_in(transaction, self.flow, change)

        self._commit(write)

    async def afinish(self, **end: Any) -> None:
        """Write the end of a flow of coroutines: it shares a commit with those of other flows."""
        await self.store.awrite(self.flow, self._take(**end), self.app.pool)

    def undoable(self) -> list[StepRow]:
        """Return the calls that undo what was done, in the order in which they were noted."""
        return [row for row in self.history.rows() if row.kind == UNDO]

    def forget_failure(self) -> None:
        """Forget the step whose error ended the run: the next one runs it again."""
        added = self._unwritten.added
        while added and added[-1].failure is not None and added[-1].kind in (STEP, TRANSACTION):
            added.pop()

    def _new(self, kind: str, name: str, **fields: Any) -> StepRow:
        row = StepRow(self.history.new_number(), kind, name, branch=present_path(), **fields)
        self.history.add(row)
        return row

    def _take(self, added: Sequence[StepRow] = (), **more: Any) -> RunChange:
        """Return a change with all that was not written yet."""
        change, self._unwritten = self._unwritten, RunChange()
        change.added += added
        for name, value in more.items():
            setattr(change, name, value)
        return change

    def _put_back(self, change: RunChange) -> None:
        self._unwritten = RunChange(change.added, change.ended, change.taken)


def _encoded(value: Any, what: str, kind: ResultType | None) -> bytes:
    return encode_value(value if kind is None else kind.dump(value), what)


def outcome_of(row: StepRow, kind: ResultType | None = None) -> Any:
    """Return the value of a step that has ended, or raise its error again.

    The error is one of the same class, with the same text and none of its attributes, if that class is loaded.

    Raises:
        StepFailed: its class is not.
        DecodeError: the value is not of this kind.
    """
    if row.failure is None:
        value = decode_value(row.value)
        return value if kind is None else kind.build(value)
    failed = StepFailed(row.name, row.failure.kind.rpartition(".")[2], row.failure.text)
    found = _find_class(row.failure.kind)
    if found is None:
        raise failed
    try:
        error = found.__new__(found)
    except TypeError:  # it is not made without arguments of its own, as ExceptionGroup
        raise failed from None
    error.args = (row.failure.text,)
    raise error from failed


def value_of(row: StepRow, end: CallEnd) -> Any:
    """Return what a call has returned.

    Raises:
        CallFailed: it has failed.
    """
    if end.failure is None:
        return decode_value(end.value)
    name = row.name if row.kind == CALL else f"{row.name}[{end.number}]"
    raise CallFailed(name, end.failure.kind, end.failure.text, (row.number, end.number))


def _built(value: Any, call: Signature[Any]) -> Any:
    task = call.task
    if isinstance(task, FlowFunction):
        return task.build_value(value, task.version, call.args)
    return task.build_result(value)


def step_name(function: Any) -> str:
    """Return the name of a step.

    Raises:
        WrongArguments: it is no function.
    """
    if isinstance(function, Task):
        return function.name
    if not callable(function):
        raise WrongArguments(f"a step was given {function!r:.100}; give it a function and its arguments")
    function = _unwrapped(function)
    return full_name(function).rpartition(".")[2] if hasattr(function, "__qualname__") else full_name(function)


def step_type(function: Any) -> ResultType | None:
    """Return the type of the value of a step, if that is built from JSON."""
    return (
        function.result_type
        if isinstance(function, Task)
        else result_type_of(step_name(function), _unwrapped(function))
    )


def _unwrapped(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def is_final(error: BaseException) -> bool:
    """Return whether a flow that ended with this error would end with it again: what was recorded cannot change.

    Ignore ends it too: a flow that were neither tried again nor ended would stay where it is.
    """
    return isinstance(error, (StepFailed, FlowChanged, EncodeError, WrongArguments, Ignore))


def _class_path(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _find_class(path: str) -> type[Exception] | None:
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _span(value: float | str) -> timedelta:
    try:
        return timedelta(seconds=parse_duration(value))
    except ValueError as error:
        raise WrongArguments(f"{value!r}: {error}") from None
