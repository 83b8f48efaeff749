"""A worker's child process: loads the app, runs its consumer threads, and ends on a signal or if its parent is gone.

The exit code is for the supervisor: 0 if the child was told to stop; USAGE if the app or the settings are wrong, so
that another child would fail too; anything else is a crash. A child that wants to be replaced says so in its last
message on the status pipe, because any handler can end the process with any exit code.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from emsworker.app import Ems
from emsworker.consume.completer import Completer
from emsworker.consume.coroutines import EventLoop
from emsworker.consume.lease import LeaseRenewer
from emsworker.consume.listener import Listener
from emsworker.consume.poller import Poller
from emsworker.consume.result_writer import ResultWriter
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, EmsError, StoreUnavailable
from emsworker.core.ids import local_ip
from emsworker.core.model import Order
from emsworker.core.process.clock import ticks
from emsworker.core.process.role import claim_role
from emsworker.core.process.runnable import Runnable, watch_threads
from emsworker.core.process.signals import unblock
from emsworker.loader import load_app
from emsworker.tasks.handlers import declare_handlers
from emsworker.tasks.limits import declare_limit
from emsworker.tasks.middleware import hooks
from emsworker.tasks.periodic import declare_schedules
from emsworker.worker.broadcast import BroadcastReader
from emsworker.worker.consumer import Assignment, Consumer, Shared
from emsworker.worker.preflight import chosen_routes
from emsworker.worker.recycling import Recycler

log = logging.getLogger(__name__)

USAGE, FAILED = 2, 1
READY, ENDING, RECYCLING, HUNG = "ready", "ending", "recycling: ", "hung: "
_URL, _REDIS_URL = "EMS_CHILD_URL", "EMS_CHILD_REDIS_URL"
_LOOK_S = 0.2
_SIDES_S = 5.0
_ALIVE_S = 1.0
_STOPS = (signal.SIGTERM, signal.SIGQUIT)
_DUE = 0  # among the numbers of signals


@dataclass(frozen=True)
class ChildSpec:
    """The supervisor's instructions to a child, as JSON on its command line.

    Args:
        app: ``module`` or ``module:name``.
        topics: the topics to consume; empty for all that the app has handlers for.
        groups: the groups to run; empty for all.
        threads: consumer threads, or ``None`` for the app's setting.
        process_id: groups the client rows of this process.
        name: the worker's name, for display.
        log_level: a level name of the standard logging module.
        parent: a descriptor whose other end the supervisor holds; the child ends when it closes.
        url, redis_url: addresses that override the app's own, as ``--url`` does; ``None`` keeps the app's.
        status: the descriptor on which to report "ready", an error, or the reason for a replacement.
        max_tasks, max_memory_mib: limits at which to be replaced, or ``None`` for the app's settings.
        number: index of this child in its worker; its replacement has the same.
    """

    app: str
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    threads: int | None
    process_id: str
    name: str
    log_level: str
    parent: int
    url: str | None = field(default=None, repr=False)
    redis_url: str | None = field(default=None, repr=False)
    status: int = -1
    max_tasks: int | None = None
    max_memory_mib: int | None = None
    number: int = 0

    def to_json(self) -> str:
        """Serialize for the command line, without addresses: any user can read it, and addresses have passwords."""
        return json.dumps(asdict(self) | {"url": None, "redis_url": None})

    @property
    def addresses(self) -> dict[str, str]:
        """Environment variables with the addresses; other users cannot read them."""
        if self.url is None:
            return {}
        return {_URL: self.url, _REDIS_URL: self.redis_url or ""}

    @classmethod
    def from_json(cls, text: str) -> ChildSpec:
        """Parse the command line.

        Raises:
            EmsError: the text is not a serialized :class:`ChildSpec`.
        """
        try:
            values = json.loads(text)
            return cls(**values | {"topics": tuple(values["topics"]), "groups": tuple(values["groups"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            raise EmsError("a child was not told by a supervisor what to do; run `ems worker`") from None

    def with_addresses(self) -> ChildSpec:
        """Return a copy with the addresses that the supervisor set in the environment, and remove them there."""
        url, redis_url = os.environ.pop(_URL, None), os.environ.pop(_REDIS_URL, None)
        return replace(self, url=url, redis_url=redis_url or None)

    def tell(self, text: str) -> None:
        """Report "ready" to the supervisor, or in one line an error or the reason why this process ends."""
        with contextlib.suppress(BrokenPipeError):  # the supervisor is gone; the other pipe shows that too
            os.write(self.status, text.encode()[:60000] + b"\0")

    def tell_alive(self) -> None:
        """Report only that this process can run Python code; never wait for a supervisor that is paused."""
        _, writable, _ = select.select([], [self.status], [], 0)
        if writable:
            self.tell("")


class Child:
    """The process's main thread: starts the other threads and waits for signals."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._signals, self._signal_in = os.pipe()
        self._stop_by: float | None = None
        self._exit_code = 0
        self._last_words: str | None = None
        self._stop_timeout_s = 0.0
        self._consumers: list[Consumer] = []
        self._sides: list[Runnable] = []
        self._broadcasts: BroadcastReader | None = None
        self._listener: Listener | None = None
        self._begun = False  # there is something that a stop must end in order
        self._tell_alive_at = 0.0

    def run(self) -> int:
        """Run until told to stop, and return the exit code."""
        self._catch_signals()
        watch_threads(self._on_death)
        app = load_app(self._spec.app)
        if self._spec.url is not None:
            app.settings = replace(app.settings, url=self._spec.url, redis_url=self._spec.redis_url)
        self._stop_timeout_s = app.settings.stop_timeout_s
        self._begun = True
        self._start(app)
        for hook in hooks(app.middleware, "on_process_start"):
            hook()
        self._spec.tell(READY)
        self._wait()
        for hook in hooks(app.middleware, "on_process_stop"):
            hook()
        self._say_last_words()
        return self._exit_code

    def _say_last_words(self) -> None:
        if self._last_words is not None:
            self._spec.tell(self._last_words)

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start(self, app: Ems) -> None:
        broadcasts = self._broadcasts = self._listen(app)
        assignments = {assignment.group.id: assignment for assignment in self._assignments(app)}
        settings, database = app.settings, app.database
        topic_of = {group_id: assignment.topic.id for group_id, assignment in assignments.items()}
        lease = LeaseRenewer(
            database, settings, self._spec.process_id, self._spec.name, local_ip(app.url), self._on_death
        )
        also = broadcasts.look if broadcasts is not None else None
        in_order = [
            group_id for group_id, assignment in assignments.items() if assignment.group.order is not Order.NONE
        ]
        poller = Poller(database, settings, topic_of, in_order, self._on_death, also)
        completer = Completer(
            database,
            settings,
            lambda group_id: assignments[group_id].ladder(settings.jitter),
            self._on_hang,
            self._on_death,
        )
        declare_schedules(app)
        result_writer = _result_writer(app)
        recycler = self._recycler = self._make_recycler(settings)
        shared = Shared(
            database,
            settings,
            app.decoder,
            app.middleware,
            assignments,
            lease,
            poller,
            completer,
            result_writer,
            recycler,
            loop=EventLoop(self._on_death),
        )
        threads = self._spec.threads or settings.threads
        self._consumers = [Consumer(number, shared, self._on_death) for number in range(threads)]
        self._lease, self._poller, self._completer = lease, poller, completer
        self._sides = [lease, poller, completer]
        app.on_publish = poller.ring
        if app.redis_url is not None:
            topic_ids = {*topic_of.values(), *(broadcasts.topic_ids if broadcasts is not None else ())}
            self._listener = Listener(app.redis_url, app.stream_id, topic_ids, poller.ring, self._on_death)
            self._listener.start()
        for thread in [*self._sides, *self._workers]:
            thread.start()
        for consumer in self._consumers:
            consumer.registered.wait(settings.connect_timeout_s)

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
        return [*self._consumers, *([self._broadcasts] if self._broadcasts is not None else [])]

    def _listen(self, app: Ems) -> BroadcastReader | None:
        """Create the broadcast reader, if the app subscribes to any of the topics; ``--groups`` does not apply."""
        routes = [r for r in app.broadcasts.values() if not self._spec.topics or r.topic in self._spec.topics]
        if not routes:
            return None
        place = f"{self._spec.name}/{self._spec.number}"
        reader = BroadcastReader(app.database, app.settings, app.decoder, place, self._on_hang, self._on_death)
        reader.take_on(app, routes)
        return reader

    def _assignments(self, app: Ems) -> list[Assignment]:
        routes = chosen_routes(app, self._spec.app, self._spec.topics, self._spec.groups)
        assignments = []
        for route in routes:
            topic = app.catalog.topic(route.topic)
            group = app.catalog.group(topic, route.group, route.filter, route.order)
            route.check_order(group.order)
            declare_limit(app.database, group, route)
            declare_handlers(app.database, group, route)
            assignments.append(Assignment(topic, group, route))
        return assignments

    # -- signals and the end -------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        os.set_blocking(self._signal_in, False)
        for number in _STOPS:
            signal.signal(number, self._note_signal)
        os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_leave_signals)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the supervisor, which tells us
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
                self._spec.tell_alive()
            if self._signals in ready:
                self._on_signal(os.read(self._signals, 16))
            if parent and parent[0] in ready:
                log.warning("the supervisor is gone; stopping")
                parent = []
                self._stop_gently()
            if self._broadcasts is not None:
                self._broadcasts.look_after(ticks())
            if self._stop_by is not None and ticks() > self._stop_by:
                self._stop_at_once(f"messages still ran {self._stop_timeout_s:g} s after the stop")
        self._spec.tell(ENDING)
        if self._completer.hanging:
            self._lease.abandon()
        for side in reversed(self._sides):
            side.stop()
            side.join(_SIDES_S)

    def _hangs(self, thread: Runnable) -> bool:
        if thread is self._broadcasts:
            return self._broadcasts.hangs
        return thread.ident in self._completer.hanging

    def _on_signal(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGQUIT:
                self._stop_at_once("told to stop at once")
            elif number == _DUE:
                self._take_no_more()  # there is no hurry: what runs has time limits of its own
            else:
                self._stop_gently()

    def _stop_gently(self) -> None:
        if self._stop_by is None:
            self._stop_by = ticks() + self._stop_timeout_s
        self._take_no_more()

    def _take_no_more(self) -> None:
        for thread in self._workers:
            thread.stop()
        self._poller.stop()
        if self._listener is not None:
            self._listener.stop()

    def _stop_at_once(self, why: str) -> None:
        log.warning("%s: giving back what runs", why)
        for thread in self._workers:
            thread.stop()  # none of them may take a new claim while the others' are given back
        self._completer.give_everything_back()
        self._lease.abandon()
        self._say_last_words()
        logging.shutdown()
        os._exit(self._exit_code)

    def _on_hang(self, why: str) -> None:
        log.error("%s; this process will be replaced", why)
        if self._recycler.ran:  # one that hangs before it has done anything counts as a crash
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
        self._note_signal(signal.SIGQUIT, None)


def _result_writer(app: Ems) -> ResultWriter:
    if app.settings.result_backend != "redis":
        return ResultWriter(app.settings.result_ttl_s)
    from emsworker.tasks.results import RedisResults

    assert app.settings.redis_url is not None, "checked by Settings"
    return ResultWriter(app.settings.result_ttl_s, RedisResults(app.settings.redis_url, app.stream_id))


def main(arguments: Sequence[str]) -> int:
    """Run a child and return its exit code; user errors are reported in one line, without a traceback."""
    claim_role("worker")
    try:
        spec = ChildSpec.from_json("".join(arguments)).with_addresses()
    except EmsError as error:
        print(f"Error: {error}", file=sys.stderr)
        return USAGE
    level = getattr(logging, spec.log_level.upper(), logging.INFO)
    logging.basicConfig(
        level=level,
        format="%(asctime)s %(levelname)-7s %(process)d %(threadName)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        return Child(spec).run()
    except StoreUnavailable as error:
        spec.tell(str(error))
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
    for number in _STOPS:
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
