"""Fair groups and worker tags, through real workers."""

import signal
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from emsworker.admin.check import check
from emsworker.admin.monitoring import Monitoring
from emsworker.store.engine.database import Database
from emsworker.tasks.task import Task
from tests.process.apps import fair as app
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import kill

_APP = "tests.process.apps.fair:app"


def _call(stream: Stream, task: Task, calls: Sequence[tuple[Any, ...]]) -> None:
    """Send calls of a task, as a program does that has its declaration."""
    app.app.reconfigure(url=stream.url)
    task.delay_many(calls)


def test_a_small_customer_is_served_beside_a_flood_also_after_kill_9(stream: Stream) -> None:
    workers = [stream.worker(_APP, groups=["fair"], processes=1, threads=3, settings={"beat_s": 0.2}) for _ in range(2)]
    _call(stream, app.serve, [(n, "flood") for n in range(1000)])
    until(lambda: len(stream.record.numbers(tenant="flood")) > 20, 30, "the flood is run")
    for number in range(10_000, 10_006):
        _call(stream, app.serve, [(number, "small")])
        sent = time.monotonic()
        until(partial(stream.record.numbers, "start", n=number), 30, stream.logs())
        (began,) = (one["at"] for one in stream.record.events("start", n=number))
        first = [one for one in stream.record.events("start", tenant="flood") if sent < one["at"] < began]
        assert len(first) <= 6 * 2 * 3, "it waits for claims of 5 ms that were taken, or are just being, by six threads"
    for child in workers[0].children():
        kill(child, signal.SIGKILL)
    stream.wait_ended([*range(1000), *range(10_000, 10_006)], 90)
    stream.wait_settled(60)
    starts = Counter(stream.record.numbers("start"))
    again = sum(count - 1 for count in starts.values())
    assert again <= 3 * 100, "what is run again is what finished in the last 100 ms of three threads, and what ran"
    assert stream.one("SELECT COUNT(*) FROM ems_dead") == 0
    assert all(worker.stop() == 0 for worker in workers)


def _most_at_once(stream: Stream, tenant: str, ended: dict[int, float]) -> int:
    """The most messages of a key that ran at once; those of a killed process ended with it."""
    events = stream.record.events(tenant=tenant)
    ends = {(one["pid"], one["n"]): one["at"] for one in events if one["event"] == "end"}
    runs: list[tuple[float, float]] = [
        (one["at"], ends.get((one["pid"], one["n"]), ended.get(one["pid"], 0.0)))
        for one in events
        if one["event"] == "start"
    ]
    return max(sum(began <= at < end for began, end in runs) for at, _ in runs)


def test_no_key_holds_more_threads_of_all_workers_than_its_limit_also_after_kill_9(stream: Stream) -> None:
    workers = [
        stream.worker(_APP, groups=["limited"], processes=1, threads=3, settings={"beat_s": 0.2}) for _ in range(2)
    ]
    _call(stream, app.limited, [(n, "large") for n in range(60)])
    until(lambda: len(stream.record.numbers(tenant="large")) > 5, 30, stream.logs())
    _call(stream, app.limited, [(n, f"small-{n % 3}") for n in range(100, 112)])
    until(lambda: len(stream.record.numbers("start")) > 20, 30, stream.logs())
    ended = {}
    for child in workers[0].children():
        kill(child, signal.SIGKILL)
        ended[child] = time.monotonic()
    stream.wait_ended([*range(60), *range(100, 112)], 90)
    stream.wait_settled(60)
    assert _most_at_once(stream, "large", ended) == 2
    assert all(_most_at_once(stream, f"small-{n}", ended) <= 2 for n in range(3))
    last = max(one["at"] for one in stream.record.events("end", tenant="large"))
    assert all(one["at"] < last for n in range(3) for one in stream.record.events(tenant=f"small-{n}"))
    assert all(worker.stop() == 0 for worker in workers)


def test_only_workers_with_its_tags_run_a_task_and_it_holds_up_no_other(one_stream: Stream) -> None:
    stream = one_stream
    plain = stream.worker(_APP, topics=["work"])
    _call(stream, app.render, [(n,) for n in range(20)])
    _call(stream, app.plain, [(n,) for n in range(100, 120)])
    stream.wait_ended(range(100, 120))
    assert set(stream.record.numbers()) == set(range(100, 120)), "nobody has a GPU"
    found = [one for one in check(stream.url, None, {}) if one.name == "tags"]
    assert [one.value.partition(",")[0] for one in found] == [
        "no worker with tags eu and gpu",
        "no worker with tag gpu",
    ]
    assert "group 'workers-gpu' of topic 'work'" in found[1].value and "--tags gpu`" in found[1].fix
    lags = Monitoring(Database(stream.url)).lag(10_000, topic="work", group="workers-gpu")
    assert [one.lag >= 20 for one in lags] == [True], "nothing is lost"
    gpu = stream.worker(_APP, topics=["work"], tags=["gpu"])
    stream.wait_ended(range(20))
    assert "no worker with tag gpu" not in [one.value.partition(",")[0] for one in check(stream.url, None, {})]
    assert plain.stop() == 0
    _call(stream, app.plain, [(200,)])
    _call(stream, app.train, [(300,)])
    stream.wait_ended([200])
    both = stream.worker(_APP, topics=["work"], tags=["gpu", "eu"])
    stream.wait_ended([300])
    assert "leaves" in gpu.text() and "requires tags eu and gpu" in gpu.text()
    stream.wait_settled()
    assert gpu.stop() == 0 and both.stop() == 0


def test_a_worker_that_would_have_nothing_to_run_says_so(one_stream: Stream) -> None:
    program = one_stream.start("worker", {}, app=_APP, groups=["workers-gpu"])
    assert program.wait() == 2, program.text()
    assert "work/workers-gpu requires tag gpu" in program.text()
