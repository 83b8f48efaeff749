"""A claim that is being worked on: its progress, and the watch over the thread that runs its messages.

The thread runs its messages; meanwhile other threads write its progress down and enforce time limits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from emsworker.broker.channel import Channel, Send
from emsworker.consume.attempts import GroupAttempts
from emsworker.consume.claim_progress import ClaimProgress, ClaimWrite, Ended
from emsworker.consume.flusher import HeldClaim, send
from emsworker.consume.isolation import IsolationGate, Passage
from emsworker.consume.watch import Watch
from emsworker.core.errors import FenceLost, RunEnded
from emsworker.core.flush import Flush
from emsworker.core.model import Claim, Isolation, Message
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.run import ProgressReport, Run, check_span
from emsworker.tasks.middleware import RunEnd, RunOutcome
from emsworker.tasks.options import HandlerOptions

_HEAVY_BYTES = 1 << 20


class BatchBroken(Exception):
    """A batch handler has failed without naming its messages: they are run one by one."""


class Caller(Protocol):
    """The executor of a claim's messages; its calls are opaque pairs of a handler and messages that run together."""

    channel: Channel
    may_go_on: Callable[[], bool]
    gate: IsolationGate

    def calls(self, claim: Claim) -> Iterator[tuple[Any, list[Message]]]:
        """Yield the messages in order with their handlers."""
        ...

    def limits_of(self, handler: Any, group_timeout_s: float) -> HandlerOptions:
        """Return the limits of the thread that runs a handler."""
        ...

    def call(self, claim_run: ClaimRun, messages: list[Message], handler: Any, began: float) -> Sequence[Ended]:
        """Run messages that have begun; return their ends, or none if they are recorded one by one.

        Raises:
            BatchBroken: the messages are to be run one by one.
        """
        ...


def end_of(ended: Ended, *, is_lost: bool = False) -> RunEnd:
    """Return the end of a run as brackets of the middleware get it."""
    failure = ended.failure
    if is_lost:
        return RunEnd(ended.message, RunOutcome.LOST, ended.ran_s, ended.error)
    if failure is None:
        return RunEnd(ended.message, RunOutcome.DONE, ended.ran_s)
    outcome = RunOutcome.IGNORED
    if failure.dead is not None:
        outcome = RunOutcome.DEAD
    elif failure.retry_in_s is not None:
        outcome = RunOutcome.RETRY
    return RunEnd(ended.message, outcome, ended.ran_s, ended.error, failure.retry_in_s, failure.dead)


