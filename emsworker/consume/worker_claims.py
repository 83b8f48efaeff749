"""The claims that the threads of a worker process work on, and the watchdog of their time limits.

- Soft limits raise in the handler.
- Hard limits and timeouts move the message to retry and replace the process, because a thread that hangs cannot be
  ended otherwise.
- If a message runs long, the rest of its claim is given back, so that slow tasks do not hoard messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from emsworker.broker.channel import Channel
from emsworker.consume import stacks
from emsworker.consume.claim_progress import ClaimWrite, Ended
from emsworker.consume.claim_run import ClaimRun, end_of
from emsworker.consume.coroutines import CoroutineRun, EventLoop
from emsworker.consume.flusher import HeldClaims
from emsworker.consume.isolation import IsolationGate
from emsworker.consume.keyed_run import KeyedRun
from emsworker.consume.watch import Watch
from emsworker.core.errors import EmsError, FenceLost, RunCancelled, StoreError, TimeLimitExceeded
from emsworker.core.model import Message, Order
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import Trouble
from emsworker.core.work import Place

log = logging.getLogger(__name__)

_HOARD_S = 1.0


class WorkerClaims(HeldClaims[ClaimRun]):
    """The claim that each thread of a process works on; thread-safe.

    Args:
        gate: the process's gate for poison isolation.
        on_hang: called with a reason if a handler's thread hangs past its limit.
        loop: of the process's coroutines.

    Attributes:
        hanging: the threads that will not come back.
    """

    def __init__(self, gate: IsolationGate, on_hang: Callable[[str], None], loop: EventLoop | None = None) -> None:
        self._gate, self._on_hang, self._loop = gate, on_hang, loop or EventLoop()
        self._mutex = forks.Lock()
        self._claims: dict[int, ClaimRun] = {}  # by thread id
        self.hanging: set[int] = set()
        self._trouble = Trouble(log)

    def add(self, thread_id: int, claim_run: ClaimRun) -> None:
        with self._mutex:
            self._claims[thread_id] = claim_run

    def remove(self, thread_id: int) -> None:
        with self._mutex:
            self._claims.pop(thread_id, None)

    def claims(self) -> list[ClaimRun]:
        with self._mutex:
            return list(self._claims.values())

    # -- for the poller ------------------------------------------------------------------------------------------------

    def cancel(self, places: Collection[Place]) -> None:
        """Cancel messages, those of them that are here; the poller repeats it while a claim has them."""
        for claim_run in self.claims() if places else ():
            where = claim_run.claim.group_id, claim_run.claim.partition
            if offsets := {place[2] for place in places if place[:2] == where}:
                claim_run.cancel(offsets)

    # -- for the flusher -----------------------------------------------------------------------------------------------

    def confirm(self, claim: ClaimRun, write: ClaimWrite) -> None:
        claim.confirm(write)

    def lose(self, claim: ClaimRun, error: FenceLost) -> None:
        claim.lose()
        log.warning("the claim of %s is run elsewhere by now", claim.claim.place)

    def enforce_limits(self, channel: Channel) -> None:
        """End messages that are past their limits, and give back what others could run meanwhile."""
        for claim_run in self.claims():
            try:
                self._enforce(claim_run, channel, ticks())
            except FenceLost as error:
                self.lose(claim_run, error)
            except StoreError as error:
                self._trouble.note("cannot give back what is late", error)
            else:
                self._trouble.over("what is late is given back")

    def _enforce(self, claim_run: ClaimRun, channel: Channel, now: float) -> None:
        if claim_run.watch.thread_id in self.hanging:
            return
        if self._gate.overstays(claim_run, now):
            claim_run.unname()
            claim_run.write_down(channel)  # before others start: from then on it is not proven who kills
            self._gate.open(claim_run)
        if isinstance(claim_run, KeyedRun):
            self._enforce_in_lanes(claim_run, now)
        elif self._hangs(claim_run, channel, now) or claim_run.claim.order is not Order.NONE:
            return
        if now - claim_run.began_at > _HOARD_S:
            claim_run.share_rest(channel)

    def _enforce_in_lanes(self, claim_run: KeyedRun, now: float) -> None:
        for lane in claim_run.lanes:
            with lane.lock:
                running, since = lane.running, lane.running_since
            if running is None:
                continue
            lane.send_soft_limit(now)
            if now - since > lane.time_limit_s and (message := lane.give_up(since)) is not None:
                ended = self._timed_out(claim_run, lane, message, now - since)
                claim_run.end(ended)
                self._note_hang(claim_run, lane, ended)

    def _hangs(self, claim_run: ClaimRun, channel: Channel, now: float) -> bool:
        """Return whether a handler hangs; its message is moved to retry, and the rest of its claim given back."""
        watch = claim_run.watch
        with watch.lock:
            messages, since = claim_run.running_messages(), watch.running_since
        if not messages:
            return False
        watch.send_soft_limit(now)
        if now - since <= watch.time_limit_s:
            return False
        ended = self._timed_out(claim_run, watch, messages[0], now - since)
        alone, was_lost = len(messages) == 1, claim_run.closed
        try:
            # It is not known which message of a batch hangs: each will run alone, and be recorded before it starts.
            if not claim_run.give_up(channel, since, ended if alone else None):
                return False
        except FenceLost:  # the beat was faster; the thread hangs all the same
            was_lost = True
        self.hanging.add(watch.thread_id)
        self._note_hang(claim_run, watch, ended, is_charged=alone and not was_lost, is_known=alone)
        return True

    def _note_hang(
        self, claim_run: ClaimRun, watch: Watch, ended: Ended, *, is_charged: bool = True, is_known: bool = True
    ) -> None:
        if is_known and watch.bracket is not None:  # its own thread cannot tell it
            watch.bracket.ends = [end_of(ended)]
        if is_charged and ended.failure is not None and ended.error is not None:
            claim_run.attempts.log_failure(ended.message, watch.options, ended.failure, ended.error)
        elif ended.failure is not None:
            log.error("the stack of what hangs:%s", "\n" + ended.failure.error)
        self._on_hang(_hang_text(claim_run, watch, ended.message, ended.ran_s))

    def _timed_out(self, claim_run: ClaimRun, watch: Watch, message: Message, ran_s: float) -> Ended:
        """Return the end of a message that hangs; its error is where."""
        stack, why = self._stack(watch, message)
        text = f"ran for {ran_s:.1f} s; its limit is {watch.time_limit_s:g} s{why}"
        error: BaseException = RunCancelled(text) if message.run.cancelled else TimeLimitExceeded(text)
        text = stacks.text_of_stack(stack, error)
        failure = claim_run.attempts.decide(message, watch.options, error, ran_s, text, told=False)
        return Ended(message, ran_s, failure, error=error)

    def _stack(self, watch: Watch, message: Message) -> tuple[stacks.Stack, str]:
        """Return the stack of the handler that hangs, and what is to be said of it: a coroutine's may be blocked."""
        if stack := stacks.of_thread(watch.thread_id):
            return stack, ""
        if isinstance(message.run, CoroutineRun) and (coroutine := message.run.suspended) is not None:
            return stacks.of_coroutine(coroutine), "; it has not ended when it was cancelled"
        stack = stacks.of_thread(self._loop.thread_id)
        return stack, f"; the event loop is blocked by {stacks.place_of(stack)}" if stack else ""

    # -- for the main thread -------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> str:
        """Return the reason why a handler hangs that ran past its limit at ``now``, or an empty text.

        It takes no lock of a claim, because the holder may be waiting for the server.
        """
        for claim_run in self.claims():
            for watch in claim_run.watches:
                running, ran_s = watch.running, now - watch.running_since
                if running is None or ran_s <= watch.time_limit_s:
                    continue
                message = next((one for one in claim_run.claim.messages if one.offset == running), None)
                if message is not None:
                    return _hang_text(claim_run, watch, message, ran_s)
        return ""

    def began_at(self, thread_id: int | None, now: float) -> float:
        """Return ``now`` if a thread runs a message, else when its last one of a claim that it works on began, or 0."""
        with self._mutex:
            claim_run = self._claims.get(thread_id or 0)
        if claim_run is None:
            return 0.0
        return now if claim_run.watch.running is not None else claim_run.watch.running_since

    def give_everything_back(self, channel: Channel) -> None:
        """Return all claims, running messages included, before the process dies with its handlers running.

        Args:
            channel: not that of a thread, which may be using it.
        """
        for claim_run in self.claims():
            try:
                claim_run.give_back(channel)
            except (StoreError, EmsError) as error:
                log.warning("could not give back the claim of %s: %s", claim_run.claim.place, error)


def _hang_text(claim_run: ClaimRun, watch: Watch, message: Message, ran_s: float) -> str:
    task = claim_run.attempts.task_of(message)
    place = f"{message.topic}/{message.partition}@{message.offset}"
    return f"{task} ran for {ran_s:.1f} s, over its limit of {watch.time_limit_s:g} s ({place})"
