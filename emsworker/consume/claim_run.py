"""A claim that is being worked on: what is done, what runs, and what failed and is not flushed yet.

The consumer thread runs its messages; meanwhile the completer flushes its progress and enforces time limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from emsworker.broker.channel import Channel, Send
from emsworker.consume.attempts import AttemptLog
from emsworker.consume.watch import Watch
from emsworker.core.errors import FenceLost, RunEnded
from emsworker.core.flush import Flush, ResultRow
from emsworker.core.model import Claim, ClaimSource, Failure, Isolation, Message, Order
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import Mutex
from emsworker.core.run import ProgressReport, Run, check_span
from emsworker.tasks.middleware import RunEnd, RunOutcome
from emsworker.tasks.options import HandlerOptions

_HEAVY_BYTES = 1 << 20
_REPORT_PAUSE_S = 0.5


class Ended(NamedTuple):
    """The end of a message.

    Attributes:
        ran_s: the seconds that it ran.
        failure: set if the run has failed.
        results: the results to store.
        error: the error of a failure, for the hooks; a batch may give only a text.
        blocked: it was not run, because an earlier message of its key must be retried first.
    """

    message: Message
    ran_s: float = 0.0
    failure: Failure | None = None
    results: Sequence[ResultRow] = ()
    error: BaseException | None = None
    blocked: bool = False


def end_of(ended: Ended) -> RunEnd:
    """Return the end of a run as brackets of the middleware get it."""
    failure = ended.failure
    if failure is None:
        return RunEnd(ended.message, RunOutcome.DONE, ended.ran_s)
    outcome = RunOutcome.IGNORED
    if failure.dead is not None:
        outcome = RunOutcome.DEAD
    elif failure.retry_in_s is not None:
        outcome = RunOutcome.RETRY
    return RunEnd(ended.message, outcome, ended.ran_s, ended.error, failure.retry_in_s, failure.dead)


class ProgressBuffer:
    """The last report of each running message; the owner holds ``lock`` around all methods but :meth:`tell`.

    Attributes:
        closed: the claim belongs to another client, or is finished.
    """

    def __init__(self, lock: Mutex) -> None:
        self._lock = lock
        self._fresh: dict[bytes, ProgressReport] = {}
        self._told: set[bytes] = set()  # uids of running messages that have reported
        self._stale: list[bytes] = []  # uids of those that have ended since
        self._written_at = 0.0
        self.closed = False

    def tell(self, report: ProgressReport) -> None:
        """Keep the last report of a running message for the next flush.

        Raises:
            RunEnded: the message is run elsewhere by now.
        """
        with self._lock:
            if self.closed:
                raise RunEnded("the message is run elsewhere by now")
            self._fresh[report.uid] = report
            self._told.add(report.uid)

    def ended(self, ended: Sequence[Ended]) -> None:
        """Schedule the reports of messages that no longer run for removal."""
        if not self._told:
            return
        uids = self._told.intersection([one.message.uid for one in ended])
        self._told -= uids
        self._stale += uids
        for uid in uids:
            self._fresh.pop(uid, None)

    @property
    def is_due(self) -> bool:
        """True if there is a report, and the last write is long enough ago."""
        return bool(self._fresh) and ticks() - self._written_at >= _REPORT_PAUSE_S

    @property
    def fresh(self) -> tuple[ProgressReport, ...]:
        """Reports to write."""
        return tuple(self._fresh.values())

    @property
    def stale(self) -> tuple[bytes, ...]:
        """Uids whose reports are to be removed."""
        return tuple(self._stale)

    def written(self, fresh: Sequence[ProgressReport], stale: Sequence[bytes]) -> None:
        """Drop reports and removals that have been committed."""
        del self._stale[: len(stale)]
        for report in fresh:
            self._written_at = ticks()
            if self._fresh.get(report.uid) is report:
                del self._fresh[report.uid]


class ClaimRun(Watch):
    """Progress of one claim, shared by its consumer and the completer.

    Args:
        claim: the claim that is being worked on.
        topic_id: of its topic.
        timeout_s: the group's timeout.
        thread_id: of the consumer, for the soft time limit.
        attempts: logs what fails.
    """

    def __init__(
        self, claim: Claim, topic_id: int, timeout_s: float, thread_id: int, attempts: AttemptLog | None = None
    ) -> None:
        super().__init__(thread_id, timeout_s)
        self.attempts = attempts or AttemptLog()
        self.claim = claim
        self.topic_id = topic_id
        self._flushing = forks.Lock()
        self.acked_to = claim.acked_to
        self.last = claim.hi  # the claim may be cut shorter while it runs
        self.lost = False  # it belongs to another client, or is finished: nothing more may be written
        self.running_through = claim.acked_to
        self._blocked: list[tuple[int, bytes | None]] = []
        self._blocked_keys = set(claim.blocked_keys)
        self.held = False  # if a partition runs in order: a message must be retried before the next one
        self.began_at = ticks()
        self._failures = [Failure.gone(offset, attempt) for offset, attempt in claim.gone]
        self._results: list[ResultRow] = []
        self._result_bytes = 0
        self._done_retries: list[tuple[int, int, int]] = []
        self.progress_buffer = ProgressBuffer(self.lock)
        self._given_up = False
        self.named = False  # it has its process to itself: what runs is recorded, and charged if the process dies
        self._may_be_named = False
        self._written_to = claim.acked_to
        self._told_timeout_s = timeout_s
        self.written_at = ticks()

    # -- the consumer's side -------------------------------------------------------------------------------------------

    def start(self, messages: list[Message], options: HandlerOptions, now: float) -> bool:
        """Begin to run messages; false if the claim was lost or given back before them."""
        with self.lock:
            if self.lost or messages[-1].offset > self.last:
                return False
            self._given_up = self.progress_buffer.closed = False
            self.begin(messages, options, now)
            return True

    def waits(self, message: Message) -> bool:
        """Return whether an earlier message of its key must be retried first."""
        return message.key_bytes is not None and message.key_bytes in self._blocked_keys

    def running_fields(self) -> dict[str, Any]:
        """Return the fields of log records about what runs, for the thread that runs it."""
        running = self.running
        if running is None:
            return {}
        return self.attempts.fields_of([m for m in self.claim.messages if running <= m.offset <= self.running_through])

    def block(self, message: Message) -> None:
        """Mark a message as blocked: an earlier one of its key must be retried first."""
        with self.lock:
            self._settle(Ended(message, blocked=True))

    def done(self, ended: Sequence[Ended], following: Message | None = None) -> None:
        """Mark messages that ran together as ended; their failures are written with the next flush.

        This is one step: the completer must never see a part of a batch as finished and give the rest back.

        Args:
            following: of coroutines: the first message that still runs.
        """
        is_retry = self.claim.source is ClaimSource.RETRY
        with self.lock:
            for one in ended:
                if is_retry or one.failure is not None or one.results:  # else its offset says it all
                    self._note_order(one)
                    self._note(one)
            self.progress_buffer.ended(ended)
            self.acked_to = ended[-1].message.offset
            self.running = following.offset if following is not None else None

    def _settle(self, ended: Ended) -> None:
        self._note(ended)
        self.progress_buffer.ended([ended])
        self.acked_to = ended.message.offset

    def _note(self, ended: Ended) -> None:
        message = ended.message
        if ended.blocked:
            self._blocked.append((message.offset, message.key_bytes))
        elif ended.failure is not None:
            self._failures.append(ended.failure)
        elif self.claim.source is ClaimSource.RETRY:
            self._done_retries.append(_done_retry(ended))
        if ended.results:
            self._results += ended.results
            self._result_bytes += _bytes_of(ended.results)

    def _leave_no_gaps(self) -> None:
        """Close gaps before the claim is given back; a claim that runs in order has none."""

    def _note_order(self, ended: Ended) -> None:
        if self.claim.order is Order.NONE or ended.failure is None or ended.failure.retry_in_s is None:
            return
        if self.claim.order is Order.PARTITION:
            self.held = True
        if ended.message.key_bytes is not None:
            self._blocked_keys.add(ended.message.key_bytes)

    def rewind(self) -> None:
        """Mark that nothing runs, though nothing is done: a batch is about to be run one by one."""
        with self.lock:
            self.running = None

    def passed(self, finished: bool) -> int:
        """Return the number of offsets that it has passed, including those with nothing to run.

        Args:
            finished: the whole claim has been run.
        """
        if self.claim.source is ClaimSource.RETRY:
            return sum(message.offset <= self.acked_to for message in self.claim.messages)
        return (self.last if finished else self.acked_to) - self.claim.acked_to

    @property
    def completed(self) -> int:
        """The number of its messages that have ended, successfully or not."""
        return sum(message.offset <= self.acked_to for message in self.claim.messages)

    @property
    def started(self) -> int:
        """The number of its messages that were started, as far as is known: if they run at once, all of them."""
        top = self.running_through if self.running is not None else self.acked_to
        return sum(message.offset <= top for message in self.claim.messages)

    def finish(self) -> Flush | None:
        """End a claim that is done, and return what the next claim writes along; ``None`` if the claim was lost."""
        with self._flushing, self.lock:
            if self.lost:
                return None
            self.running = None
            self.acked_to = self.last
            self.lost = self.progress_buffer.closed = True
            return self._flush(finished=True)

    def unfinished(self) -> Flush | None:
        """End the claim early, and return what is known to be done, for a last flush over a new connection."""
        with self._flushing, self.lock:
            if self.lost:
                return None
            self.running = None
            self.lost = self.progress_buffer.closed = True
            return self._flush()

    # -- writing down --------------------------------------------------------------------------------------------------

    def _flush(self, *, finished: bool = False, acked_to: int | None = None) -> Flush:
        return Flush(
            self.claim,
            self.topic_id,
            self.acked_to if acked_to is None else acked_to,
            self._needed_s,
            running=self.running if self.named else None,
            finished=finished,
            done_offsets=tuple(self._done_retries),
            failures=tuple(self._failures),
            results=tuple(self._results),
            blocked=tuple(self._blocked),
            reports=self.progress_buffer.fresh,
            reports_ended=self.progress_buffer.stale,
            was=self._written_to,
        )

    @property
    def dirty(self) -> bool:
        """True if there is something to flush."""
        return not self.lost and (
            self.acked_to != self._written_to
            or bool(self._failures)
            or (self.running is not None and self._needed_s != self._told_timeout_s)
        )

    @property
    def may_be_named(self) -> bool:
        """True if a crash would charge its message, as far as is known: a write in doubt may have been committed."""
        return self._may_be_named and not self.lost

    @property
    def urgent(self) -> bool:
        """True if a handler has asked for more time, or a progress report is due: flush now."""
        asked = self.running is not None and self._needed_s > self._told_timeout_s
        return not self.lost and (asked or self.progress_buffer.is_due)

    @property
    def _needed_s(self) -> float:
        """Seconds before recovery may treat the claim as stuck."""
        return self.timeout_s

    def runs(self, since: float) -> bool:
        """Return whether the run that began at ``since`` still runs and still holds the claim."""
        return super().runs(since) and not self.lost and not self._given_up

    @property
    def heavy(self) -> bool:
        """True if the buffered results are so large that they must be flushed."""
        return self._result_bytes > _HEAVY_BYTES

    def write_down(self, channel: Channel) -> None:
        """Flush the progress so far.

        Raises:
            FenceLost: the claim belongs to another client; ``lost`` is set.
            ConnectionLost: it is not known if it was committed; it will be flushed again.
        """
        with self._flushing:
            with self.lock:
                if self.lost:
                    return
                flush = self._flush()
            self._send(channel, flush)

    def _send(self, channel: Channel, flush: Flush) -> None:
        self._may_be_named |= _names(flush)
        try:
            channel.flush(flush)
        except FenceLost:
            self.lost = self.progress_buffer.closed = True
            raise
        self.written(flush)

    def written(self, flush: Flush) -> None:
        """Drop what ``flush`` holds: it has been committed."""
        with self.lock:
            del self._failures[: len(flush.failures)]
            self._result_bytes -= _bytes_of(self._results[: len(flush.results)])
            del self._results[: len(flush.results)]
            del self._done_retries[: len(flush.done_offsets)]
            del self._blocked[: len(flush.blocked)]
            self.progress_buffer.written(flush.reports, flush.reports_ended)
            self._may_be_named = _names(flush)
            self._written_to = flush.acked_to
            self._told_timeout_s = flush.timeout_s
            self.written_at = ticks()

    def commit(self, ended: Sequence[Ended], send: Send) -> None:
        """Commit the SQL of a transactional handler, the progress so far and the ack of its messages atomically.

        No other thread may write this claim's progress meanwhile: a flush that was made before and arrives after the
        commit would move the acked offset back, and the effect would happen twice.

        Args:
            send: commits a flush.

        Raises:
            FenceLost: the claim belongs to another client by now.
        """
        with self._flushing:
            if self.lost:
                raise FenceLost("the claim was given back while its handler ran")
            flush = self._transactional_flush(ended)
            send(flush)
            self.written(flush)
            with self.lock:
                for one in ended:
                    self._note_order(one)
                self.progress_buffer.ended(ended)
                self.running = None
                self.acked_to = flush.acked_to

    def _transactional_flush(self, ended: Sequence[Ended]) -> Flush:
        is_retry = self.claim.source is ClaimSource.RETRY
        done = [_done_retry(one) for one in ended if one.failure is None] if is_retry else []
        with self.lock:
            flush = self._flush(acked_to=ended[-1].message.offset)
        return replace(
            flush,
            done_offsets=(*flush.done_offsets, *done),
            failures=(*flush.failures, *(one.failure for one in ended if one.failure is not None)),
            results=(*flush.results, *(row for one in ended for row in one.results)),
        )

    # -- giving back ---------------------------------------------------------------------------------------------------

    def give_back(self, channel: Channel) -> None:
        """Give back all that is not done, and what is running if the process is about to die; this ends the claim.

        Raises:
            FenceLost: the claim belongs to another client; ``lost`` is set.
        """
        with self._flushing:
            with self.lock:
                if self.lost:
                    return
                self._leave_no_gaps()
                flush = self._flush(finished=True)
            self._cut(channel, flush)

    def share_rest(self, channel: Channel) -> None:
        """Give back the messages after the running ones, so that other clients can claim them.

        Raises:
            FenceLost: the claim belongs to another client; ``lost`` is set.
        """
        with self._flushing:
            with self.lock:
                if self.lost or self.running is None or self.running_through >= self.claim.hi:
                    return
                self.last = self.running_through
                flush = self._flush()
            self._cut(channel, flush)

    def give_up(self, channel: Channel, since: float, failure: Failure | None) -> bool:
        """Record ``failure`` for the message of the hanging handler that began at ``since``, and give back the rest.

        Args:
            failure: ``None`` for a batch: all is given back, to be run one by one.

        Returns:
            false if the handler has returned meanwhile.

        Raises:
            FenceLost: the claim belongs to another client; ``lost`` is set.
        """
        with self._flushing:
            with self.lock:
                if not self.is_over(since):
                    return False
                if self.lost:
                    return True
                self._given_up = self.progress_buffer.closed = True
                flush = self._flush(finished=True)
            if failure is not None:
                flush = replace(flush, acked_to=failure.offset, failures=(*flush.failures, failure))
            self._cut(channel, flush, Isolation.NONE if failure is not None else Isolation.ALONE)
            return True

    def _cut(self, channel: Channel, flush: Flush, isolation: Isolation = Isolation.NONE) -> None:
        """End the claim after the flush's progress, or after what runs; the caller holds ``_flushing``."""
        last = flush.acked_to if flush.finished else self.last
        try:
            channel.give_back(flush, last, isolation)
        except FenceLost:
            self.lost = self.progress_buffer.closed = True
            raise
        self.written(flush)
        self.claim.hi = self.last = last
        self.lost = flush.finished
        self.progress_buffer.closed |= flush.finished


