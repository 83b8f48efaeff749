"""Label sets of metrics stay bounded, whatever the senders of messages put into them."""

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from emsworker.core.model import TASK_HEADER, Outcome
from emsworker.observe.bounded import OTHER, BoundedNames
from emsworker.observe.metrics import Metrics


def _series(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


def _message(number: int, task: str) -> Any:
    return SimpleNamespace(
        topic="t", key=f"key-{number}", headers={TASK_HEADER: task}, attempt=1, run=SimpleNamespace(waited_s=0.1)
    )


def test_a_hundred_thousand_keys_make_no_series() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.after_run(_message(0, "shop.charge"), "g", Outcome.DONE, None, 0.1)
    before = _series(registry)
    for number in range(100_000):
        metrics.after_run(_message(number, "shop.charge"), "g", Outcome.DONE, None, 0.1)
    assert _series(registry) == before


def test_names_of_tasks_that_senders_invent_share_one_series() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for number in range(3000):
        message = _message(number, f"invented.{number}")
        metrics.on_dead(message, "g", ValueError(), "no such task")
        metrics.on_retry(message, "g", ValueError(), 1.0)
    names = {one.labels["task"] for family in registry.collect() for one in family.samples if "task" in one.labels}
    assert len(names) == 1001 and OTHER in names
    assert registry.get_sample_value("ems_dead_total", {"topic": "t", "group": "g", "task": OTHER}) == 2000


def test_those_that_came_first_keep_their_names() -> None:
    name = BoundedNames(2)
    assert [name(one) for one in ("a", "b", "c", "a", "c", "b")] == ["a", "b", OTHER, "a", OTHER, "b"]
    assert BoundedNames()("x" * 191) == OTHER
