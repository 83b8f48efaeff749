"""Prometheus metrics: middleware that counts what a process sends and runs, and the sum over a worker's processes.

The children of ``ems worker --http`` count in files that the supervisor reads (prometheus_client's multiprocess mode).
A file belongs to the child's place, not to its process: a successor goes on where its predecessor ended, so no counter
goes backwards, whatever killed it, and the files do not become more.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emsworker.core.errors import DecodeError
from emsworker.core.extras import hint_if_missing, require
from emsworker.core.model import TASK_HEADER, Message, Outcome, Receipt
from emsworker.observe.bounded import BoundedNames
from emsworker.observe.shared_files import use_reserved_files
from emsworker.tasks.middleware import Middleware

if TYPE_CHECKING:
    from emsworker.publish.outgoing import Outgoing

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_TRIES = 3
_RUN_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)


class _RunSeries(NamedTuple):
    """Counters of the runs of one task with one outcome, kept because prometheus_client looks labels up slowly."""

    count: Any
    seconds: Any
    waits: Any


class Metrics(Middleware):
    """Counts messages and times handlers; ``Ems(middleware=[Metrics()])``. Needs the extra ``metrics``.

    ``ems worker --http`` adds it to an app that has none, and serves the sum over its processes. Any other program
    serves the registry by itself.

    Args:
        registry: of prometheus_client, by default its own.
    """

    def __init__(self, registry: Any = None) -> None:
        require("metrics", type(self).__name__)
        import prometheus_client as prometheus

        kept: dict[str, Any] = {"registry": registry if registry is not None else prometheus.REGISTRY}
        run = ("topic", "group", "task")
        self.sent = prometheus.Counter("ems_sent", "Messages sent", ("topic",), **kept)
        self.runs = prometheus.Counter("ems_runs", "Runs by outcome", (*run, "outcome"), **kept)
        self.seconds = prometheus.Histogram("ems_run_seconds", "How long runs took", run, buckets=_RUN_S, **kept)
        self.waits = prometheus.Histogram(
            "ems_wait_seconds", "How long messages waited until their first run", run, buckets=_WAIT_S, **kept
        )
        self.retries = prometheus.Counter("ems_retries", "Runs that will be repeated", run, **kept)
        self.dead = prometheus.Counter("ems_dead", "Messages that were given up", run, **kept)
        self._task_name = BoundedNames()
        self._run_series: dict[tuple[str, str, str, Outcome], _RunSeries] = {}

    def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
        """Count a message that was sent, unless it was there already."""
        if receipt.created:
            self.sent.labels(receipt.topic).inc()

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Count and time a run."""
        labels = self._labels(message, group)
        run = self._run_series.get((*labels, outcome)) or self._find_series(labels, outcome)
        run.count.inc()
        run.seconds.observe(ran_s)
        if message.attempt == 1 and (waited_s := message.run.waited_s) is not None:
            run.waits.observe(waited_s)

    def _find_series(self, labels: tuple[str, str, str], outcome: Outcome) -> _RunSeries:
        found = _RunSeries(
            self.runs.labels(*labels, outcome.value), self.seconds.labels(*labels), self.waits.labels(*labels)
        )
        self._run_series[*labels, outcome] = found
        return found

    def on_retry(self, message: Message, group: str, error: BaseException, delay_s: float) -> None:
        """Count a run that will be repeated."""
        self.retries.labels(*self._labels(message, group)).inc()

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        """Count a message that was given up."""
        self.dead.labels(*self._labels(message, group)).inc()

    def _labels(self, message: Message, group: str) -> tuple[str, str, str]:
        try:
            task = message.headers.get(TASK_HEADER, "")
        except DecodeError:  # that failure is counted, too, without a task
            task = ""
        return message.topic, group, self._task_name(task)