class ThreadRun(Run):
    """The run of a message that has a thread for itself, or shares it with its batch.

    Args:
        claim_run: the claim that is worked on.
        watch: of the thread.
        message: of the claim.
        since: when it began, in :func:`ticks`.
    """

    __slots__ = ("_claim_run", "_message", "_since", "_watch")

    def __init__(self, claim_run: ClaimRun, watch: Watch, message: Message, since: float) -> None:
        self._claim_run, self._watch, self._message, self._since = claim_run, watch, message, since

    @property
    def time_left(self) -> float:
        """Seconds until the first limit; see :class:`Run`."""
        return self._watch.time_left(self._since)

    @property
    def waited_s(self) -> float | None:
        """Seconds that the message had waited; see :class:`Run`."""
        return self._claim_run.claim.waited_s(self._message, self._since)

    def extend(self, seconds: float) -> None:
        """Ask for more time; see :class:`Run`."""
        check_span(seconds)
        self._watch.extend(self._since, seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report progress; see :class:`Run`."""
        self._claim_run.progress_buffer.tell(
            ProgressReport.checked(self._message.uid, self._message.attempt, fraction, text)
        )


def _names(flush: Flush) -> bool:
    return flush.running is not None and flush.running > flush.acked_to


def _done_retry(ended: Ended) -> tuple[int, int, int]:
    """Return offset, attempt and milliseconds of a retry that succeeded."""
    return ended.message.offset, ended.message.attempt, round(ended.ran_s * 1000)


def _bytes_of(results: Sequence[ResultRow]) -> int:
    return sum(len(row.body or b"") for row in results)
