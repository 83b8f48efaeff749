"""Undoes the steps of a flow that has failed: the calls that it has noted, in reverse order, one after another."""

from __future__ import annotations

from typing import Any

from emsworker.extending.apps import Signature
from emsworker.flows.port import FlowFunction, FlowStore
from emsworker.flows.rows import (
    FAILED,
    UNDO,
    UNDONE,
    WAITING,
    Loaded,
    RunChange,
    StepRow,
    StoredError,
    decode_value,
    undo_name,
)
from emsworker.flows.run import FlowRun


def undo_all(task: FlowFunction, store: FlowStore, loaded: Loaded, owner: bytes) -> None:
    """Go on with undoing a flow until it waits for a call, or has ended.

    Args:
        owner: uid of the message that runs it.

    Raises:
        Reject: the flow has ended; its message becomes a dead letter, which names it.
    """
    again: Loaded | None = loaded
    while again is not None and not _undo_next(task, store, again):
        again = store.begin(loaded.flow.id, owner, again.flow.run)


def _undo_next(task: FlowFunction, store: FlowStore, loaded: Loaded) -> bool:
    """Make the next call that undoes something, or end the flow if none is left; false if the call has ended by now."""
    flow, failure = loaded.flow, loaded.flow.failure
    assert failure is not None, "only a flow that has failed is undone"
    made = {row.name: row for row in loaded.steps if row.kind == UNDONE}
    for noted in reversed([row for row in loaded.steps if row.kind == UNDO]):
        row = made.get(undo_name(noted))
        if row is None:
            _make(task, store, loaded, noted)
            return True
        if row.pending:
            return store.write(flow, RunChange(state=WAITING, waits=row.name, unless=([row.number], [])))
        (end,) = store.ends_of(flow, row)
        if end.failure is not None:
            reason = f"{row.name} failed: {end.failure.kind}: {end.failure.text}"
            failure = StoredError(failure.kind, f"{failure.text}; and {reason}")
            break
    else:
        flow.undone = True
    store.write(flow, RunChange(state=FAILED, failure=failure, undone=flow.undone))
    flow.failure = failure
    raise flow.rejection()


def _make(task: FlowFunction, store: FlowStore, loaded: Loaded, noted: StepRow) -> None:
    args, kwargs, options = decode_value(noted.value)
    signature: Signature[Any] = Signature(task.task_named(noted.name), tuple(args), kwargs, options)
    run = FlowRun(task, store, loaded, in_order=False)
    row = StepRow(run.history.new_number(), UNDONE, undo_name(noted), total=1, pending=1, is_ended=False)
    change = RunChange(added=[row], state=WAITING, waits=row.name)
    with store.transaction(task.flow_app) as transaction:
        run.send_calls(transaction, row, [signature])
        store.write_in(transaction, loaded.flow, change)
