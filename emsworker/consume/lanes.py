"""Claims whose messages run in order by key: the keys are distributed over lanes, each with a thread.

A lane has a queue in memory, in the order of the stream. A message that is to be retried holds up its key: later
messages of the key are blocked. The acked offset follows the lowest message that has not ended. If a claim is given
back early, messages that have not ended but lie below others that have are blocked too, so that nothing that has ended
is repeated. If a message takes long, running messages are detached, and the partition is free for others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from dataclasses import replace

from emsworker.consume.coroutines import guarded
from emsworker.consume.lanework import LaneEntry, LaneWork
from emsworker.consume.watch import NO_LIMITS, Lane
from emsworker.consume.work import Ended
from emsworker.core.model import Message
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.task import Handler

_SLACK_S = 5.0
_WORTH_A_THREAD_S = 0.001  # shorter handlers run faster one after another than in threads that share an interpreter

Resolved = Handler | BaseException


class Lanes:
    """Runs claims by key; used by one consumer thread.

    Args:
        width: the most lanes that a claim gets.
        pool: the process's pool, which gives each lane a thread.
        resolve: returns the handler of a message, or the reason why it has none.
        attempt: runs one message under the watch of its lane, and returns its outcome.
        may_go_on: checked before every message.
    """

    def __init__(
        self,
        width: int,
        pool: Pool,
        resolve: Callable[[Message], Resolved],
        attempt: Callable[[LaneWork, Message, Resolved, Lane], Ended],
        may_go_on: Callable[[], bool],
    ) -> None:
        self._width = width
        self._pool = pool
        self._resolve = resolve
        self._attempt = attempt
        self._may_go_on = may_go_on
        self._each_s = _WORTH_A_THREAD_S

    def run(self, work: LaneWork) -> bool:
        """Work through a claim; return True if all its messages have ended."""
        if not work.claim.messages:
            return True
        lanes = self._deal(work)
        if not work.start_lanes(lanes, self._limits(work)):
            return False
        for lane in lanes:
            self._pool.submit(self._follow, work, lane)
        for lane in lanes:
            lane.ended.wait()
            if lane.error is not None:
                raise lane.error
        if count := sum(lane.count for lane in lanes):
            self._each_s = sum(lane.ran_s for lane in lanes) / count
        return work.all_ended

    def _deal(self, work: LaneWork) -> list[Lane]:
        places: dict[bytes | int, int] = {}
        width = min(self._width, len(work.claim.messages)) if self._each_s >= _WORTH_A_THREAD_S else 1
        lanes = [Lane(work.group_timeout_s) for _ in range(width)]
        for message in work.claim.messages:
            key = message.offset if message.key_bytes is None else message.key_bytes
            lanes[places.setdefault(key, len(places) % len(lanes))].queue.append(message)
        return [lane for lane in lanes if lane.queue]

    def _limits(self, work: LaneWork) -> HandlerOptions:
        """Return the limits of the whole claim, for the beat if the process cannot act; each lane has its own."""
        handlers = [self._resolve(message) for message in work.claim.messages]
        times = [h.options.timeout_s or work.group_timeout_s for h in handlers if isinstance(h, Handler)]
        return replace(NO_LIMITS, timeout_s=max(times, default=work.group_timeout_s) + _SLACK_S)

    def _limits_of(self, handler: Resolved, work: LaneWork) -> HandlerOptions:
        if isinstance(handler, BaseException):
            return NO_LIMITS
        return guarded(handler.options, work.group_timeout_s)[1] if handler.is_async else handler.options

    def _follow(self, work: LaneWork, lane: Lane) -> None:
        lane.thread_id = threading.get_ident()
        try:
            for message in lane.queue:
                if not self._may_go_on():
                    break
                handler = self._resolve(message)
                entry = work.enter(lane, message, self._limits_of(handler, work))
                if entry is LaneEntry.BLOCKED:
                    continue
                if entry is LaneEntry.STOP:
                    break
                ended = self._attempt(work, message, handler, lane)
                if not lane.stop():
                    return
                work.end(ended)
        except BaseException as error:
            lane.error = error
        finally:
            lane.ended.set()
