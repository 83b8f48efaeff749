"""Figures by task of a worker process, if ``task_figures_s`` is set: counted in memory, and written seldom and in bulk.

What a process has counted since its last write is lost if it is killed. Runs that it does not outlive, or that it gives
up, are not counted: they are attempts, and dead letters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from emsworker.broker.mysql import MysqlBroker
from emsworker.consume.attempts import one_line
from emsworker.consume.coroutines import CoroutineRun
from emsworker.core.errors import DecodeError, StoreError
from emsworker.core.model import TASK_HEADER, Message, Outcome
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import OnDeath, Runnable
from emsworker.core.task_figures import TaskFigures, bucket_of
from emsworker.tasks.middleware import Middleware
from emsworker.tasks.route import Route

UNKNOWN = "(unknown)"  # whoever sends a message chooses its task's name; a name that no worker knows gets no row
_FINE = (Outcome.DONE, Outcome.IGNORED, Outcome.EXPIRED, Outcome.CANCELLED)
_SWEEP_S, _SWEPT = 600.0, 1000

Cpu = Callable[[str, str, str, float], None]


class _Thread(threading.local):
    """The processor time at which the handler of this thread began, and the messages that it has begun."""

    def __init__(self) -> None:
        self.began = 0.0
        self.begun: set[bytes] = set()


class FigureCounter(Middleware):
    """Counts what a process runs, by task.

    Args:
        routes: by topic and group: the group's id and its handlers.

    Attributes:
        places: topic and name of each group, by its id.
    """

    def __init__(self, routes: Mapping[tuple[str, str], tuple[int, Route]]) -> None:
        self._routes = routes
        self.places = {group_id: place for place, (group_id, _) in routes.items()}
        self._thread = _Thread()
        self._lock = forks.Lock()
        self._counted: dict[tuple[int, str], TaskFigures] = {}

    def before_run(self, message: Message, group: str) -> None:
        """Note the processor time of the thread, unless the run shares it with others as a coroutine."""
        if not isinstance(message.run, CoroutineRun):
            self._thread.begun.add(message.uid)
            self._thread.began = time.thread_time()

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Count a run."""
        cpu_s = self._cpu_s(message)
        waited_s = message.run.waited_s if message.attempt == 1 else None
        failed = outcome not in _FINE
        with self._lock:
            if (found := self._find(message, group)) is None:
                return
            found.runs += 1
            found.spans[bucket_of(ran_s)] += 1
            if waited_s is not None:
                found.waits[bucket_of(waited_s)] += 1
            if cpu_s is not None:
                found.cpu_us += round(cpu_s * 1e6)
                found.cpu_runs += 1
            if failed:
                found.failed += 1
                found.error = found.error if error is None else one_line(error)

    def _cpu_s(self, message: Message) -> float | None:
        """Return the processor time since the thread began, or ended another message of the same batch."""
        thread = self._thread
        if message.uid not in thread.begun:
            return None
        thread.begun.discard(message.uid)
        began, thread.began = thread.began, time.thread_time()
        return max(0.0, thread.began - began)

    def on_retry(self, message: Message, group: str, error: BaseException, delay_s: float) -> None:
        """Count a run that will be repeated."""
        with self._lock:
            if (found := self._find(message, group)) is not None:
                found.retried += 1

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        """Count a message that was given up."""
        with self._lock:
            if (found := self._find(message, group)) is not None:
                found.dead += 1

    def _find(self, message: Message, group: str) -> TaskFigures | None:
        """Return the figures of a message's task; ``None`` of a broadcast."""
        place = self._routes.get((message.topic, group))
        if place is None:
            return None
        group_id, route = place
        return self._counted.setdefault((group_id, _task_of(message, route)), TaskFigures())

    def take(self) -> dict[tuple[int, str], TaskFigures]:
        """Return what was counted since the last call."""
        with self._lock:
            counted, self._counted = self._counted, {}
            return counted

    def put_back(self, counted: Mapping[tuple[int, str], TaskFigures]) -> None:
        """Take back what could not be written."""
        with self._lock:
            for place, figures in counted.items():
                if (since := self._counted.get(place)) is not None:
                    figures.add(since)
                self._counted[place] = figures


def _task_of(message: Message, route: Route) -> str:
    if route.subscription is not None:
        return ""
    try:
        name = message.headers.get(TASK_HEADER, "")
    except DecodeError:
        return UNKNOWN
    return name if name and route.find(name) is not None else UNKNOWN


class FigureWriter(Runnable):
    """Writes the figures of a process, and deletes old ones.

    Args:
        broker: keeps them.
        counter: has counted them.
        interval_s: seconds between two writes.
        cpu: counts processor time for the worker's metrics, if it has some; called with topic, group, task and seconds.
        on_death: see :class:`Runnable`.
    """

    action = "write figures by task"

    def __init__(
        self, broker: MysqlBroker, counter: FigureCounter, interval_s: float, cpu: Cpu | None, on_death: OnDeath
    ) -> None:
        super().__init__("ems-figures", on_death)
        self._cpu = cpu
        self._broker, self._counter, self._interval_s = broker, counter, interval_s
        self._sweep_at = 0.0

    def step(self) -> None:
        """Wait, write what was counted meanwhile, and now and then delete what is old."""
        self.sleep(self._interval_s)
        self._write()
        if ticks() >= self._sweep_at:
            full = self._broker.delete_old_figures(_SWEPT) >= _SWEPT
            self._sweep_at = ticks() + (self._interval_s if full else _SWEEP_S)

    def _write(self) -> None:
        counted = self._counter.take()
        if not counted:
            return
        try:
            self._broker.add_task_figures(counted)
        except StoreError:
            self._counter.put_back(counted)
            raise
        if self._cpu is not None:
            for (group_id, task), figures in counted.items():
                self._cpu(*self._counter.places[group_id], task, figures.cpu_us / 1e6)

    def shut_down(self) -> None:
        """Write what was counted last."""
        self._write()
        self._broker.database.thread_session().close()