class ClaimRun(HeldClaim):
    """Work on one claim, shared by the thread that runs it and those that look after it.

    Args:
        claim: the claim that is being worked on.
        topic_id: of its topic.
        timeout_s: the group's timeout.
        thread_id: of the thread that runs it, for the soft time limit.
        attempts: logs what fails.

    Attributes:
        named: it has its process to itself: what runs is recorded, and charged if the process dies.
        cancelled: offsets of messages that were cancelled since they were read.
    """

    def __init__(
        self, claim: Claim, topic_id: int, timeout_s: float, thread_id: int, attempts: GroupAttempts | None = None
    ) -> None:
        super().__init__(ClaimProgress(claim, topic_id, timeout_s), forks.Lock())
        self.watch = Watch(thread_id, timeout_s, self.lock)
        self.attempts = attempts or GroupAttempts()
        self.began_at = ticks()
        self.named = False
        self.cancelled: set[int] = set()  # offsets

    # -- the side of the thread that runs it ---------------------------------------------------------------------------

    def work(self, caller: Caller) -> bool:
        """Run the messages in order; return True if all have ended, False if some are to be given back.

        Raises:
            FenceLost: the claim has another owner.
            ConnectionLost: this thread's connection was lost.
        """
        alone = self.claim.isolation.alone
        for handler, messages in caller.calls(self.claim):
            if self.progress.halted or not caller.may_go_on() or (caller.gate.closed and not alone):
                return False  # if a suspect waits for the process, the rest goes to other processes at once
            if not self.progress.waits(messages[0]):
                if not (self._run_alone if alone else self._run)(caller, messages, handler):
                    return False
            else:
                self.done([Ended.untouched(messages[0])])
        return True

    def _run_alone(self, caller: Caller, messages: list[Message], handler: Any) -> bool:
        """Run each message alone in the process: a crash must name only one message."""
        return all(self._run_one(caller, message, handler) for message in messages)

    def _run_one(self, caller: Caller, message: Message, handler: Any) -> bool:
        try:
            ran = self._enter_gate(caller) and self._run(caller, [message], handler)
            self.write_changes(caller.channel)  # or a crash in the next message would blame this one too
        finally:
            # If the server could not be told that it has ended, the thread leaves when it has written that down: until
            # then a crash would blame this one.
            if not self.progress.may_be_named:
                caller.gate.leave(self)
        return ran

    def _enter_gate(self, caller: Caller) -> bool:
        """Wait until the process is free, or for as long as its isolation lets others wait; return False on a stop."""
        room_s = self.claim.isolation.room_s
        while (passage := caller.gate.ask(self, room_s)) is Passage.WAIT and caller.may_go_on():
            self.write_down(caller.channel)  # its deadline moves with it
        self.named = passage is Passage.ALONE
        return caller.may_go_on()

    def _run(self, caller: Caller, messages: list[Message], handler: Any) -> bool:
        """Run messages together; return False if the claim was lost or given back before them."""
        began = ticks()
        if not self.start(messages, caller.limits_of(handler, self.watch.group_timeout_s), began):
            return False
        for message in messages:
            message.run = ThreadRun(self, self.watch, message, began)
        if self.named:
            self.write_down(caller.channel)  # before it runs: it may kill this process
        try:
            # Last, because the flusher may write them down then. They get no name here: their errors' frames refer to
            # this one, and would live on in the cycle, with all that the handler had in memory.
            self.done(caller.call(self, messages, handler, began))
        except BatchBroken:
            self.watch.running = None
            return all(caller.may_go_on() and self._run(caller, [message], handler) for message in messages)
        if self.progress.result_bytes > _HEAVY_BYTES:
            self.write_down(caller.channel)
        return True

    def start(self, messages: list[Message], options: HandlerOptions, now: float) -> bool:
        """Begin to run messages; false if the claim was lost or given back before them."""
        with self.lock:
            if self.watch.abandoned or not self.progress.may_begin(messages[-1]):
                return False
            if self.named:
                self.progress.named = messages[0].offset
            self.watch.begin(messages, options, now)
            return True

    def running_messages(self) -> list[Message]:
        """Return what runs, without the lock: for log records of the thread that runs it."""
        running, through = self.watch.running, self.watch.running_through
        return [] if running is None else [m for m in self.claim.messages if running <= m.offset <= through]

    def done(self, ended: Sequence[Ended], following: Message | None = None) -> None:
        """Record the ends of messages that ran together, unless a transaction of their handler has recorded them.

        They are written down with the next flush.

        Args:
            following: of coroutines: the first message that still runs.
        """
        with self.lock:
            watch = self.watch
            watch.running = following.offset if following is not None else None
            if ended and not watch.is_recorded and not watch.abandoned:
                self.progress.end(ended)
            watch.is_recorded = False

    def unname(self) -> None:
        """Mark that a suspect no longer has its process to itself."""
        with self.lock:
            self.named, self.progress.named = False, None

    @property
    def watches(self) -> Sequence[Watch]:
        """The watches over the threads that run its messages."""
        return [self.watch]

    @property
    def started(self) -> int:
        """The number of its messages that were started, as far as is known: if they run at once, all of them."""
        return self.progress.ended + len(self.running_messages())

    def cancel(self, offsets: Collection[int]) -> None:
        """Keep messages from beginning, and interrupt those that run; again is no error.

        The offsets are noted before the runs are looked at: one that begins meanwhile looks for its offset afterwards.
        """
        self.cancelled.update(offsets)
        for message in self.claim.messages:
            if message.offset in self.cancelled and isinstance(message.run, ThreadRun):
                message.run.interrupt()

    def report(self, watch: Watch, report: ProgressReport) -> None:
        """Keep the last report of a running message for the next write.

        Raises:
            RunEnded: the message is run elsewhere by now.
        """
        with self.lock:
            if self.closed or watch.abandoned:
                raise RunEnded("the message is run elsewhere by now")
            self.progress.reports.add(report)

    # -- writing down --------------------------------------------------------------------------------------------------

    @property
    def needed_s(self) -> float:
        """Seconds before recovery may treat the claim as stuck."""
        return self.watch.timeout_s

    def plan(self, interval_s: float, *, at_once: bool) -> ClaimWrite | None:
        """Return the write that is due; see :class:`HeldClaim`.

        It is if more time was asked for, if a report is due, or if ends have waited long enough.
        """
        progress, now = self.progress, ticks()
        if progress.write is not None or progress.closed:
            return progress.write
        needed_s = self.needed_s if self.watch.running is not None else progress.told_s
        is_urgent = at_once or needed_s > progress.told_s or progress.reports.is_due(now)
        if not is_urgent and now - progress.written_at < interval_s:
            return None
        return progress.save(self.needed_s) if needed_s != progress.told_s or progress.is_dirty(now) else None

    def write_down(self, channel: Channel) -> None:
        """Write the progress so far.

        Raises:
            FenceLost: the claim belongs to another client; nothing more is written.
            ConnectionLost: it is not known if it was committed; it will be sent again.
        """
        self._write(channel, lambda: self.progress.save(self.needed_s))

    def write_changes(self, channel: Channel) -> None:
        """Write the progress so far, if there is anything new; see :meth:`write_down`."""
        self._write(channel, lambda: self.progress.save(self.needed_s) if self.progress.is_dirty(ticks()) else None)

    def _write(self, channel: Channel, begin: Callable[[], ClaimWrite | None]) -> None:
        """Send what is in doubt, then what ``begin`` begins under the lock."""
        with self.sending:
            with self.lock:
                in_doubt = self.progress.write
            if in_doubt is not None:
                self._send(channel, in_doubt)
            with self.lock:
                write = None if self.closed else begin()
            if write is not None:
                self._send(channel, write)

    def _send(self, channel: Channel, write: ClaimWrite) -> None:
        try:
            send(channel, write)
        except FenceLost:
            self.lose()
            raise
        self.confirm(write)

    def confirm(self, write: ClaimWrite) -> None:
        """Note that a write was committed."""
        with self.lock:
            self.progress.confirm(write, ticks())
            self.watch.abandoned |= self.closed

    def lose(self) -> None:
        """Note that nothing more is to be written: it has another owner, or its end is on its way."""
        self.watch.abandoned = True
        self.progress.close()

    def finish(self, channel: Channel) -> Flush | None:
        """End a claim that is done, and return what the next claim writes along; ``None`` if the claim was lost.

        Args:
            channel: writes what is in doubt before.
        """
        with self.sending:
            self._write(channel, lambda: self.progress.save(self.needed_s) if self.progress.is_uncut else None)
            return self._end(finished=True)

    def unfinished(self) -> Flush | None:
        """End the claim early, and return what is known to be done, for a last flush over a new connection."""
        with self.sending:
            return self._end(finished=False)

    def _end(self, *, finished: bool) -> Flush | None:
        with self.lock:
            if self.closed:
                return None
            self.watch.running = self.progress.named = None
            flush = self.progress.flush(self.needed_s, finished=finished)
            self.lose()
            return flush

    def commit(self, ended: Sequence[Ended], write: Send) -> None:
        """Commit the SQL of a transactional handler, the progress so far and the ack of its messages atomically.

        No other thread may write this claim's progress meanwhile: a flush that was made before and arrives after the
        commit would move the acked offset back, and the effect would happen twice.

        Args:
            write: commits a flush.

        Raises:
            FenceLost: the claim belongs to another client by now.
        """
        with self.sending:
            with self.lock:
                if self.watch.abandoned:
                    raise FenceLost("the claim was given back while its handler ran")
                flush = self.progress.committing(ended, self.needed_s)
            write(flush)
            with self.lock:
                self.progress.committed(flush, ended, ticks())
                self.watch.running, self.watch.is_recorded = None, True

    # -- giving back ---------------------------------------------------------------------------------------------------

    def give_back(self, channel: Channel) -> None:
        """Give back all that is not done, and what is running if the process is about to die; this ends the claim.

        Raises:
            FenceLost: the claim belongs to another client.
        """
        self._write(channel, lambda: self.progress.give_back((), self.needed_s))

    def share_rest(self, channel: Channel) -> None:
        """Give back the messages after the running ones, so that other clients can claim them.

        Raises:
            FenceLost: the claim belongs to another client.
        """
        self._write(channel, self._share)

    def _share(self) -> ClaimWrite | None:
        running = {message.offset for message in self.running_messages()}
        return self.progress.give_back(running, self.needed_s) if running else None

    def give_up(self, channel: Channel, since: float, ended: Ended | None) -> bool:
        """End the message of the hanging handler that began at ``since``, and give back the rest.

        Args:
            ended: ``None`` for a batch: all is given back, to be run one by one.

        Returns:
            false if the handler has returned meanwhile.

        Raises:
            FenceLost: the claim belongs to another client.
        """
        with self.sending:
            with self.lock:
                if not self.watch.is_over(since):
                    return False
                if not self.watch.abandoned and ended is not None:
                    self.progress.end([ended])
                self.watch.abandoned = True
            isolation = Isolation.NONE if ended is not None else Isolation.ALONE
            self._write(channel, lambda: self.progress.give_back((), self.needed_s, isolation))
            return True


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
        return self._watch.time_left(self._since)

    @property
    def waited_s(self) -> float | None:
        return self._claim_run.claim.waited_s(self._message, self._since)

    @property
    def cancelled(self) -> bool:
        return self._message.offset in self._claim_run.cancelled

    def interrupt(self) -> None:
        """Raise RunCancelled in the handler, if it is still this run, and wants that."""
        self._watch.cancel(self._since)

    def extend(self, seconds: float) -> None:
        check_span(seconds)
        self._watch.extend(self._since, seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        report = ProgressReport.checked(self._message.uid, self._message.attempt, fraction, text)
        self._claim_run.report(self._watch, report)
