"""Broadcasts: one thread in each worker process reads every topic that the app subscribes to and runs its handlers.

There is no lock, no claim and no ack. A subscription begins at the end of the topic and keeps its position in memory;
with a stable name it also stores the position in ``ems_position`` after every batch, and the next process in its place
resumes there. The poller signals that there is something to read, so subscriptions cost no polling of their own.
"""

from __future__ import annotations

import logging
import threading
import traceback
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

from emsworker.app import Ems
from emsworker.broker.broadcasts import Broadcasts
from emsworker.broker.mysql import MysqlBroker
from emsworker.consume import stacks
from emsworker.consume.attempts import FailureTally
from emsworker.consume.claim_run import ClaimRun
from emsworker.consume.claimer import BatchSizer
from emsworker.consume.context import RunContext, RunHooks
from emsworker.consume.coroutines import EventLoop
from emsworker.consume.executor import Executor
from emsworker.consume.isolation import IsolationGate
from emsworker.consume.result_writer import ResultWriter
from emsworker.core.broadcast import BroadcastBatch, NamedReader, ReadableExtent
from emsworker.core.codec import Decoder
from emsworker.core.config import Settings
from emsworker.core.counted import counted, plural
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Isolation, Message, Topic, TopicKind
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.outage import best_effort
from emsworker.core.process.reconnect import until_connected
from emsworker.core.process.runnable import Runnable
from emsworker.store import Session
from emsworker.tasks.broadcast import BroadcastRoute

log = logging.getLogger(__name__)

Ends = dict[tuple[int, int], ReadableExtent]

_IDLE_S = 5.0
_CLOSED_S = 0.2
_LOOK_S = 0.2
_MOST_DEATHS = 3


@dataclass
class _Place:
    """Position of a listener in one partition.

    Args:
        next: the offset to read next.
        deaths: how many earlier processes with the same name died here.
        isolated_to: below this offset it runs one message at a time, so that the position names the fatal one.
        kept: the offset that was stored last.
    """

    next: int
    deaths: int = 0
    isolated_to: int = 0
    kept: int = 0


@dataclass
class BroadcastListener:
    """A broadcast subscription of this process.

    Args:
        topic, route: the topic, and the subscription with its handler.
        executor: runs the handler.
        sizer: how many messages to read at once.
        reader: stores the position, if the name is stable.
    """

    topic: Topic
    route: BroadcastRoute
    executor: Executor
    sizer: BatchSizer
    reader: NamedReader | None
    places: dict[int, _Place] = field(default_factory=dict)

    def behind(self, ends: Ends) -> list[int]:
        """Return the partitions that have something to read, or are new."""
        own = {partition: one for (topic_id, partition), one in ends.items() if topic_id == self.topic.id}
        return [
            partition
            for partition, one in sorted(own.items())
            if one.readable and (partition not in self.places or self.places[partition].next < one.end)
        ]


