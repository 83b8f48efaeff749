"""The completer, one thread per process: writes progress down while handlers run, and enforces time limits.

- finished work is recorded every ``ack_interval_s``, even while the next message runs long;
- if a message runs long, the rest of its claim is given back, so that slow tasks do not hoard messages;
- soft limits raise in the handler; hard limits and timeouts move the message to retry and replace the process, because
  a thread that hangs cannot be ended otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from emsworker.broker.port import Broker
from emsworker.consume.claim_progress import Ended
from emsworker.consume.claim_run import ClaimRun
from emsworker.consume.executor import end_of
from emsworker.consume.gate import IsolationGate
from emsworker.consume.keyed_run import KeyedRun
from emsworker.consume.watch import Watch
from emsworker.core.config import Settings
from emsworker.core.errors import EmsError, FenceLost, TimeLimitExceeded
from emsworker.core.model import Failure, Message, Order
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import Runnable, Trouble
from emsworker.store.engine.errors import TROUBLES

log = logging.getLogger(__name__)

_HOARD_S = 1.0


class Completer(Runnable):
    """The completer thread; checks every running claim twice per ``ack_interval_s``.

    Args:
        broker: where progress is written, over a channel of its own.
        settings: ack_interval_s, jitter.
        on_hang: called with a reason if a handler's thread hangs past its limit.
        on_death: see :class:`Runnable`.
        gate: the process's gate for poison isolation.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        on_hang: Callable[[str], None],
        on_death: Callable[[str, BaseException], None],
        gate: IsolationGate,
    ) -> None:
        super().__init__("ems-completer", on_death)
        self._gate = gate
        self._broker = broker
        # A wait for the server would block the watchdog, and a handler's thread that wants to write its progress down:
        # if that thread's transaction holds rows that are waited for, no server would detect the deadlock.
        self._channel = broker.channel(patient=False)
        self._settings = settings
        self._on_hang = on_hang
        self._mutex = forks.Lock()
        self._claim_runs: dict[int, ClaimRun] = {}
        self._trouble = Trouble(log)
        self.hanging: set[int] = set()  # threads that will not come back

    def watch(self, thread_id: int, claim_run: ClaimRun | None) -> None:
        """Watch the claim that a thread begins; ``None`` ends the watch."""
        with self._mutex:
            if claim_run is None:
                self._claim_runs.pop(thread_id, None)
            else:
                self._claim_runs[thread_id] = claim_run

    def step(self) -> None:
        """Check every claim once."""
        self.sleep(self._settings.ack_interval_s / 2)
        with self._mutex:
            claim_runs = list(self._claim_runs.values())
        for claim_run in claim_runs:
            try:
                self._look_after(claim_run, ticks())
            except FenceLost:
                log.warning("the claim of %s is run elsewhere by now", claim_run.claim.place)
            except TROUBLES as error:
                self._trouble.note("cannot write progress down", error)
            else:
                self._trouble.over("progress is written down")

    def _look_after(self, claim_run: ClaimRun, now: float) -> None:
        if self._gate.overstays(claim_run, now):
            claim_run.unname()
            claim_run.write_down(self._channel)  # before others start: from then on it is not proven who kills
            self._gate.open(claim_run)
        if claim_run.is_due(now, self._settings.ack_interval_s):
            claim_run.write_down(self._channel)
        if isinstance(claim_run, KeyedRun):
            self._look_after_lanes(claim_run, now)
            return
        watch = claim_run.watch
        with watch.lock:
            messages, since = claim_run.running_messages(), watch.running_since
        if not messages:
            return
        watch.send_soft_limit(now)
        if now - since > watch.time_limit_s:
            self._end(claim_run, messages, since, now - since)
        elif now - claim_run.began_at > _HOARD_S and claim_run.claim.order is Order.NONE:
            claim_run.share_rest(self._channel)

    def _look_after_lanes(self, claim_run: KeyedRun, now: float) -> None:
        if now - claim_run.began_at > _HOARD_S and not claim_run.detached:
            claim_run.share_rest(self._channel)
        for lane in claim_run.lanes:
            with lane.lock:
                running, since = lane.running, lane.running_since
            if running is None:
                continue
            lane.send_soft_limit(now)
            if now - since > lane.time_limit_s and (message := lane.give_up(since)) is not None:
                failure, error = self._timeout(claim_run, lane, message, now - since)
                claim_run.end(Ended(message, now - since, failure))
                _note_end(lane, message, failure, now - since)
                claim_run.attempts.log_failure(message, lane.options, failure, error)
                self._on_hang(_hangs(claim_run, lane, message, now - since))

    def _end(self, claim_run: ClaimRun, messages: list[Message], since: float, ran_s: float) -> None:
        """Move the running message, which is past its limit, to retry; give back the rest of the claim."""
        # It is not known which message of a batch hangs: each will run alone, and be recorded before it starts.
        message, alone, was_lost = messages[0], len(messages) == 1, claim_run.lost
        watch = claim_run.watch
        failure, error = self._timeout(claim_run, watch, message, ran_s)
        try:
            hangs = claim_run.give_up(self._channel, since, Ended(message, ran_s, failure) if alone else None)
            if hangs and alone and not was_lost:
                claim_run.attempts.log_failure(message, watch.options, failure, error)
        except FenceLost:  # the beat was faster; the thread hangs all the same
            hangs = True
        if hangs:
            self.watch(watch.thread_id, None)
            self.hanging.add(watch.thread_id)
            if alone:
                _note_end(watch, message, failure, ran_s)
            self._on_hang(_hangs(claim_run, watch, message, ran_s))

    def _timeout(
        self, claim_run: ClaimRun, watch: Watch, message: Message, ran_s: float
    ) -> tuple[Failure, TimeLimitExceeded]:
        error = TimeLimitExceeded(f"ran for {ran_s:.1f} s; its limit is {watch.time_limit_s:g} s")
        return claim_run.attempts.decide(message, watch.options, error, ran_s, str(error), told=False), error

    def overdue(self, now: float) -> str:
        """Return the reason why a handler hangs that ran past its limit at ``now``, or an empty text.

        It takes no lock of a claim, because the holder may be waiting for the server.
        """
        with self._mutex:
            claim_runs = list(self._claim_runs.values())
        for claim_run in claim_runs:
            watches: list[Watch] = list(claim_run.lanes) if isinstance(claim_run, KeyedRun) else [claim_run.watch]
            for watch in watches:
                running, ran_s = watch.running, now - watch.running_since
                if running is None or ran_s <= watch.time_limit_s:
                    continue
                message = next((one for one in claim_run.claim.messages if one.offset == running), None)
                if message is not None:
                    return _hangs(claim_run, watch, message, ran_s)
        return ""

    def began_at(self, thread_id: int | None, now: float) -> float:
        """Return ``now`` if a thread runs a message, else when its last one of a claim that it works on began, or 0."""
        with self._mutex:
            claim_run = self._claim_runs.get(thread_id or 0)
        if claim_run is None:
            return 0.0
        return now if claim_run.watch.running is not None else claim_run.watch.running_since

    def give_everything_back(self) -> None:
        """Return all claims, running messages included, before the process dies with its handlers running."""
        with self._mutex:
            claim_runs = list(self._claim_runs.values())
        with closing(self._broker.channel()) as channel:  # the completer's own thread may be using its channel
            for claim_run in claim_runs:
                try:
                    claim_run.give_back(channel)
                except (*TROUBLES, EmsError) as error:
                    log.warning("could not give back the claim of %s: %s", claim_run.claim.place, error)

    def shut_down(self) -> None:
        """Close the channel."""
        self._channel.close()


def _note_end(watch: Watch, message: Message, failure: Failure, ran_s: float) -> None:
    """Tell the bracket of a handler that does not come back how its run ended; its own thread cannot."""
    if watch.bracket is not None:
        watch.bracket.ends = [end_of(Ended(message, ran_s, failure, error=TimeLimitExceeded(failure.error)))]


def _hangs(claim_run: ClaimRun, watch: Watch, message: Message, ran_s: float) -> str:
    task = claim_run.attempts.task_of(message)
    place = f"{message.topic}/{message.partition}@{message.offset}"
    return f"{task} ran for {ran_s:.1f} s, over its limit of {watch.time_limit_s:g} s ({place})"
