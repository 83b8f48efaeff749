"""A claim while it is being worked on: what is done, what runs, what failed and is not yet written down.

The consumer thread works through it; the completer writes its progress down meanwhile and watches the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from emsworker.core.clock import ticks
from emsworker.core.errors import FenceLost, RunEnded
from emsworker.core.model import Care, Claim, ClaimSource, Failure, Message
from emsworker.core.run import Report
from emsworker.store import progress
from emsworker.store.progress import Flush
from emsworker.store.results import ResultRow
from emsworker.store.session import Session
from emsworker.task import HandlerOptions

_NO_LIMITS = HandlerOptions()
_HEAVY_BYTES = 1 << 20
_REPORT_S = 0.5


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
        self.extension_s = 0.0  # how much longer the handler has asked to run
        self.soft_limit_sent = False
        self.interruptible = False  # a handler runs, and nothing of ours
        self.began_at = ticks()
        self._failures = [Failure.gone(offset, attempt) for offset, attempt in claim.gone]
        self._results: list[ResultRow] = []
        self._result_bytes = 0
        self._done_retries: list[tuple[int, int]] = []
        self._reports: dict[bytes, Report] = {}  # not yet written
        self._reporting: set[bytes] = set()  # uids of running messages that have told something
        self._reports_ended: list[bytes] = []
        self._reported_at = 0.0
        self._given_up = False
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
            self.extension_s = 0.0
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
        if self._reporting:
            for message in messages:
                self._reports.pop(message.uid, None)
            ended = self._reporting.intersection(message.uid for message in messages)
            self._reporting -= ended
            self._reports_ended += ended

    def rewind(self) -> None:
        """Nothing is running any more, though nothing is done: a batch is about to be run one by one."""
        with self.lock:
            self.running = None

    # -- what the handler asks for and tells ---------------------------------------------------------------------------

    def time_left(self, since: float) -> float:
        """Seconds until the first limit of the run that began at ``since``; 0 if it has ended."""
        with self.lock:
            return max(0.0, since + self._first_limit_s - ticks()) if self._runs(since) else 0.0

    def extend(self, since: float, seconds: float) -> None:
        """Move all limits of the run that began at ``since``, so that the first is at least so far away.

        Raises:
            RunEnded: it has ended, or its time was over.
        """
        with self.lock:
            if not self._runs(since):
                raise RunEnded("the time of this run was over; the message is run elsewhere")
            self.extension_s += max(0.0, ticks() + seconds - since - self._first_limit_s)

    def extend_until(self, end: float) -> None:
        """The same for one of several coroutines: nothing before ``end`` is too late for the claim."""
        with self.lock:
            self.extension_s = max(self.extension_s, self.extension_s + end - self.running_since - self.time_limit_s)

    def report(self, report: Report) -> None:
        """Keep the last report of a running message for the next flush.

        Raises:
            RunEnded: the claim is somebody else's by now.
        """
        with self.lock:
            if self.lost or self._given_up:
                raise RunEnded("the message is run elsewhere by now")
            self._reports[report.uid] = report
            self._reporting.add(report.uid)

    def _runs(self, since: float) -> bool:
        return self.running is not None and self.running_since == since and not self.lost and not self._given_up

    @property
    def _first_limit_s(self) -> float:
        soft_s = self.options.soft_time_limit_s
        if soft_s is None or self.soft_limit_sent:
            return self.time_limit_s
        return min(self.time_limit_s, soft_s + self.extension_s)

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
            reports=tuple(self._reports.values()),
            reports_ended=tuple(self._reports_ended),
            was=self._written_to,
        )

    @property
    def _timeout_s(self) -> float:
        return (self.options.timeout_s or self.group_timeout_s) + self.extension_s

    @property
    def time_limit_s(self) -> float:
        """How long the running message may run before it is taken from its thread."""
        hard_s = self.options.hard_time_limit_s
        return self._timeout_s if hard_s is None else min(self._timeout_s, hard_s + self.extension_s)

    @property
    def dirty(self) -> bool:
        """Whether there is something to write down."""
        return not self.lost and (
            self.done_to != self._written_to
            or bool(self._failures)
            or (self.running is not None and self._timeout_s != self._told_timeout_s)
        )

    @property
    def urgent(self) -> bool:
        """Whether the beat must hear at once that the handler has asked for more time."""
        return not self.lost and self.running is not None and self._timeout_s > self._told_timeout_s

    @property
    def has_news(self) -> bool:
        """Whether a handler has told its progress, and the last report is old enough to be followed by another."""
        return not self.lost and bool(self._reports) and ticks() - self._reported_at >= _REPORT_S

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
            del self._reports_ended[: len(flush.reports_ended)]
            for report in flush.reports:
                self._reported_at = ticks()
                if self._reports.get(report.uid) is report:
                    del self._reports[report.uid]
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
                if self.running is None or self.running_since != since or ticks() - since <= self.time_limit_s:
                    return False  # it has come back, or asked for more time
                self._given_up = True
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
