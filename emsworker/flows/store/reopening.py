"""Runs flows again that have failed or were cancelled, from where they ended.

A flow that ended with failed calls keeps what the others of their step have returned. The failed ones are run again as
they are: a task by its dead letter, a flow from where it ended; then the flow goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from emsworker.extending.database import Session, Sql, Statements
from emsworker.extending.stream import is_unfinished
from emsworker.extending.values import new_uid
from emsworker.flows.places import CallPlace
from emsworker.flows.retrying import AGAIN, ENDED_WELL, GONE, LOST, RUNS, UNDONE_FLOW, can_call_again
from emsworker.flows.rows import (
    CANCELLED,
    DONE,
    FAILED,
    READY,
    UNDONE,
    WAITING,
    CallEnd,
    StepRow,
    first_forgotten,
    next_number,
)
from emsworker.flows.store.events import send_event
from emsworker.flows.store.letters import Letter, delete_letters, find_dead, find_letters, requeue_letters
from emsworker.flows.store.waking import send_wake

_SQL = Statements(__name__)


class Reopening:
    """Flows that are run again in one transaction.

    Args:
        stream: identity of the stream that keeps them.
        database: its name, as SQL.
        read_steps: reads the steps of a flow.
        record: returns the statements that record the ends of calls.
    """

    def __init__(
        self,
        session: Session,
        stream: str,
        database: Sql,
        read_steps: Callable[[Session, int], list[StepRow]],
        record: Callable[[int, int, Sequence[CallEnd]], Iterable[Sql]],
    ) -> None:
        self._session, self._stream, self._database = session, stream, database
        self._read_steps, self._record = read_steps, record
        self._former: list[Letter] = []
        self._again: list[Letter] = []

    def reopen(self, flow: int, wanted: int | None = None) -> bool:
        """Reopen a flow; false if it has not ended that way, or its steps were undone.

        Args:
            wanted: number of the first step that is forgotten; by default none is if calls can be run again.

        Raises:
            WrongArguments: it is not known what has become of a call.
        """
        session, args = self._session, {"flow_id": flow}
        ended = session.rows(_SQL.lock_ended, args)
        if not ended:
            return False
        ((state, key),) = ended
        steps = self._read_steps(session, flow)
        ((failed,),) = session.rows(_SQL.find_failed_call, args)
        first = first_forgotten(steps, state, failed, wanted)
        if first is None:
            return False
        self._former += session.rows(_SQL.get_message, args)
        still_fails = any(one.kind == UNDONE for one in steps)
        if wanted is None and state == FAILED and first == failed:
            row = next(one for one in steps if one.number == failed)
            if self._call_again(flow, key, row, still_fails=still_fails):
                return True
        self._former += find_letters(session, self._stream, flow, first)
        for statement in (_SQL.delete_steps, _SQL.delete_ends, _SQL.give_signals_back):
            session.execute(statement, args | {"step": first})
        self._set_ready(flow, next_number(steps), still_fails=still_fails)
        return True

    def _call_again(self, flow: int, key: str, row: StepRow, *, still_fails: bool) -> bool:
        """Run the failed calls of a step again; false if the step is to be forgotten instead."""
        place = {"flow_id": flow, "step": row.number}
        failed = dict(self._session.rows(_SQL.list_failed_ends, place))
        flows = {
            int(parent.split(".")[2]): (child, state)
            for child, state, parent in self._session.rows(_SQL.list_called, {"prefix": f"{flow}.{row.number}.%"})
        }
        found = {number: self._look_at_flow(*flows[number]) for number in failed if number in flows}
        found |= self._look_at_tasks(flow, row, {number: failed[number] for number in failed if number not in flows})
        if not can_call_again(key, row, found):
            return False
        self._session.execute(_SQL.delete_failed_ends, place)
        pending = sum(one in (AGAIN, RUNS) for one in found.values())
        self._session.execute(_SQL.await_again, place | {"pending": len(found)})
        ended = [number for number, one in found.items() if one == ENDED_WELL]
        if pending:
            waits = f"{row.kind} {row.name}"[:190]
            self._reopen(flow, still_fails=still_fails, state=WAITING, waits=waits)
        else:
            self._set_ready(flow, still_fails=still_fails)
        for number in ended:
            for statement in self._record(flow, row.number, [CallEnd(number, self._value_of(flow, row, number), None)]):
                self._session.execute(statement)
        return True

    def _look_at_flow(self, child: int, state: str) -> str:
        """Reopen a flow that was called; return what has become of it."""
        if state in (FAILED, CANCELLED):
            return AGAIN if self.reopen(child) else UNDONE_FLOW
        return ENDED_WELL if state == DONE else RUNS

    def _value_of(self, flow: int, row: StepRow, number: int) -> bytes | None:
        ((value,),) = self._session.rows(_SQL.get_value, {"parent": f"{flow}.{row.number}.{number}"})
        return bytes(value) if value is not None else None

    def _look_at_tasks(self, flow: int, row: StepRow, kinds: dict[int, str]) -> dict[int, str]:
        """Return what has become of tasks that have failed; those that are dead letters are noted."""
        ((topics_text,),) = self._session.rows(_SQL.get_topics, {"flow_id": flow, "step": row.number})
        topics = [int(one) for one in (topics_text or "").split(",") if one]
        uids = {CallPlace(self._stream, flow, row.number, number).uid: number for number in kinds}
        dead = {uid: topic for topic, uid in find_dead(self._session, [(one, uid) for one in topics for uid in uids])}
        self._again += [(topic, uid) for uid, topic in dead.items()]
        found = {}
        for uid, number in uids.items():
            if uid in dead:
                found[number] = AGAIN
            elif any(is_unfinished(self._session, one, uid) for one in topics):
                found[number] = RUNS
            else:
                found[number] = LOST if kinds[number] == "CallLost" else GONE
        return found

    def _set_ready(self, flow: int, next_step: int = 0, *, still_fails: bool) -> None:
        owner = new_uid()
        self._reopen(flow, owner, next_step, still_fails=still_fails, state=READY, waits=None)
        self._session.execute(send_wake(self._database, flow, owner))

    def _reopen(self, flow: int, owner: bytes | None = None, next_step: int = 0, **more: Any) -> None:
        args = {"flow_id": flow, "owner": owner or new_uid(), "next_step": next_step}
        self._session.execute(_SQL.reopen, args | more)
        self._session.execute(send_event(self._database, flow))

    def finish(self) -> None:
        """Once it is committed: delete the former dead letters, and run those of the calls again.

        If this does not happen, the beat finds calls that are dead letters, and the flow fails as before.
        """
        delete_letters(self._session, self._former)
        requeue_letters(self._session, self._again)
