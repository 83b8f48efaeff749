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
from itertools import islice

from emsworker.extending.database import Session, Statements, identifier, stream_id
from emsworker.extending.errors import StoreUnavailable
from emsworker.extending.settings import MAIN, Settings
from emsworker.extending.values import new_uid
from emsworker.flows.operating.flow_messages import FlowMessages
from emsworker.flows.places import CallPlace
from emsworker.flows.rows import READY, RUNNING, WAITING, CallEnd, StoredError
from emsworker.flows.store.events import send_event
from emsworker.flows.store.flow_store import end_statements
from emsworker.flows.store.waking import send_wake

_SQL = Statements(__name__)
_PAGES = {READY: 100, RUNNING: 100, WAITING: 1000}  # two statements look at all that wait, one at each of the others
_CALLS = 1000
_START = datetime(1970, 1, 1), 0
_NO_TOPIC = StoredError("UnknownTopic", "the topic on which it runs was deleted, or never existed")
_UNREACHED = StoreUnavailable.__name__  # a worker on another server has not reached this one for all its attempts
_LOST = StoredError("CallLost", "the call was cancelled, skipped or deleted")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenFlow:
    """A flow that has not ended.

    Attributes:
        parent: of a flow that another one has called: ``FLOW.STEP.NUMBER``.
        fails: it has failed, and its steps are undone.
        has_topic: false if no topic has its number, so that no message can run it.
    """

    id: int
    state: str
    run: int
    owner: bytes
    topic_id: int
    parent: str | None
    fails: bool
    has_topic: bool


class WatchFlows:
    """A service that looks at a page of flows of each state in a round, those that nothing has changed for a while.

    Args:
        server: of several servers, the one that the flows are on.
        quiet_s: that while.
        pause_s: between two pages.
    """

    def __init__(self, server: str = MAIN, quiet_s: float = 30.0, pause_s: float = 5.0) -> None:
        self._server, self._quiet_s, self._pause_s = server, quiet_s, pause_s
        self._messages: FlowMessages | None = None
        self._last = dict.fromkeys((READY, RUNNING, WAITING), _START)

    def __call__(self, session: Session, settings: Settings) -> float:
        """Look at the next page of each state."""
        if self._messages is None:
            self._messages = FlowMessages(self._server, settings)
        for state, (after, after_id) in self._last.items():
            page = _PAGES[state]
            args = {"state": state, "after": after, "after_id": after_id, "quiet_s": self._quiet_s, "limit": page}
            rows = session.rows(_SQL.list_quiet, args)
            flows = [OpenFlow(*row[:-1]) for row in rows]
            if state == WAITING:
                self._look_at_waiting(session, self._messages, flows)
            else:
                self._look_at_messages(session, self._messages, flows)
            self._last[state] = (rows[-1][-1], rows[-1][0]) if len(rows) == page else _START
        return self._pause_s

    def _look_at_messages(self, session: Session, messages: FlowMessages, flows: Sequence[OpenFlow]) -> None:
        for flow in flows:
            if not flow.has_topic:  # a message would be set aside, again and again
                self._end(session, flow, _NO_TOPIC)
            elif not messages.may_be_unfinished(session, flow.topic_id, flow.owner):
                self._end_or_wake(session, flow, messages.find_dead(session, flow.topic_id, flow.owner))

    def _look_at_waiting(self, session: Session, messages: FlowMessages, flows: Sequence[OpenFlow]) -> None:
        """Look at flows that wait together: there may be a million, and none of them needs anything."""
        if not flows:
            return
        by_id = {flow.id: flow for flow in flows}
        args = {"flow_ids": [*by_id], "quiet_s": self._quiet_s}
        for flow_id, step, total, topics in session.rows(_SQL.list_pending, args):
            if topics:
                calls = _Calls(session, messages, flow_id, step, [int(one) for one in topics.split(",")])
                self._tell_lost(session, calls, total)
        for (flow_id,) in session.rows(_SQL.list_overdue, args):
            self._wake(session, by_id[flow_id], "its time has come")

    def _end_or_wake(self, session: Session, flow: OpenFlow, failure: StoredError | None) -> None:
        """Go on with a flow whose message has ended, or is gone; if it is a dead letter, the flow has failed."""
        if failure is None or failure.kind == _UNREACHED:
            self._wake(session, flow, "its message was lost" if failure is None else failure.text)
            return
        args = {"flow_id": flow.id, "error_type": failure.kind[:190], "error": failure.text}
        if not flow.fails and session.rows(_SQL.has_undo, args):
            session.execute(_SQL.note_failure, args)
            self._wake(session, flow, f"it has failed: {failure.text}")
        else:
            self._end(session, flow, failure)

    def _end(self, session: Session, flow: OpenFlow, failure: StoredError) -> None:
        args = {"flow_id": flow.id, "error_type": failure.kind[:190], "error": failure.text}
        if session.transaction(lambda session: self._fail(session, flow, args | _guard(flow), failure)):
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

    def _tell_lost(self, session: Session, calls: _Calls, total: int) -> None:
        """Record the end of calls whose messages have ended, or are gone, without a word."""
        lost = list(calls.find_lost(total))
        told = calls.told()
        ends = [end for end in lost if end.number not in told]  # they may have ended while this looked
        if not ends:
            return

        def write(session: Session) -> None:
            for statement in end_statements(identifier(session.database), calls.flow, calls.step, ends):
                session.execute(statement)

        session.transaction(write)
        log.warning("%d calls of step %d of flow %d were lost: %s", len(ends), calls.step, calls.flow, ends[0].failure)


