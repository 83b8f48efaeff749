"""The completer, one thread per process: writes progress down while handlers run, and enforces time limits.

- finished work is recorded every ``ack_interval_s``, even while the next message runs long;
- if a message runs long, the rest of its claim is given back, so that slow tasks do not hoard messages;
- soft limits raise in the handler; hard limits and timeouts move the message to retry and replace the process, because
  a thread that hangs cannot be ended otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from emsworker.consume.lanework import LaneWork
from emsworker.consume.time_limits import send_soft_limit
from emsworker.consume.watch import Watch
from emsworker.consume.work import Ended, Work
from emsworker.core.config import Settings
from emsworker.core.errors import EmsError, FenceLost, TimeLimitExceeded
from emsworker.core.ladder import Ladder
from emsworker.core.model import Failure, Message, Order, Outcome
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import Runnable, Trouble
from emsworker.store.engine.database import Database
from emsworker.store.engine.errors import Conflict, ConnectionLost

log = logging.getLogger(__name__)

_HOARD_S = 1.0


class Completer(Runnable):
    """The completer thread; checks every running claim twice per ``ack_interval_s``.

    Args:
        database: where progress is written, over a session of its own.
        settings: ack_interval_s, jitter.
        ladder_of: group id -> its ladder.
        on_hang: called with a reason if a handler's thread hangs past its limit.
        on_death: see :class:`Runnable`.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        ladder_of: Callable[[int], Ladder],
        on_hang: Callable[[str], None],
        on_death: Callable[[str, BaseException], None],
    ) -> None:
        super().__init__("ems-completer", on_death)
        self._database = database
        # A wait for the server would block the watchdog, and a handler's thread that wants to write its progress down:
        # if that thread's transaction holds rows that are waited for, no server would detect the deadlock.
        self._session = database.session(patient=False)
        self._settings = settings
        self._ladder_of = ladder_of
        self._on_hang = on_hang
        self._mutex = forks.Lock()
        self._works: dict[int, Work] = {}
        self._trouble = Trouble(log)
        self.hanging: set[int] = set()  # threads that will not come back

    def watch(self, thread_id: int, work: Work | None) -> None:
        """Watch the claim that a thread begins; ``None`` ends the watch."""
        with self._mutex:
            if work is None:
                self._works.pop(thread_id, None)
            else:
                self._works[thread_id] = work

    def step(self) -> None:
        """Check every claim once."""
        self.sleep(self._settings.ack_interval_s / 2)
        with self._mutex:
            works = list(self._works.values())
        for work in works:
            try:
                self._look_after(work, ticks())
            except FenceLost:
                log.warning("claim %d..%d is run elsewhere by now", work.claim.lo, work.claim.hi)
            except (ConnectionLost, Conflict) as error:
                self._trouble.note("cannot write progress down", error)
            else:
                self._trouble.over("progress is written down")

    def _look_after(self, work: Work, now: float) -> None:
        if work.urgent or (work.dirty and now - work.written_at >= self._settings.ack_interval_s):
            work.write_down(self._session)
        if isinstance(work, LaneWork):
            self._look_after_lanes(work, now)
            return
        with work.lock:
            running, through, since = work.running, work.running_through, work.running_since
        if running is None:
            return
        send_soft_limit(work, now)
        if now - since > work.time_limit_s:
            messages = [m for m in work.claim.messages if running <= m.offset <= through]
            self._end(work, messages, since, now - since)
        elif now - work.began_at > _HOARD_S and work.claim.order is Order.NONE:
            work.share_rest(self._session)

    def _look_after_lanes(self, work: LaneWork, now: float) -> None:
        if now - work.began_at > _HOARD_S and not work.detached:
            work.detach(self._session)
        for lane in work.lanes:
            with lane.lock:
                running, since = lane.running, lane.running_since
            if running is None:
                continue
            send_soft_limit(lane, now)
            if now - since > lane.time_limit_s and (message := lane.give_up(since)) is not None:
                work.end(Ended(message, [self._timeout(work, lane, message, now - since)], ()))
                self._on_hang(_hangs(now - since, lane))

    def _end(self, work: Work, messages: list[Message], since: float, ran_s: float) -> None:
        """Move the running message, which is past its limit, to retry; give back the rest of the claim."""
        # It is not known which message of a batch hangs: each will run alone, and be recorded before it starts.
        failure = self._timeout(work, work, messages[0], ran_s) if len(messages) == 1 else None
        try:
            hangs = work.give_up(self._session, since, failure)
        except FenceLost:  # the beat was faster; the thread hangs all the same
            hangs = True
        if hangs:
            self.watch(work.thread_id, None)
            self.hanging.add(work.thread_id)
            self._on_hang(_hangs(ran_s, work))

    def _timeout(self, work: Work, watch: Watch, message: Message, ran_s: float) -> Failure:
        error = TimeLimitExceeded(f"ran for {ran_s:.1f} s; its limit is {watch.time_limit_s:g} s")
        decision = watch.options.decide(self._ladder_of(work.claim.group_id), message.attempt, error)
        return Failure.decided(message.offset, message.attempt, Outcome.TIMEOUT, str(error), decision, ran_s)

    def give_everything_back(self) -> None:
        """Return all claims, running messages included, before the process dies with its handlers running."""
        with self._mutex:
            works = list(self._works.values())
        with self._database.session() as session:  # the completer's own thread may be using its session
            for work in works:
                try:
                    work.give_back(session)
                except (ConnectionLost, Conflict, EmsError) as error:
                    log.warning("could not give claim %d..%d back: %s", work.claim.lo, work.claim.hi, error)

    def shut_down(self) -> None:
        """Close the session."""
        self._session.close()


def _hangs(ran_s: float, watch: Watch) -> str:
    return f"a handler ran for {ran_s:.1f} s, over its limit of {watch.time_limit_s:g} s"
