"""The hooks, used by the metrics of a real worker."""

import os
import signal
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from emsworker import Ems
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import Program, kill


def page(worker: Program) -> str:
    with urllib.request.urlopen(f"{worker.http}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = answer.read().decode()
        return text


def value(text: str, sample: str) -> float:
    """Over all processes."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(sample + " "))


def test_a_worker_sums_up_what_its_processes_run_though_one_is_killed(one_stream: Stream) -> None:
    app = Ems("caller", url=one_stream.url)
    one_stream.app = app
    fine, fails = (app.task(name=name)(print) for name in ("fine", "fails"))
    for _ in range(10):
        fine.delay()
    fails.delay()
    worker = one_stream.worker("tests.process.apps.metered:app", processes=2, http="0")
    until(lambda: one_stream.record.events("dead"), 15, "one was given up")
    one_stream.wait_settled()
    labels = 'group="workers",{}task="%s",topic="default"'
    text = page(worker)
    assert value(text, "ems_runs_total{%s}" % (labels.format('outcome="done",') % "fine")) == 10
    assert value(text, "ems_runs_total{%s}" % (labels.format('outcome="failed",') % "fails")) == 2
    assert value(text, "ems_retries_total{%s}" % (labels.format("") % "fails")) == 1
    assert value(text, "ems_dead_total{%s}" % (labels.format("") % "fails")) == 1
    assert value(text, "ems_run_seconds_count{%s}" % (labels.format("") % "fine")) == 10
    assert value(text, "ems_wait_seconds_count{%s}" % (labels.format("") % "fails")) == 1, "its first run only"
    assert 0 < value(text, "ems_wait_seconds_sum{%s}" % (labels.format("") % "fine")) < 10 * 600
    until(lambda: value(page(worker), 'ems_worker_children{state="working"}') == 2, 40, "both have become ready")
    assert value(page(worker), "ems_worker_starts_total") == 2
    ((reason, error),) = [(event["reason"], event["error"]) for event in one_stream.record.events("dead")]
    assert reason == "used up its 2 attempts" and error == "ValueError('no')"

    for child in worker.children():
        kill(child, signal.SIGKILL)
    done = "ems_runs_total{%s}" % (labels.format('outcome="done",') % "fine")
    assert value(page(worker), done) == 10, "no counter goes backwards"
    until(lambda: value(page(worker), "ems_worker_starts_total") == 4, 40, "two others start")
    for _ in range(5):
        fine.delay()
    until(lambda: value(page(worker), done) >= 15, 30, "they go on counting")
    assert value(page(worker), done) == 15
    assert worker.stop() == 0


@pytest.mark.parametrize("size", ["64k", "300k"])
def test_a_worker_counts_where_shared_memory_is_full(one_stream: Stream, tmp_path: Path, size: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", small], check=False).returncode:
        assert not os.environ.get("CI"), "this user may not mount, so that the test has nothing to show"
        pytest.skip("this user may not mount")
    try:
        app = Ems("caller", url=one_stream.url)
        one_stream.app = app
        fine = app.task(name="fine")(print)
        where = {"PROMETHEUS_MULTIPROC_DIR": str(small)}
        worker = one_stream.worker("tests.process.apps.metered:app", processes=3, http="0", environ=where)
        with suppress(OSError), (small / "other").open("wb", buffering=0) as other:
            while other.write(bytes(4096)):  # what was left
                pass
        for _ in range(30):
            fine.delay()
        done = 'ems_runs_total{group="workers",outcome="done",task="fine",topic="default"}'
        until(lambda: value(page(worker), done) == 30, 40, "they count")
        assert value(page(worker), "ems_worker_starts_total") == 3, "none has ended"
        assert worker.text().count("has no space") >= 1 and worker.stop() == 0
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_hooks_and_metrics_in_memory() -> None:
    import prometheus_client

    from emsworker.observe.metrics import Metrics

    registry = prometheus_client.CollectorRegistry()
    app = Ems("memory", middleware=[Metrics(registry=registry)])

    @app.task(name="fails", max_attempts=3)
    def fails() -> None:
        raise ValueError("no")

    with app.test() as test:
        fails.delay()
        test.run()
    labels = {"topic": "default", "group": "workers", "task": "fails"}
    assert registry.get_sample_value("ems_sent_total", {"topic": "default"}) == 1
    assert registry.get_sample_value("ems_retries_total", labels) == 2
    assert registry.get_sample_value("ems_dead_total", labels) == 1
    assert registry.get_sample_value("ems_runs_total", labels | {"outcome": "failed"}) == 3