class CpuSeconds:
    """Counter of the processor time of handlers by task; make it after :func:`share_metrics`. Needs ``metrics``."""

    def __init__(self) -> None:
        require("metrics", type(self).__name__)
        import prometheus_client as prometheus

        text = "Processor time of handlers that are no coroutines"
        self._seconds = prometheus.Counter("ems_run_cpu_seconds", text, ("topic", "group", "task"))

    def add(self, topic: str, group: str, task: str, seconds: float) -> None:
        """Count the time of some runs."""
        self._seconds.labels(topic, group, task).inc(seconds)


# -- the metrics of a whole worker -------------------------------------------------------------------------------------


def missing_metrics(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Return :class:`Metrics` if an app's middleware has none, and the extra is installed; otherwise nothing."""
    if hint_if_missing("metrics") or any(isinstance(one, Metrics) for one in middleware):
        return ()
    return (Metrics(),)


def share_metrics(folder: Path, number: int) -> None:
    """Let this process count in files of a folder; call it before the first metric is made.

    Args:
        number: index of this process among those that share the folder; its successor has the same.
    """
    if hint_if_missing("metrics"):
        return
    os.environ[_FOLDER] = str(folder)
    use_reserved_files()
    from prometheus_client import values as prometheus_values

    own = os.getpid()

    def place() -> str:  # two processes must not share a file: one that a handler forks has its own
        return str(number) if os.getpid() == own else f"{number}-{os.getpid()}"

    values: Any = prometheus_values  # these have no types
    values.ValueClass = values.MultiProcessValue(place)


class BeatCounts(NamedTuple):
    """A beat's numbers: whether it leads, how long a lock has held up others, and the runs and failures of services."""

    leading: bool
    locked_s: float
    runs: Mapping[str, int]
    failures: Mapping[str, int]


def render_worker(folder: Path, children: Mapping[str, int], starts: int, beat: BeatCounts | None = None) -> bytes:
    """Return the metrics of a worker as text: the sums over its children, its children by state, and its beat.

    Args:
        children: the number of children in each state.
        starts: child processes that have been started.
        beat: the numbers of the beat in it, if it has one.

    Raises:
        ExtraMissing: prometheus_client is not installed.
    """
    require("metrics", "/metrics")
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    registry.register(_Children(children, starts))
    if beat is not None:
        registry.register(_Beat(beat))
    collector: Any = MultiProcessCollector  # it has no types
    collector(registry, str(folder))
    for tries in range(_TRIES):
        try:
            return bytes(generate_latest(registry))
        except (struct.error, ValueError, RuntimeError):  # a file is being made
            if tries == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def render_beat(beat: BeatCounts) -> bytes:
    """Return the metrics of a beat as text.

    Raises:
        ExtraMissing: prometheus_client is not installed.
    """
    require("metrics", "/metrics")
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Beat(beat))
    return bytes(generate_latest(registry))


class _Beat:
    """Collector of the metrics of a beat."""

    def __init__(self, beat: BeatCounts) -> None:
        self._beat = beat

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily("ems_beat_leading", "1 if this beat leads, else 0", value=float(self._beat.leading))
        text = "Seconds for which a lock on the stream's tables has held up others, as the leading beat sees it"
        yield GaugeMetricFamily("ems_beat_locked_seconds", text, value=self._beat.locked_s)
        for name, text, counts in (
            ("ems_beat_runs", "Runs of the beat's services", self._beat.runs),
            ("ems_beat_failures", "Runs of the beat's services that failed", self._beat.failures),
        ):
            family = CounterMetricFamily(name, text, labels=("service",))
            for service, count in counts.items():
                family.add_metric((service,), count)
            yield family


class _Children:
    """Collector of the metrics of the supervisor."""

    def __init__(self, children: Mapping[str, int], starts: int) -> None:
        self._children, self._starts = children, starts

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        states = GaugeMetricFamily("ems_worker_children", "Child processes of the worker by state", labels=("state",))
        for state, count in self._children.items():
            states.add_metric((state,), count)
        yield states
        yield CounterMetricFamily("ems_worker_starts", "Child processes that were started", value=self._starts)