class BroadcastReader(Runnable):
    """The thread that reads broadcasts and runs their handlers.

    Args:
        broker: the stream.
        settings: batch, batch_bytes, claim_s, timeout_s, gap_timeout_s, poll_max_s.
        decoder: the app's decoder.
        place: identifies this process among the app's, as ``WORKER/NUMBER``; it makes a stable name unique.
        on_hang: called with a reason if a handler hangs past its limit.
        on_death: see :class:`Runnable`.
        gate: the process's gate for poison isolation.
        tally: counts what failed; log_done: log every message that is done.
    """

    action = "read broadcasts"

    def __init__(
        self,
        broker: MysqlBroker,
        settings: Settings,
        decoder: Decoder,
        place: str,
        on_hang: Callable[[str], None],
        on_death: Callable[[str, BaseException], None],
        gate: IsolationGate,
        tally: FailureTally | None = None,
        *,
        log_done: bool = False,
    ) -> None:
        super().__init__("ems-broadcast", on_death)
        self._gate = gate
        self._tally = tally or FailureTally()
        self._log_done = log_done
        self._broker = broker
        self._channel = broker.channel()
        self._store = Broadcasts(self._channel.session)
        self._settings = settings
        self._decoder = decoder
        self._place = place
        self._on_hang = on_hang
        self._listeners: list[BroadcastListener] = []
        self._ends: Ends = {}
        self._notified = forks.Event()
        self._pause_s = _IDLE_S
        self._next_look = 0.0
        self._running: tuple[BroadcastListener, ClaimRun] | None = None
        self.hangs = False
        self.ran = 0  # messages

    # -- before the thread starts --------------------------------------------------------------------------------------

    def take_on(self, app: Ems, routes: Iterable[BroadcastRoute]) -> None:
        """Add subscriptions of an app; they receive what is sent after this returns.

        Raises:
            ConfigError: a topic is not for broadcasts.
            UnknownTopic: no topic has that name, and auto-create is off.
            StoreUnavailable: the server could not be reached.
        """
        ladder, loop, hooks = self._settings.retry_ladder(), EventLoop(self._on_death), RunHooks.of(app.middleware)
        no_results = ResultWriter(self._settings.result_ttl_s)
        for route in routes:
            topic = app.stream.catalog.topic(route.topic).check_kind(TopicKind.BROADCAST)
            context = RunContext(
                route,
                ladder,
                self._channel,
                no_results,
                hooks,
                self._may_go_on,
                self._gate,
                loop=loop,
                tally=self._tally,
                log_done=self._log_done,
            )
            executor = Executor(context)
            name = f"{route.group}/{self._place}"
            reader = NamedReader(topic.id, name, uuid.uuid4().bytes) if route.resumes else None
            sizer = BatchSizer(self._settings.claim_s, self._settings.batch)
            self._listeners.append(BroadcastListener(topic, route, executor, sizer, reader))
        until_connected(self._begin, self._settings.connect_timeout_s)

    def _may_go_on(self) -> bool:
        return not self.stopping.is_set()

    @property
    def runs(self) -> bool:
        """True while handlers run."""
        return self._running is not None

    @property
    def topic_ids(self) -> set[int]:
        """Ids of the subscribed topics."""
        return {listener.topic.id for listener in self._listeners}

    def _begin(self) -> None:
        self._ends = self._store.ends(list(self.topic_ids))
        for listener in self._listeners:
            own = {key[1]: one for key, one in self._ends.items() if key[0] == listener.topic.id}
            self._take_places(listener, own, {partition: one.end for partition, one in own.items()})
        self._notified.set()

    def _take_places(
        self, listener: BroadcastListener, extents: dict[int, ReadableExtent], beginning: dict[int, int]
    ) -> None:
        if listener.reader is None:
            listener.places |= {partition: _Place(offset) for partition, offset in beginning.items()}
            return
        found = self._store.take_positions(listener.reader, beginning)
        for partition in beginning:
            position, end = found[partition], extents[partition].end
            place = _Place(position.next_offset, position.deaths, kept=position.next_offset)
            listener.places[partition] = place
            if place.next > end:
                log.warning(
                    "%s had come to offset %d of %s/%d, which is not there any more",
                    *(listener.route.group, place.next, listener.topic.name, partition),
                )
                place.next = end
            if position.deaths:
                place.isolated_to = place.next + self._settings.batch
            if place.next == end:
                self._keep(listener, partition)  # no message of the topic can have crashed it
            log.info(
                "%s goes on at offset %d of %s/%d", listener.reader.name, place.next, listener.topic.name, partition
            )

    # -- the poller's side ---------------------------------------------------------------------------------------------

    def look(self, session: Session, notified: bool) -> bool:
        """Check for something to read, over the poller's session; at limited intervals unless ``notified``."""
        if not notified and ticks() < self._next_look:
            return False
        self._ends = Broadcasts(session).ends(list(self.topic_ids))
        self._next_look = ticks() + min(_LOOK_S, self._settings.poll_max_s)
        found = any(listener.behind(self._ends) for listener in self._listeners)
        if found:
            self._notified.set()
        return found

    # -- its own side --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Wait until there is something to read, and work through it."""
        self._notified.wait(self._pause_s)
        self._notified.clear()
        self._pause_s = _IDLE_S
        while not self.stopping.is_set() and self._read_round():
            pass

    def on_trouble(self, error: Exception) -> None:
        """Read again at once when the server is back."""
        super().on_trouble(error)
        self._notified.set()

    def _read_round(self) -> bool:
        """Read one batch of each partition that has something to read; return whether anything was read."""
        went_on = False
        for listener in self._listeners:
            for partition in listener.behind(self._ends):
                while not self.stopping.is_set() and not self._gate.wait_open(_CLOSED_S):
                    pass
                if self.stopping.is_set():
                    return False
                if partition not in listener.places:  # added after we had begun: all of it is new
                    extents = {partition: self._ends[listener.topic.id, partition]}
                    self._take_places(listener, extents, {partition: extents[partition].log_start})
                went_on |= self._read(listener, partition)
        return went_on

    def _read(self, listener: BroadcastListener, partition: int) -> bool:
        place = listener.places[partition]
        if place.deaths >= _MOST_DEATHS:
            self._pass_over(
                listener, partition, f"{counted(place.deaths, 'process')} {plural(place.deaths, 'has')} died in its run"
            )
            return True
        isolated = place.next < place.isolated_to
        size = 1 if isolated else max(listener.sizer.size, listener.route.concurrency)
        batch = self._store.read(
            listener.topic,
            partition,
            place.next,
            size,
            self._settings.batch_bytes,
            listener.route.filter,
        )
        if batch.hi is None:
            return self._at_gap(listener, partition, batch)
        self._run(listener, partition, batch.hi, batch)
        return True

    def _at_gap(self, listener: BroadcastListener, partition: int, batch: BroadcastBatch) -> bool:
        """Handle an empty next offset: retention has deleted it, or a producer is about to write there."""
        place = listener.places[partition]
        if batch.log_start > place.next:
            there = min(batch.log_start, batch.first or batch.log_start)
            log.warning(
                "%s was overtaken by retention: it missed %s of partition %d of topic %s, from offset %d on",
                listener.route.group,
                counted(there - place.next, "message"),
                partition,
                listener.topic.name,
                place.next,
            )
            place.next = there
            self._keep(listener, partition)
            return True
        gap_s = self._settings.gap_timeout_s
        closed = self._store.close_hole(listener.topic, partition, place.next, gap_s)
        if not closed:
            self._pause_s = gap_s / 4
        return closed

    def _run(self, listener: BroadcastListener, partition: int, hi: int, batch: BroadcastBatch) -> None:
        place, began = listener.places[partition], ticks()
        messages = [Message(listener.topic.name, partition, row, self._decoder) for row in batch.rows]
        claim = Claim(
            0,
            partition,
            place.next,
            hi,
            place.next - 1,
            new_claim_id(),
            ClaimSource.STREAM,
            Isolation.NONE,
            "",
            messages,
        )
        claim.taken_at = batch.now
        claim.topic, claim.group = listener.topic.name, listener.route.group
        claim_run = listener.executor.begin(claim, listener.topic.id, self._settings.timeout_s, threading.get_ident())
        self._running = (listener, claim_run)
        finished = listener.executor.run(claim_run)
        self._running = None
        self.ran += claim_run.progress.ended
        flush = claim_run.finish(self._channel) if finished else claim_run.unfinished()
        assert flush is not None or self.hangs, "nobody else writes it down"
        if flush is None:
            return  # the main thread has skipped the message that hung here, and the process ends
        place.next = flush.acked_to + 1
        self._keep(listener, partition)
        listener.sizer.record(claim_run.progress.passed, ticks() - began)

    def _pass_over(self, listener: BroadcastListener, partition: int, why: str) -> None:
        place = listener.places[partition]
        log.error(
            "%s passes over offset %d of partition %d of topic %s: %s",
            listener.route.group,
            place.next,
            partition,
            listener.topic.name,
            why,
        )
        place.next += 1
        self._keep(listener, partition)

    def _keep(self, listener: BroadcastListener, partition: int) -> None:
        """Store the position, if the reader has a stable name."""
        place = listener.places[partition]
        if listener.reader is None:
            return
        if self._store.keep_position(listener.reader, partition, place.next):
            place.deaths, place.kept = 0, place.next
            return
        log.error(
            "another process has taken the name %s, or it was forgotten: this one goes on, but its place is kept no "
            "longer; give workers different names (-n)",
            listener.reader.name,
        )
        listener.reader = None
        place.deaths = 0

    # -- time limits, called by the main thread ------------------------------------------------------------------------

    def look_after(self, now: float) -> None:
        """Enforce the limits of the running handler: the soft one, and the one at which the process is replaced."""
        if self._running is None or self.hangs:
            return
        listener, claim_run = self._running
        watch = claim_run.watch
        with watch.lock:
            running, since = watch.running, watch.running_since
        if running is None:
            return
        watch.send_soft_limit(now)
        if now - since > watch.time_limit_s:
            if stack := stacks.of_thread(watch.thread_id):
                log.error("the stack of what hangs:%s", "\n" + "".join(traceback.format_list(list(stack))).rstrip())
            self._leave_hanging(listener, claim_run, running)
            self._on_hang(
                f"{listener.route.group} ran for {now - since:.1f} s, over its limit of {watch.time_limit_s:g} s "
                f"({listener.topic.name}/{claim_run.claim.partition}@{running})"
            )

    def _leave_hanging(self, listener: BroadcastListener, claim_run: ClaimRun, offset: int) -> None:
        """Skip the message that hangs: this process will be replaced, and the next one must not run it."""
        self.hangs = True
        flush = claim_run.unfinished()
        if flush is None or listener.reader is None:
            return
        with (
            best_effort(log, "could not write down that a message hangs; it may be run again"),
            closing(self._broker.channel()) as channel,  # the thread's own may be in use
        ):
            reader = Broadcasts(channel.session)
            reader.keep_position(listener.reader, claim_run.claim.partition, offset + 1)

    # -- the end -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the thread to end after the running message."""
        super().stop()
        self._notified.set()

    def shut_down(self) -> None:
        """Store the last positions, and sign off."""
        try:
            for listener in self._listeners:
                for partition, place in listener.places.items():
                    if place.next != place.kept:
                        self._keep(listener, partition)
                if listener.reader is not None:
                    self._store.sign_off(listener.reader)
        finally:
            self._channel.close()
