"""A claim while it is being worked on: what is done, what runs, what failed and is not yet written down.

The consumer thread works through it; the completer writes its progress down meanwhile and watches the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from emsworker.core.clock import ticks
from emsworker.core.errors import FenceLost
from emsworker.core.model import Care, Claim, ClaimSource, Failure, Message
from emsworker.store import progress
from emsworker.store.progress import Flush
from emsworker.store.results import ResultRow
from emsworker.store.session import Session
from emsworker.task import HandlerOptions

_NO_LIMITS = HandlerOptions()
_HEAVY_BYTES = 1 << 20


class Work:
    """Progress of one claim, shared by its consumer and the completer.

    Args:
        claim: what is being worked on.
        topic_id: of its topic.
        timeout_s: the group's timeout.
        thread_id: of the consumer, for the soft time limit.
    """

    def __init__(self, claim: Claim, topic_id: int, timeout_s: float, thread_id: int) -> None:
        self.claim = claim
        self.topic_id = topic_id
        self.thread_id = thread_id
        self.group_timeout_s = timeout_s
        self.lock = threading.Lock()
        self._flushing = threading.Lock()
        self.done_to = claim.done_to
        self.last = claim.hi  # the claim may be cut shorter while it runs
        self.lost = False  # it is somebody else's, or finished: nothing more is to be written
        self.running: int | None = None
        self.running_through = claim.done_to  # a batch handler runs several messages at once
        self.running_since = 0.0
        self.options = _NO_LIMITS
        self.soft_limit_sent = False
        self.interruptible = False  # a handler runs, and nothing of ours
        self.began_at = ticks()
        self._failures = [Failure.gone(offset, attempt) for offset, attempt in claim.gone]
        self._results: list[ResultRow] = []
        self._result_bytes = 0
        self._done_retries: list[tuple[int, int]] = []
        self._written_to = claim.done_to
        self._told_timeout_s = timeout_s
        self.written_at = ticks()

    # -- the consumer's side -------------------------------------------------------------------------------------------

    def start(self, messages: list[Message], options: HandlerOptions, now: float) -> bool:
        """Begin to run messages; false if the claim was lost or given back before them."""
        with self.lock:
            if self.lost or messages[-1].offset > self.last:
                return False
            self.running = messages[0].offset
            self.running_through = messages[-1].offset
            self.running_since = now
            self.options = options
            self.soft_limit_sent = self.interruptible = False
            return True

    def done(
        self,
        messages: list[Message],
        failures: list[Failure],
        results: Sequence[ResultRow] = (),
        following: Message | None = None,
    ) -> None:
        """What ran together has ended; what is to become of the failed ones is written with the next flush.

        It is one step: the completer must never see a part of a batch as finished and give the rest back.

        Args:
            following: of coroutines: the first that still runs.
        """
        failed = {failure.offset for failure in failures}
        with self.lock:
            if self.claim.source is ClaimSource.RETRY:
                self._done_retries += [(m.offset, m.attempt) for m in messages if m.offset not in failed]
            self._failures += failures
            self._results += results
            self._result_bytes += _bytes_of(results)
            self._ended(messages)
            self.running = following.offset if following is not None else None

    def _ended(self, messages: list[Message]) -> None:
        self.running = None
        self.done_to = messages[-1].offset

    def rewind(self) -> None:
        """Nothing is running any more, though nothing is done: a batch is about to be run one by one."""
        with self.lock:
            self.running = None

    @property
    def completed(self) -> int:
        """How many of its messages have ended, well or not."""
        return sum(message.offset <= self.done_to for message in self.claim.messages)

    def finish(self) -> Flush | None:
        """All is done: what the next claim is to write along; ``None`` if the claim was lost."""
        with self._flushing, self.lock:
            if self.lost:
                return None
            self.running = None
            self.done_to = self.last
            self.lost = True
            return self._flush(finished=True)

    def unfinished(self) -> Flush | None:
        """The claim ends early, over a new connection: what is known to be done, for a last flush."""
        with self._flushing, self.lock:
            if self.lost:
                return None
            self.running = None
            self.lost = True
            return self._flush()

    # -- writing down --------------------------------------------------------------------------------------------------

    def _flush(self, *, finished: bool = False, done_to: int | None = None) -> Flush:
        return Flush(
            self.claim,
            self.topic_id,
            self.done_to if done_to is None else done_to,
            self._timeout_s,
            running=self.running if self.claim.care is Care.ALONE else None,
            finished=finished,
            done_offsets=tuple(self._done_retries),
            failures=tuple(self._failures),
            results=tuple(self._results),
            was=self._written_to,
        )

    @property
    def _timeout_s(self) -> float:
        return self.options.timeout_s or self.group_timeout_s

    @property
    def time_limit_s(self) -> float:
        """How long the running message may run before it is taken from its thread."""
        return min(self._timeout_s, self.options.hard_time_limit_s or self._timeout_s)

    @property
    def dirty(self) -> bool:
        """Whether there is something to write down."""
        return not self.lost and (
            self.done_to != self._written_to
            or bool(self._failures)
            or (self.running is not None and self._timeout_s != self._told_timeout_s)
        )

    @property
    def heavy(self) -> bool:
        """Whether so many bytes of results wait that they must not wait for more."""
        return self._result_bytes > _HEAVY_BYTES

    def write_down(self, session: Session) -> None:
        """Flush the progress so far.

        Raises:
            FenceLost: the claim is somebody else's; ``lost`` is set.
            ConnectionLost: it is not known whether it was written; it will be written again.
        """
        with self._flushing:
            with self.lock:
                if self.lost:
                    return
                flush = self._flush()
            self._send(session, flush)

    def _send(self, session: Session, flush: Flush) -> None:
        try:
            progress.flush(session, flush)
        except FenceLost:
            self.lost = True
            raise
        self.written(flush)

    def written(self, flush: Flush) -> None:
        """What ``flush`` holds has been committed."""
        with self.lock:
            del self._failures[: len(flush.failures)]
            self._result_bytes -= _bytes_of(self._results[: len(flush.results)])
            del self._results[: len(flush.results)]
            del self._done_retries[: len(flush.done_offsets)]
            self._written_to = flush.done_to
            self._told_timeout_s = flush.timeout_s
            self.written_at = ticks()

    def commit(
        self,
        messages: list[Message],
        failures: list[Failure],
        send: Callable[[Flush], None],
        results: Sequence[ResultRow] = (),
    ) -> None:
        """Commit what a transactional handler did, together with everything so far and the end of its messages.

        Nobody else may write this claim's progress meanwhile: a flush that was made before and arrives after the
        commit would move the watermark back, and the effect would happen twice.

        Args:
            send: commits a flush.

        Raises:
            FenceLost: the claim is somebody else's by now.
        """
        with self._flushing:
            if self.lost:
                raise FenceLost("the claim was given back while its handler ran")
            flush = self._transactional_flush(messages, failures, results)
            send(flush)
            self.written(flush)
            with self.lock:
                self._ended(messages)

    def _transactional_flush(
        self, messages: list[Message], failures: list[Failure], results: Sequence[ResultRow]
    ) -> Flush:
        failed = {failure.offset for failure in failures}
        own = (
            [(m.offset, m.attempt) for m in messages if m.offset not in failed]
            if self.claim.source is ClaimSource.RETRY
            else []
        )
        with self.lock:
            flush = self._flush(done_to=messages[-1].offset)
        return replace(
            flush,
            done_offsets=(*flush.done_offsets, *own),
            failures=(*flush.failures, *failures),
            results=(*flush.results, *results),
        )

    # -- giving back ---------------------------------------------------------------------------------------------------

    def give_back(self, session: Session) -> None:
        """Return all that is not done, also what is running if the process is about to die; this ends the claim.

        Raises:
            FenceLost: the claim is somebody else's; ``lost`` is set.
        """
        with self._flushing:
            with self.lock:
                if self.lost:
                    return
                flush = self._flush(finished=True)
            self._cut(session, flush)

    def share_rest(self, session: Session) -> None:
        """Return what comes after the running messages, so that others can take it.

        Raises:
            FenceLost: the claim is somebody else's; ``lost`` is set.
        """
        with self._flushing:
            with self.lock:
                if self.lost or self.running is None or self.running_through >= self.claim.hi:
                    return
                self.last = self.running_through
                flush = self._flush()
            self._cut(session, flush)

    def give_up(self, session: Session, since: float, failure: Failure | None) -> bool:
        """The handler that began at ``since`` hangs: write ``failure`` down for its message and give back the rest.

        Args:
            failure: without it, of a batch, all is given back, to be run one by one.

        Returns:
            false if the handler has come back meanwhile.

        Raises:
            FenceLost: the claim is somebody else's; ``lost`` is set.
        """
        with self._flushing:
            with self.lock:
                if self.running is None or self.running_since != since:
                    return False
                if self.lost:
                    return True
                flush = self._flush(finished=True)
            if failure is not None:
                flush = replace(flush, done_to=failure.offset, failures=(*flush.failures, failure))
            self._cut(session, flush, Care.NONE if failure is not None else Care.ALONE)
            return True

    def _cut(self, session: Session, flush: Flush, care: Care = Care.NONE) -> None:
        """End the claim after the flush's progress, or after what runs; the caller holds ``_flushing``."""
        last = flush.done_to if flush.finished else self.last
        try:
            progress.give_back(session, flush, last, care)
        except FenceLost:
            self.lost = True
            raise
        self.written(flush)
        self.claim.hi = self.last = last
        self.lost = flush.finished


def _bytes_of(results: Sequence[ResultRow]) -> int:
    return sum(len(row.body or b"") for row in results)
