"""Claims whose messages run in order by key: the keys are distributed over lanes, each with a thread.

A lane has a queue in memory, in the order of the stream. A message that is to be retried holds up its key: later
messages of the key are blocked. The acked offset follows the lowest message that has not ended. If a claim is given
back early, messages that have not ended but lie below others that have are blocked too, so that nothing that has ended
is repeated. If a message takes long, running messages are detached, and the partition is free for others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from emsworker.consume.attempts import GroupAttempts, begin_running, end_running
from emsworker.consume.claim_progress import ClaimWrite, Ended
from emsworker.consume.claim_run import ClaimRun, ThreadRun
from emsworker.consume.context import RunContext
from emsworker.consume.coroutines import thread_limits
from emsworker.consume.watch import NO_LIMITS, Watch
from emsworker.core.model import Claim, Message
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.tasks.handler import Handler
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.route import PassedOver

_SLACK_S = 5.0
_WORTH_A_THREAD_S = 0.001  # shorter handlers run faster one after another than in threads that share an interpreter

Resolved = Handler | BaseException


class Lane(Watch):
    """A part of a claim's keys, in the order of the stream, and the thread that runs their messages.

    Attributes:
        ended: set when it has finished, has stopped, or hangs for good.
        error: an error that must end the process.
        count, ran_s: the number of messages that have been run, and the seconds that this took.
    """

    def __init__(self, group_timeout_s: float) -> None:
        super().__init__(0, group_timeout_s)
        self.queue: list[Message] = []
        self.ended = forks.Event()
        self.error: BaseException | None = None
        self.count, self.ran_s = 0, 0.0
        self.message: Message | None = None

    def start(self, message: Message, options: HandlerOptions) -> None:
        """Begin to run a message."""
        with self.lock:
            self.begin([message], options, ticks())
            self.message = message

    @property
    def running_messages(self) -> list[Message]:
        """The message that runs, if any."""
        return [] if self.running is None or self.message is None else [self.message]

    def stop(self) -> bool:
        """Mark the message as ended; return false if it was given up meanwhile."""
        with self.lock:
            self.running = None
            self.count += 1
            self.ran_s += ticks() - self.running_since
            return not self.ended.is_set()

    def give_up(self, since: float) -> Message | None:
        """Abandon the thread and the message that it began at ``since``, unless that has just ended."""
        with self.lock:
            if not self.is_over(since):
                return None  # it has returned, or asked for more time
            self.running = None
            self.ended.set()
            return self.message


class LaneEntry(Enum):
    """Action of a lane for its next message: run it, skip it because it is blocked, or stop."""

    RUN = 0
    BLOCKED = 1
    STOP = 2


class KeyedRun(ClaimRun):
    """Work on a claim in lanes, shared by the lanes, the consumer and the flusher."""

    def __init__(
        self, claim: Claim, topic_id: int, timeout_s: float, thread_id: int, attempts: GroupAttempts | None = None
    ) -> None:
        super().__init__(claim, topic_id, timeout_s, thread_id, attempts)
        self.lanes: list[Lane] = []
        self._size = len(claim.messages)
        self._running: dict[int, Message] = {}  # by offset
        self.detached = False  # only messages that ran too long for the others to wait are left

    def start_lanes(self, lanes: list[Lane], limits: HandlerOptions) -> bool:
        """Begin to run all messages in their lanes; return False if the claim was lost before."""
        if not self.start(self.claim.messages, limits, ticks()):
            return False
        self.lanes = lanes
        return True

    def enter(self, lane: Lane, message: Message, options: HandlerOptions) -> LaneEntry:
        """Decide what a lane does with its next message, and note that it runs if so."""
        with self.lock:
            if self.closed or self.detached:
                return LaneEntry.STOP
            if self.progress.waits(message):
                self._record(Ended.untouched(message))
                return LaneEntry.BLOCKED
            self._running[message.offset] = message
            lane.start(message, options)
            message.run = ThreadRun(self, lane, message, lane.running_since)
            return LaneEntry.RUN

    def end(self, ended: Ended) -> None:
        """Record the end of a message, perhaps before lower ones; its outcome counts once all those have ended."""
        with self.lock:
            if not self.closed:
                self._record(ended)

    def leave(self, lane: Lane, ended: Ended) -> bool:
        """Record the end of the message that a lane has run; return False if it was given up meanwhile."""
        is_there = lane.stop()
        if is_there:
            self.end(ended)
        return is_there

    def _record(self, ended: Ended) -> None:
        self._running.pop(ended.message.offset, None)
        self.progress.end([ended])
        if self.progress.all_ended:
            self.watch.running = None

    @property
    def watches(self) -> Sequence[Watch]:
        return self.lanes

    @property
    def started(self) -> int:
        """Number of messages that were started: all, because each lane goes on by itself."""
        return self._size

    @property
    def needed_s(self) -> float:
        """Seconds before recovery may treat the claim as stuck; the longest extension of a lane counts for all."""
        return self.watch.timeout_s + max((lane.extension_s for lane in self.lanes), default=0.0)

    def _share(self) -> ClaimWrite | None:
        """Keep only the running messages, in a claim beside the stream, and free the partition for others.

        A running message holds up its own key, as does one that is to be retried.
        """
        if self.detached or not self._running:
            return None
        self.detached = True
        return self.progress.give_back(self._running, self.needed_s)


class Lanes:
    """Runs claims by key; used by one consumer thread.

    Args:
        context: of the executor.
        resolve: returns the handler of a message, or the reason why it has none.
        attempt: runs one message under the watch of its lane, and returns its end.
    """

    def __init__(
        self,
        context: RunContext,
        resolve: Callable[[Message], Resolved | PassedOver],
        attempt: Callable[[KeyedRun, Message, Resolved | PassedOver, Lane], Ended],
    ) -> None:
        self._width = context.lanes
        self._pool = context.pool
        self._resolve = resolve
        self._attempt = attempt
        self._may_go_on, self._gate = context.may_go_on, context.gate
        self._each_s = _WORTH_A_THREAD_S

    def run(self, keyed_run: KeyedRun) -> bool:
        """Work through a claim; return True if all its messages have ended."""
        if not keyed_run.claim.messages:
            return True
        lanes = self._deal(keyed_run)
        if not keyed_run.start_lanes(lanes, self._limits(keyed_run)):
            return False
        for lane in lanes:
            self._pool.submit(self._follow, keyed_run, lane)
        for lane in lanes:
            lane.ended.wait()
            if lane.error is not None:
                raise lane.error
        if count := sum(lane.count for lane in lanes):
            self._each_s = sum(lane.ran_s for lane in lanes) / count
        return keyed_run.progress.all_ended

    def _deal(self, keyed_run: KeyedRun) -> list[Lane]:
        places: dict[bytes | int, int] = {}
        width = min(self._width, len(keyed_run.claim.messages)) if self._each_s >= _WORTH_A_THREAD_S else 1
        lanes = [Lane(keyed_run.watch.group_timeout_s) for _ in range(width)]
        for message in keyed_run.claim.messages:
            key = message.offset if message.key_bytes is None else message.key_bytes
            lanes[places.setdefault(key, len(places) % len(lanes))].queue.append(message)
        return [lane for lane in lanes if lane.queue]

    def _limits(self, keyed_run: KeyedRun) -> HandlerOptions:
        """Return the limits of the whole claim, for the beat if the process cannot act; each lane has its own."""
        handlers = [self._resolve(message) for message in keyed_run.claim.messages]
        times = [h.options.timeout_s or keyed_run.watch.group_timeout_s for h in handlers if isinstance(h, Handler)]
        return replace(NO_LIMITS, timeout_s=max(times, default=keyed_run.watch.group_timeout_s) + _SLACK_S)

    def _follow(self, keyed_run: KeyedRun, lane: Lane) -> None:
        lane.thread_id = threading.get_ident()
        before = begin_running(lambda: keyed_run.attempts.fields_of(lane.running_messages))
        try:
            for message in lane.queue:
                if not self._may_go_on() or self._gate.closed:
                    break
                handler = self._resolve(message)
                limits = thread_limits(handler, keyed_run.watch.group_timeout_s)
                entry = keyed_run.enter(lane, message, limits)
                if entry is LaneEntry.BLOCKED:
                    continue
                if entry is LaneEntry.STOP:
                    break
                if not keyed_run.leave(lane, self._attempt(keyed_run, message, handler, lane)):
                    return
        except BaseException as error:
            lane.error = error
        finally:
            end_running(before)
            lane.ended.set()
