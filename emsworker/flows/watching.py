"""Watches over flows that nothing moves any more, for the beat.

What moves a flow is committed with the ack that caused it. What no ack tells of is found here: calls that were
cancelled, skipped or purged, and messages of flows that were lost in such a way or died with every process that ran
them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from emsworker.extending.database import Session, Statements, identifier
from emsworker.extending.errors import error_line
from emsworker.extending.settings import Settings
from emsworker.extending.stream import is_unfinished
from emsworker.extending.values import new_uid
from emsworker.flows.events import send_event
from emsworker.flows.places import call_uid
from emsworker.flows.rows import READY, RUNNING, WAITING, CallEnd, StoredError
from emsworker.flows.store import end_statements, send_wake

_SQL = Statements(__name__)
_PAGE, _CALLS = 100, 1000
_START = datetime(1970, 1, 1), 0
_LOST = StoredError("CallLost", "the call was cancelled, skipped or deleted")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenFlow:
    """A flow that has not ended.

    Attributes:
        parent: of a flow that another one has called: ``FLOW.STEP.NUMBER``.
        fails: it has failed, and its steps are undone.
    """

    id: int
    state: str
    run: int
    owner: bytes
    topic_id: int
    parent: str | None
    fails: bool


class WatchFlows:
    """A service that looks at a page of flows of each state in a round, those that nothing has changed for a while.

    Args:
        quiet_s: that while.
        pause_s: between two pages.
    """

    def __init__(self, quiet_s: float = 30.0, pause_s: float = 5.0) -> None:
        self._quiet_s, self._pause_s = quiet_s, pause_s
        self._last = dict.fromkeys((READY, RUNNING, WAITING), _START)

    def __call__(self, session: Session, settings: Settings) -> float:
        """Look at the next page of each state."""
        for state, (after, after_id) in self._last.items():
            args = {"state": state, "after": after, "after_id": after_id, "quiet_s": self._quiet_s, "limit": _PAGE}
            rows = session.rows(_SQL.list_quiet, args)
            for row in rows:
                self._look(session, OpenFlow(*row[:-1]))
            self._last[state] = (rows[-1][-1], rows[-1][0]) if len(rows) == _PAGE else _START
        return self._pause_s

    def _look(self, session: Session, flow: OpenFlow) -> None:
        if flow.state in (READY, RUNNING):
            if not is_unfinished(session, flow.topic_id, flow.owner):
                self._end_or_wake(session, flow)
            return
        args = {"flow_id": flow.id, "quiet_s": self._quiet_s}
        for step, total, topics in session.rows(_SQL.list_pending, args):
            self._tell_lost(session, flow, step, total, [int(one) for one in (topics or "").split(",") if one])
        if session.rows(_SQL.is_overdue, args):
            self._wake(session, flow, "its time has come")

    def _end_or_wake(self, session: Session, flow: OpenFlow) -> None:
        """Go on with a flow whose message has ended, or is gone; if it is a dead letter, the flow has failed."""
        dead = session.rows(_SQL.find_dead, {"topic_id": flow.topic_id, "uid": flow.owner})
        if not dead:
            self._wake(session, flow, "its message was lost")
            return
        failure = _error_of(*dead[0])
        args = {"flow_id": flow.id, "error_type": failure.kind[:190], "error": failure.text}
        if not flow.fails and session.rows(_SQL.has_undo, args):
            session.execute(_SQL.note_failure, args)
            self._wake(session, flow, f"it has failed: {failure.text}")
        elif session.transaction(lambda session: self._fail(session, flow, args | _guard(flow), failure)):
            log.error("flow %d has failed: %s: %s", flow.id, failure.kind, failure.text)

    def _fail(self, session: Session, flow: OpenFlow, args: dict[str, object], failure: StoredError) -> bool:
        """Let a flow fail, and tell the one that has called it."""
        if not session.change(_SQL.fail_lost, args):
            return False
        session.execute(send_event(identifier(session.database), flow.id))
        if flow.parent is not None:
            parent, step, number = map(int, flow.parent.split("."))
            for statement in end_statements(
                identifier(session.database), parent, step, [CallEnd(number, None, failure)]
            ):
                session.execute(statement)
        return True

    def _wake(self, session: Session, flow: OpenFlow, why: str) -> None:
        def wake(session: Session) -> bool:
            args = _guard(flow) | {"new_owner": (owner := new_uid())}
            if not session.change(_SQL.wake_lost, args):
                return False
            session.execute(send_wake(identifier(session.database), flow.id, owner))
            return True

        if session.transaction(wake):
            log.warning("flow %d is run again: %s", flow.id, why)

    def _tell_lost(self, session: Session, flow: OpenFlow, step: int, total: int, topic_ids: Sequence[int]) -> None:
        """Record the end of calls whose messages have ended, or are gone, without a word."""
        lost = list(_lost_calls(session, flow.id, step, total, topic_ids)) if topic_ids else []
        told = {number for (number,) in session.rows(_SQL.list_numbers, {"flow_id": flow.id, "step": step})}
        ends = [end for end in lost if end.number not in told]  # they may have ended while this looked
        if not ends:
            return

        def write(session: Session) -> None:
            for statement in end_statements(identifier(session.database), flow.id, step, ends):
                session.execute(statement)

        session.transaction(write)
        log.warning("%d calls of step %d of flow %d were lost: %s", len(ends), step, flow.id, ends[0].failure)


def _lost_calls(session: Session, flow: int, step: int, total: int, topic_ids: Sequence[int]) -> Iterator[CallEnd]:
    told = {number for (number,) in session.rows(_SQL.list_numbers, {"flow_id": flow, "step": step})}
    waiting = (number for number in range(total) if number not in told)
    for number, _ in zip(waiting, range(_CALLS), strict=False):
        uid = call_uid(flow, step, number)
        if any(is_unfinished(session, topic_id, uid) for topic_id in topic_ids):
            return  # mostly all of those behind it wait too
        yield CallEnd(number, None, _failure_of(session, topic_ids, uid))


def _failure_of(session: Session, topic_ids: Sequence[int], uid: bytes) -> StoredError:
    for topic_id in topic_ids:
        for row in session.rows(_SQL.find_dead, {"topic_id": topic_id, "uid": uid}):
            return _error_of(*row)
    return _LOST


def _guard(flow: OpenFlow) -> dict[str, object]:
    return {"flow_id": flow.id, "run": flow.run, "state": flow.state, "owner": flow.owner}


def _error_of(kind: str, reason: str, error: str) -> StoredError:
    """Return the error of a dead letter."""
    return StoredError(kind.rpartition(".")[2] or "DeadLetter", error_line(error) or reason)
