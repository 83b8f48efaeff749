"""The routes of ``ems worker --http`` and ``ems beat --http``: probes, and the metrics of the whole program."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from emsworker.beat.leader import BeatHealth
from emsworker.core.errors import EmsError
from emsworker.observe.http import METRICS, Answer, HttpRequest, Route
from emsworker.observe.metrics import BeatCounts, render_beat, render_worker
from emsworker.observe.shared_files import shared_folder
from emsworker.worker.health import ChildState, WorkerHealth

_IN_MEMORY = Path("/dev/shm")  # a full or slow disk must not hurt a process that counts


def worker_routes(
    health: Callable[[], WorkerHealth], metrics: Path, beat: Callable[[], BeatHealth | None] = lambda: None
) -> Mapping[str, Route]:
    """Return the routes of a worker: ``/livez``, ``/readyz``, ``/startupz`` and ``/metrics``.

    Args:
        health: returns the health of the worker now.
        metrics: the folder in which its children count.
        beat: returns the health of the beat that it runs, if any.
    """

    def page(_: HttpRequest) -> Answer:
        now, led = health(), beat()
        counts = None if led is None else BeatCounts(led.leading, led.locked_s, led.runs, led.failures)
        states = Counter(child.state for child in now.children)
        children = {state.value: states[state] for state in ChildState}
        return Answer(200, render_worker(metrics, children, now.starts, counts), METRICS)

    def of_beat() -> dict[str, Any]:
        led = beat()
        return {} if led is None else {"beat": led.to_json(led.unready)}

    return {**_probes(health, of_beat), "metrics": page}


def beat_routes(health: Callable[[], BeatHealth]) -> Mapping[str, Route]:
    """Return the routes of ``ems beat``, named as those of a worker.

    Args:
        health: returns the health of the beat now.
    """

    def page(_: HttpRequest) -> Answer:
        now = health()
        return Answer(200, render_beat(BeatCounts(now.leading, now.locked_s, now.runs, now.failures)), METRICS)

    return {**_probes(health), "metrics": page}


def _probes(
    health: Callable[[], WorkerHealth] | Callable[[], BeatHealth], more: Callable[[], dict[str, Any]] = dict
) -> dict[str, Route]:
    """Return the probes.

    Args:
        more: returns what an answer shows beside the health it is for.
    """

    def probe(judge: Callable[[WorkerHealth | BeatHealth], str]) -> Route:
        def answer(_: HttpRequest) -> Answer:
            now = health()
            problem = judge(now)
            return Answer.of_json(now.to_json(problem) | more(), 503 if problem else 200)

        return answer

    return {
        "livez": probe(lambda now: now.unlive),
        "readyz": probe(lambda now: now.unready),
        "startupz": probe(lambda now: now.unstarted),
    }


@contextmanager
def metrics_folder() -> Iterator[Path]:
    """Make a folder in which children count, and delete it at the end.

    It is below ``PROMETHEUS_MULTIPROC_DIR`` if that is set, else in memory where there is such a place with room.

    Raises:
        EmsError: no folder can be written.
    """
    given = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    where = Path(given) if given else (_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None)
    with ExitStack() as made:
        try:
            folder = made.enter_context(shared_folder(where))
        except OSError as error:
            raise EmsError(
                f"--http needs a folder in which the processes count ({error}); make {_IN_MEMORY} writable, or let "
                "TMPDIR or PROMETHEUS_MULTIPROC_DIR name one that is"
            ) from None
        yield folder