class _Calls:
    """The calls of a step that have not ended.

    Args:
        topic_ids: of the topics to which they were sent.
    """

    def __init__(
        self, session: Session, messages: FlowMessages, flow: int, step: int, topic_ids: Sequence[int]
    ) -> None:
        self.flow, self.step = flow, step
        self._session, self._messages, self._topic_ids = session, messages, topic_ids

    def told(self) -> set[int]:
        """Return the numbers of those that have ended by now."""
        rows = self._session.rows(_SQL.list_numbers, {"flow_id": self.flow, "step": self.step})
        return {number for (number,) in rows}

    def find_lost(self, total: int) -> Iterator[CallEnd]:
        """Yield the ends of those whose messages have ended without a word, up to the first one that may still end."""
        told, stream = self.told(), stream_id(self._session)
        waiting = list(islice((number for number in range(total) if number not in told), _CALLS))
        flows = self._flows_among(waiting)
        for number in waiting:
            if number in flows:  # it has no message of its own, and tells of its end itself
                continue
            place = CallPlace(stream, self.flow, self.step, number)
            if self._may_end(place.uid) or self._may_end(place.end_uid) or self._dead(place.end_uid) is not None:
                return  # mostly all of those behind it wait too; a dead letter that tells of an end can be requeued
            yield CallEnd(number, None, self._dead(place.uid) or _LOST)

    def _flows_among(self, numbers: Sequence[int]) -> set[int]:
        """Return which of some calls are flows."""
        if not numbers:
            return set()
        parents = {f"{self.flow}.{self.step}.{number}": number for number in numbers}
        return {parents[parent] for (parent,) in self._session.rows(_SQL.list_called, {"parents": list(parents)})}

    def _may_end(self, uid: bytes) -> bool:
        return any(self._messages.may_be_unfinished(self._session, one, uid) for one in self._topic_ids)

    def _dead(self, uid: bytes) -> StoredError | None:
        found = (self._messages.find_dead(self._session, one, uid) for one in self._topic_ids)
        return next(filter(None, found), None)


def _guard(flow: OpenFlow) -> dict[str, object]:
    return {"flow_id": flow.id, "run": flow.run, "state": flow.state, "owner": flow.owner}
