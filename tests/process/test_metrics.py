"""T7: the hooks, used by the metrics of a real worker."""

import urllib.request

from emsworker import Ems
from tests.process.stream import Stream
from tests.support.waiting import until

FIRST, LAST = 19464, 19528


def _pages(ports: range) -> dict[int, str]:
    found = {}
    for port in ports:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
                found[port] = answer.read().decode()
        except OSError:
            continue
    return found


def _total(line: str) -> float:
    """Over the processes, each of which counts by itself."""
    return sum(
        float(text.rsplit(" ", 1)[1])
        for page in _pages(range(FIRST, FIRST + 4)).values()
        for text in page.splitlines()
        if text.startswith(line + " ")
    )


def test_t7_a_worker_counts_what_it_runs(one_stream: Stream) -> None:
    app = Ems("caller", url=one_stream.url)
    one_stream.app = app
    fine, fails = (app.task(name=name)(print) for name in ("fine", "fails"))
    for _ in range(10):
        fine.delay()
    fails.delay()
    worker = one_stream.worker("tests.process.apps.metered:app", processes=2)
    until(lambda: one_stream.record.events("dead"), 15, "one was given up")
    one_stream.wait_settled()
    labels = 'group="workers",{}task="%s",topic="default"'
    assert _total("ems_runs_total{%s}" % (labels.format('outcome="done",') % "fine")) == 10
    assert _total("ems_runs_total{%s}" % (labels.format('outcome="failed",') % "fails")) == 2
    assert _total("ems_retries_total{%s}" % (labels.format("") % "fails")) == 1
    assert _total("ems_dead_total{%s}" % (labels.format("") % "fails")) == 1
    assert _total("ems_run_seconds_count{%s}" % (labels.format("") % "fine")) == 10
    assert len(_pages(range(FIRST, FIRST + 4))) == 2, "each process serves its own"
    ((reason, error),) = [(event["reason"], event["error"]) for event in one_stream.record.events("dead")]
    assert reason == "used up its 2 attempts" and error == "ValueError('no')"
    assert worker.stop() == 0
    assert _pages(range(FIRST, FIRST + 4)) == {}


def test_t7_hooks_and_metrics_in_memory() -> None:
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
