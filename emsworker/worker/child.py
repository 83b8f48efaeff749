"""A worker's child process: loads the app, runs its consumer threads, and ends on a signal or if its parent is gone."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from emsworker.app import Ems
from emsworker.consume.attempts import FailureTally
from emsworker.consume.coroutines import EventLoop
from emsworker.consume.flusher import Flusher
from emsworker.consume.isolation import SHARED_BYTES, IsolationGate, Suspects
from emsworker.consume.lease import LeaseRenewer
from emsworker.consume.listener import Listener
from emsworker.consume.poller import Poller
from emsworker.consume.result_writer import ResultWriter
from emsworker.consume.worker_claims import WorkerClaims
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, EmsError, StoreUnavailable
from emsworker.core.extras import hint_if_missing
from emsworker.core.ids import local_ip
from emsworker.core.model import Order
from emsworker.core.process.clock import ticks
from emsworker.core.process.role import claim_role
from emsworker.core.process.runnable import Runnable, watch_threads
from emsworker.core.process.scratch import read_scratch
from emsworker.core.process.signals import pass_over_hangups, unblock
from emsworker.loader import load_app
from emsworker.observe.logs import configure_logging
from emsworker.observe.metrics import CpuSeconds, missing_metrics, share_metrics
from emsworker.tasks.fairness import check_no_order, fair_of, limits_keys
from emsworker.tasks.handler_rows import declare_handlers
from emsworker.tasks.limits import declare_limit
from emsworker.tasks.middleware import hooks
from emsworker.tasks.periodic import declare_schedules
from emsworker.tasks.requirements import requires_of
from emsworker.worker.broadcast import BroadcastReader
from emsworker.worker.child_spec import (
    AWAY,
    ENDING,
    FAILED,
    HUNG,
    READY,
    RECYCLING,
    USAGE,
    ChildHealth,
    ChildSpec,
    WorkDone,
)
from emsworker.worker.consumer import Assignment, Consumer, ProcessContext
from emsworker.worker.dead_notices import DeadNotices
from emsworker.worker.log_lines import LineCollector, LineHandler, LineWriter
from emsworker.worker.preflight import chosen_routes
from emsworker.worker.recycler import Recycler
from emsworker.worker.stop_hooks import StopHooks
from emsworker.worker.task_figures import FigureCounter, FigureWriter

log = logging.getLogger("emsworker.worker.child")  # it runs as __main__

_LOOK_S = 0.2
_SIDES_S = 5.0
_ALIVE_S = 1.0
_STALLED_S = 180.0  # longer than a call of the server may take, which is no fault of the thread
_UNSEEN_S = 5.0  # the flusher's thread enforces time limits; a busy machine delays it
_AWAY_S = 5.0  # looks for work fail for longer than that
_NOTICE_BEATS = 5
_STOPS = (signal.SIGTERM, signal.SIGQUIT)
_DUE, _DIED = 0, 255  # among the numbers of signals


class Child:
    """The process's main thread: starts the other threads and waits for signals."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._signals, self._signal_in = os.pipe()
        self._stop_by: float | None = None
        self._exit_code = 0
        self._tally = FailureTally()
        self._gate = IsolationGate()
        self._last_words: str | None = None
        self._stop_timeout_s = self._poll_max_s = 0.0
        self._consumers: list[Consumer] = []
        self._sides: list[Runnable] = []
        self._broadcasts: BroadcastReader | None = None
        self._listener: Listener | None = None
        self._hang = ""
        self._orphaned = False
        self._served: dict[str, bool] = {}  # the topics of this server; false for those that another one keeps by now
        self._begun = False  # there is something that a stop must end in order
        self._tell_alive_at = 0.0

    def run(self) -> int:
        """Run until told to stop, and return the exit code."""
        self._catch_signals()
        watch_threads(self._on_death)
        if self._spec.metrics:
            share_metrics(Path(self._spec.metrics), self._spec.number)
        app = load_app(self._spec.app)
        if self._spec.metrics:
            app.add_middleware(*missing_metrics(app.middleware))
        if self._spec.url is not None:
            app.reconfigure(url=self._spec.url, redis_url=self._spec.redis_url)
        app.bind_to_server(self._spec.server)
        self._stop_timeout_s, self._poll_max_s = app.settings.stop_timeout_s, app.settings.poll_max_s
        self._stop_hooks = StopHooks(app.middleware, app.settings.stop_hooks_timeout_s)
        self._begun = True
        try:
            self._create(app)
            for hook in hooks(app.middleware, "on_process_start"):  # what it opens is there for the first message
                hook()
            self._start(app.settings.connect_timeout_s)
            self._spec.tell(READY)
            self._wait()
        finally:
            self._stop_hooks.call()
            if self._orphaned and self._spec.metrics:  # nobody else is left to delete it
                shutil.rmtree(self._spec.metrics, ignore_errors=True)
        self._report_exit()
        return self._exit_code

    @property
    def _work(self) -> WorkDone:
        """The work done so far, messages of claims that still run left out."""
        heard = 0 if self._broadcasts is None else self._broadcasts.ran
        return WorkDone(self._context.recycler.ran + heard, self._tally.failed, self._tally.dead)

    def _report_exit(self) -> None:
        self._spec.tell(self._work.to_report())
        if self._last_words is not None:
            self._spec.tell(self._last_words)

    # -- starting ------------------------------------------------------------------------------------------------------

    def _create(self, app: Ems) -> None:
        """Create all threads; broadcasts that are sent from now on are not missed."""
        self._served = app.broker.served(self._topics_of(app))
        self._broadcasts = self._listen(app)
        assignments = {assignment.group.id: assignment for assignment in self._assignments(app)}
        schedules = [one for one in app.registry.schedules.values() if self._served.get(one.task.topic)]
        declare_schedules(app.stream, app.settings, schedules)
        writers = [*self._count_figures(app, assignments), *self._keep_lines(app, assignments)]
        context = self._context = self._make_context(app, assignments)
        channel, ack_interval_s = app.stream.channel(patient=False), app.settings.ack_interval_s
        flusher = self._flusher = Flusher(channel, ack_interval_s, context.claims, self._on_side_death)
        threads = self._spec.threads or app.settings.threads
        self._consumers = self._make_consumers(context, threads)
        self._sides = [context.lease, context.poller, flusher, *self._dead_notices(app, assignments), *writers]
        app.stream.wakes.append(context.poller.notify)
        if app.stream.redis_url is not None:
            topic_ids = {assignment.topic.id for assignment in assignments.values()}
            topic_ids |= self._broadcasts.topic_ids if self._broadcasts is not None else set()
            wake, announce = context.poller.tell, context.poller.announce
            self._listener = Listener(
                app.stream.redis_url, app.stream.stream_id, topic_ids, wake, self._on_side_death, announce
            )

    def _start(self, connect_timeout_s: float) -> None:
        """Start all threads, and wait until the consumers are registered."""
        for thread in [*([self._listener] if self._listener else []), *self._sides, *self._workers]:
            thread.start()
        for consumer in self._consumers:
            consumer.registered.wait(connect_timeout_s)

    def _make_consumers(self, context: ProcessContext, threads: int) -> list[Consumer]:
        return [Consumer(number, context, self._on_death) for number in range(threads)]

    def _make_context(self, app: Ems, assignments: dict[int, Assignment]) -> ProcessContext:
        spec, settings, broker = self._spec, app.settings, app.stream
        database = broker.database
        topic_of = {group_id: assignment.topic for group_id, assignment in assignments.items()}
        in_order = [group_id for group_id, one in assignments.items() if one.group.order is not Order.NONE]
        also = self._broadcasts.look if self._broadcasts is not None else None
        loop = EventLoop(self._on_death)
        claims = WorkerClaims(self._gate, self._on_hang, loop)
        return ProcessContext(
            broker,
            settings,
            app.middleware,
            assignments,
            LeaseRenewer(
                *(database, settings, spec.process_id, spec.name, local_ip(broker.url), self._on_side_death),
                tags=spec.tags,
            ),
            Poller(database, settings, topic_of, in_order, self._on_side_death, also, claims.cancel),
            claims,
            _result_writer(app),
            self._make_recycler(settings),
            gate=self._gate,
            suspects=self._make_suspects(),
            loop=loop,
            tally=self._tally,
            log_done=spec.log_done,
        )

    def _make_suspects(self) -> Suspects:
        shared = None
        if self._spec.suspects >= 0:
            shared = mmap.mmap(
                self._spec.suspects, SHARED_BYTES
            )  # it stays if a handler closes the files of its process
            os.close(self._spec.suspects)
        return Suspects(shared, self._spec.spare_s)

    def _dead_notices(self, app: Ems, assignments: dict[int, Assignment]) -> list[Runnable]:
        """Return the thread that calls ``on_dead`` for dead letters of processes that died, if there is such a hook."""
        on_dead = hooks(app.middleware, "on_dead")
        if not on_dead or not assignments:
            return []
        places = {group_id: (one.topic.name, one.group.name) for group_id, one in assignments.items()}
        channel, pause_s = app.stream.channel(), _NOTICE_BEATS * app.settings.beat_s
        return [DeadNotices(channel, places, on_dead, app.stream.decoder, pause_s, self._on_side_death)]

    def _count_figures(self, app: Ems, assignments: dict[int, Assignment]) -> list[Runnable]:
        """Return the thread that writes figures by task, if they are wanted; from now on the app counts them."""
        interval_s = app.settings.task_figures_s
        if not interval_s or not assignments:
            return []
        routes = {(one.topic.name, one.group.name): (one.group.id, one.route) for one in assignments.values()}
        counter = FigureCounter(routes)
        app.add_middleware(counter)
        cpu = CpuSeconds().add if self._spec.metrics and not hint_if_missing("metrics") else None
        return [FigureWriter(app.stream, counter, interval_s, cpu, self._on_side_death)]

    def _keep_lines(self, app: Ems, assignments: dict[int, Assignment]) -> list[Runnable]:
        """Return the thread that writes log lines of attempts, if they are kept; from now on they are."""
        settings = app.settings
        if not settings.keep_log_lines or not assignments:
            return []
        group_ids = {(one.topic.name, one.group.name): one.group.id for one in assignments.values()}
        collector = LineCollector(settings.keep_log_lines, group_ids)
        app.add_middleware(collector)
        logging.getLogger().addHandler(LineHandler(collector))
        return [LineWriter(app.stream, collector, settings.log_lines_keep_s, self._on_side_death)]

    def _make_recycler(self, settings: Settings) -> Recycler:
        tasks, memory_mib = self._spec.max_tasks, self._spec.max_memory_mib
        return Recycler(
            settings.max_tasks_per_child if tasks is None else tasks,
            settings.max_memory_per_child if memory_mib is None else memory_mib,
            self._on_due,
        )

    @property
    def _workers(self) -> list[Runnable]:
        """The threads that run handlers."""
        return [*self._consumers, *self._readers]

    @property
    def _readers(self) -> list[Runnable]:
        """The thread that runs handlers of broadcasts, if there are any."""
        return [] if self._broadcasts is None else [self._broadcasts]

    def _listen(self, app: Ems) -> BroadcastReader | None:
        """Create the broadcast reader, if the app subscribes to any of the topics; ``--groups`` does not apply."""
        heard = app.registry.broadcasts.values()
        routes = [r for r in heard if self._spec.wants(r.topic) and r.topic in self._served]
        if not routes:
            return None
        place = f"{self._spec.name}/{self._spec.number}"
        reader = BroadcastReader(
            app.stream,
            app.settings,
            app.stream.decoder,
            place,
            self._on_hang,
            self._on_death,
            self._gate,
            self._tally,
            log_done=self._spec.log_done,
        )
        reader.take_on(app, routes)
        return reader

    def _topics_of(self, app: Ems) -> list[str]:
        """The topics that this process may have to do with."""
        routes = chosen_routes(app, self._spec.app, self._spec.topics, self._spec.groups)
        heard = {route.topic for route in app.registry.broadcasts.values() if self._spec.wants(route.topic)}
        called = {one.task.topic for one in app.registry.schedules.values()}
        return sorted({route.topic for route in routes} | heard | called)

    def _assignments(self, app: Ems) -> list[Assignment]:
        routes = chosen_routes(app, self._spec.app, self._spec.topics, self._spec.groups)
        assignments = []
        for route in routes:
            if route.topic not in self._served:
                continue
            topic = app.stream.catalog.topic(route.topic)
            group = app.stream.catalog.group(topic, route.group, route.filter, route.order)
            route.check_order(group.order)
            check_no_order(route, fair_of(route), group.order)
            declare_limit(app.stream, group, route)
            declare_handlers(app.stream, group, route)
            if not self._spec.has(requires_of(route)):  # the group is there, so that nothing is lost meanwhile
                continue
            for task in route.tasks.values():
                task.types  # noqa: B018 - read before the first message, whose time it would take
            assignments.append(Assignment(topic, group, route, fair_of(route), limits_keys(route)))
        return assignments

    # -- signals and the end -------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        os.set_blocking(self._signal_in, False)
        for number in _STOPS:
            signal.signal(number, self._note_signal)
        os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_leave_signals)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the supervisor, which tells us
        pass_over_hangups()
        unblock()  # the supervisor has started us with all of them blocked

    def _note_signal(self, number: int, _frame: Any) -> None:
        if not self._begun:  # loading an app may take long, and nothing has been written yet
            os._exit(0)
        with contextlib.suppress(BlockingIOError):
            os.write(self._signal_in, bytes([number]))

    def _wait(self) -> None:
        """Wait until every consumer has ended, or the stop timeout has passed."""
        parent = [self._spec.parent]
        while any(thread.is_alive() and not self._hangs(thread) for thread in self._workers):
            ready, _, _ = select.select([self._signals, *parent], [], [], _LOOK_S)
            if ticks() >= self._tell_alive_at:
                self._tell_alive_at = ticks() + _ALIVE_S
                self._spec.report_heartbeat(self._work.to_report(), self._health(ticks()).to_text())
                self._context.recycler.look(ticks())
            if self._signals in ready:
                self._on_signal(os.read(self._signals, 16))
            if parent and parent[0] in ready:
                log.warning("the supervisor is gone; stopping")
                parent = []
                self._orphaned = True
                self._stop_gently()
            if self._broadcasts is not None:
                self._broadcasts.look_after(ticks())
            if self._stop_by is not None and ticks() > self._stop_by:
                self._stop_at_once(f"messages still ran {self._stop_timeout_s:g} s after the stop")
        self._spec.tell(ENDING)
        if self._context.claims.hanging:
            self._context.lease.abandon()
        self._end_sides()

    def _end_sides(self) -> None:
        for side in reversed(self._sides):
            side.stop()
            side.join(_SIDES_S)
        self._flusher.close()

    # -- health: without locks that a thread may hold while it waits for the server -----------------------------------

    def _health(self, now: float) -> ChildHealth:
        silent_s = now - self._context.poller.looked_at
        silent_s = silent_s if silent_s > self._poll_max_s + _AWAY_S else 0.0
        full = self._context.broker.database.full
        refused = self._context.poller.refused_by or self._context.lease.refused_by
        refusal = "" if refused is None else str(refused)
        return ChildHealth(self._stalled(now), self._away(silent_s, refusal, full), silent_s, refusal, full)

    def _stalled(self, now: float) -> str:
        claims = self._context.claims
        if reason := self._hang or claims.overdue(now - _UNSEEN_S):
            return reason
        for thread in [*self._sides, *self._workers]:
            last = max(thread.turned_at, claims.began_at(thread.ident, now))
            if thread is self._broadcasts and thread.runs:
                continue  # it has a watch of its own
            if now - last > _STALLED_S:
                return f"thread {thread.name} has made no progress for {now - last:.0f} s"
        return ""

    def _away(self, silent_s: float, refusal: str, full: str) -> str:
        if refusal:  # it keeps the leases from being renewed, too
            return f"the server refuses the user: {refusal}"
        if full:
            return f"the disk of the server is full: {full}"
        if not self._context.lease.good:
            return "the server has not renewed its leases in time"
        return f"no look for work has succeeded for {silent_s:.0f} s" if silent_s else ""

    def _hangs(self, thread: Runnable) -> bool:
        if thread is self._broadcasts:
            return self._broadcasts.hangs
        return thread.ident in self._context.claims.hanging

    def _on_signal(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGQUIT:
                self._stop_at_once("told to stop at once")
            elif number == _DUE:
                self._take_no_more()  # there is no hurry: what runs has time limits of its own
            elif number == _DIED:
                self._die()
            else:
                self._stop_gently()

    def _stop_gently(self) -> None:
        if self._stop_by is None:
            self._stop_by = ticks() + self._stop_timeout_s
        self._take_no_more()

    def _take_no_more(self) -> None:
        for thread in self._workers:
            thread.stop()
        self._context.poller.stop()
        if self._listener is not None:
            self._listener.stop()

    def _stop_at_once(self, why: str) -> None:
        log.warning("%s: giving back what runs", why)
        self._spec.tell(ENDING)
        for thread in self._workers:
            thread.stop()  # none of them may take a new claim while the others' are given back
        with contextlib.closing(self._context.broker.channel()) as channel:
            self._context.claims.give_everything_back(channel)
        self._end_now()

    def _die(self) -> None:
        """End as a crash does: what ran may be the reason, so its claims are left to recovery and to isolation."""
        log.error("a thread has died; what runs is left to recovery")
        self._spec.tell(ENDING)
        for thread in self._workers:
            thread.stop()
        self._end_now()

    def _end_now(self) -> NoReturn:
        self._context.lease.abandon()
        self._stop_hooks.call()
        self._report_exit()
        logging.shutdown()
        os._exit(self._exit_code)

    def _on_hang(self, why: str) -> None:
        log.error("%s; this process will be replaced", why)
        self._hang = why
        if self._context.recycler.ran:  # one that hangs before it has done anything counts as a crash
            self._last_words = HUNG + why
        self._exit_code = FAILED
        if self._stop_by is None:
            self._note_signal(signal.SIGTERM, None)

    def _on_due(self, why: str) -> None:
        log.info("%s; this process will be replaced", why)
        self._last_words = RECYCLING + why
        self._note_signal(_DUE, None)

    def _on_death(self, name: str, error: BaseException) -> None:
        self._exit_code = FAILED
        self._note_signal(_DIED, None)

    def _on_side_death(self, name: str, error: BaseException) -> None:
        """End the process; no message is to blame if the server refuses what a thread without handlers asks for."""
        self._exit_code = FAILED
        self._note_signal(signal.SIGQUIT if isinstance(error, EmsError) else _DIED, None)


def _result_writer(app: Ems) -> ResultWriter:
    if app.settings.result_backend != "redis":
        return ResultWriter(app.settings.result_ttl_s)
    from emsworker.broker.results import RedisResults

    assert app.settings.redis_url is not None, "checked by Settings"
    return ResultWriter(app.settings.result_ttl_s, RedisResults(app.settings.redis_url, app.stream.stream_id))


def _read_spec(arguments: Sequence[str]) -> ChildSpec:
    try:
        return ChildSpec.from_json(read_scratch(int("".join(arguments))))
    except (OSError, ValueError):
        return ChildSpec.from_json("")  # the error is the same


def main(arguments: Sequence[str]) -> int:
    """Run a child and return its exit code; user errors are reported in one line, without a traceback."""
    claim_role("worker")
    try:
        spec = _read_spec(arguments)
    except EmsError as error:
        print(f"Error: {error}", file=sys.stderr)
        return USAGE
    configure_logging(spec.log_level, spec.log_format, spec.log_repeats)
    try:
        return Child(spec).run()
    except StoreUnavailable as error:
        spec.tell(AWAY + str(error))
        return FAILED
    except (EmsError, ConfigError) as error:
        spec.tell(str(error))
        return USAGE


# A signal to a process that a handler forks is not for this process: it must not write to the pipe that both share. A
# signal that arrives before the fork has its default handlers back is blocked until then, or Python would lose it.


def _hold_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def _leave_signals() -> None:
    for number in (*_STOPS, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _let_signals()


if __name__ == "__main__":
    code = FAILED
    try:
        code = main(sys.argv[1:])
    except Exception:
        log.exception("the main thread died")
    finally:
        logging.shutdown()
        os._exit(code)  # a thread that hangs in a handler must not keep the process alive
