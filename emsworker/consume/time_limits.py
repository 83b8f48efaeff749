"""The watchdog of time limits: ends handlers that run for too long, and shares claims that take long.

- Soft limits raise in the handler.
- Hard limits and timeouts move the message to retry and replace the process, because a thread that hangs cannot be
  ended otherwise.
- If a message runs long, the rest of its claim is given back, so that slow tasks do not hoard messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from emsworker.broker.channel import Channel
from emsworker.consume.claim_progress import Ended
from emsworker.consume.claim_run import ClaimRun, end_of
from emsworker.consume.gate import IsolationGate
from emsworker.consume.keyed_run import KeyedRun
from emsworker.consume.watch import Watch
from emsworker.core.errors import FenceLost, TimeLimitExceeded
from emsworker.core.model import Message, Order

_HOARD_S = 1.0


class TimeLimits:
    """Enforces the limits of what a process runs.

    Args:
        gate: the process's gate for poison isolation.
        on_hang: called with a reason if a handler's thread hangs past its limit.

    Attributes:
        hanging: threads that will not come back.
    """

    def __init__(self, gate: IsolationGate, on_hang: Callable[[str], None]) -> None:
        self._gate, self._on_hang = gate, on_hang
        self.hanging: set[int] = set()

    def enforce(self, claim_run: ClaimRun, channel: Channel, now: float) -> None:
        """Check a claim once.

        Raises:
            FenceLost: it has another owner.
        """
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
                ended = _timed_out(claim_run, lane, message, now - since)
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
        ended, alone, was_lost = (
            _timed_out(claim_run, watch, messages[0], now - since),
            len(messages) == 1,
            claim_run.closed,
        )
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
        self._on_hang(hang_text(claim_run, watch, ended.message, ended.ran_s))


def _timed_out(claim_run: ClaimRun, watch: Watch, message: Message, ran_s: float) -> Ended:
    error = TimeLimitExceeded(f"ran for {ran_s:.1f} s; its limit is {watch.time_limit_s:g} s")
    failure = claim_run.attempts.decide(message, watch.options, error, ran_s, str(error), told=False)
    return Ended(message, ran_s, failure, error=error)


def watches_of(claim_run: ClaimRun) -> Sequence[Watch]:
    """Return the watches over the threads that run a claim."""
    return claim_run.lanes if isinstance(claim_run, KeyedRun) else [claim_run.watch]


def hang_text(claim_run: ClaimRun, watch: Watch, message: Message, ran_s: float) -> str:
    """Say which message ran over which limit."""
    task = claim_run.attempts.task_of(message)
    place = f"{message.topic}/{message.partition}@{message.offset}"
    return f"{task} ran for {ran_s:.1f} s, over its limit of {watch.time_limit_s:g} s ({place})"
