"""Cancelled messages and retries without a body, through a real worker."""

import random
import signal
import time
from collections.abc import Iterator

import pytest

from emsworker import Cancelled, Ems
from emsworker.tasks.task import Task
from tests.process.apps import cancelled as app
from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import until
from tests.support.worker import kill

_APP = "tests.process.apps.cancelled:app"
_LATE_S = 4.0


def test_a_worker_skips_what_is_cancelled_and_drops_what_has_no_body(one_stream: Stream) -> None:
    stream = one_stream
    receipts = stream.app.send_many("acts", [{"n": n} for n in range(6)])
    assert all(stream.app.cancel(receipt) for receipt in receipts[1:4])
    stream.worker(settings={"ladder": "2s"}, topics=["acts"], groups=["a"])
    stream.wait_ended([0, 4, 5])
    failing = stream.app.send("acts", {"n": 6, "do": "fail"})
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_retry WHERE claim_id IS NULL"), 20, "it waits for a retry")
    stream.run("DELETE FROM ems_message WHERE uid = %s", bytes.fromhex(failing.id.replace("-", "")))
    stream.wait_settled()
    stream.app.send("acts", {"n": 7})
    stream.wait_ended([7])
    assert set(stream.record.numbers()) & {1, 2, 3} == set()


def _tasks(stream: Stream, *tasks: Task) -> Iterator[Task]:
    """The tasks as their caller knows them, who has an app of its own."""
    stream.app = Ems("caller", url=stream.url)
    for task in tasks:
        options = {"transactional": True} if task.options.transactional else {}
        yield stream.app.task(name=task.name, topic=task.topic, group="a", bind=task.bind, **options)(task.function)


def test_running_messages_are_interrupted(stream: Stream) -> None:
    tasks = list(_tasks(stream, app.spin, app.swallow, app.look, app.transact, app.wait))
    stream.worker(_APP, topics=["runs"], processes=1, threads=len(tasks), settings={"beat_s": 0.2})
    calls = [task.delay(n) for n, task in enumerate(tasks)]
    numbers = list(range(len(tasks)))
    until(lambda: stream.record.numbers("begin") == numbers, 20, stream.logs())
    assert [stream.app.result(call).status for call in calls] == ["pending"] * 5
    began = machine_s()
    assert all(stream.app.cancel(call) for call in calls)
    results = [stream.app.result(call) for call in calls]
    for result in results:
        with pytest.raises(Cancelled, match=f"{result.id} was cancelled"):
            result.get(20)
        assert result.status == "cancelled" and not result.failed
    assert machine_s() - began < _LATE_S, stream.logs()
    assert stream.record.numbers("left") == [0, 1, 2, 3, 4]
    stream.wait_settled()
    outcomes = stream.rows("SELECT outcome, attempt, error FROM ems_attempt")
    assert [row[:2] for row in outcomes] == [("cancelled", 1)] * 5, "each ran once"
    assert sum("in _spin" in row[2] for row in outcomes) == 1, "the one that did not catch it says where it was"
    assert stream.rows("SELECT * FROM ems_dead") == [] and stream.rows("SELECT * FROM effect") == []
    until(lambda: not stream.rows("SELECT * FROM ems_cancel"), 10, "nobody need learn of them any more")


def test_what_waits_behind_in_the_same_claim_does_not_run(one_stream: Stream) -> None:
    stream, topics = one_stream, ["lined", "keyed"]
    sent = [[stream.app.send(topic, {"n": n}, key="k") for n in range(3)] for topic in topics]
    stream.worker(_APP, topics=topics, processes=1, threads=2)
    until(lambda: len(stream.record.numbers("begin")) == 2, 20, stream.logs())
    assert all(stream.app.cancel(receipts[n]) for n in (1, 0) for receipts in sent)
    until(lambda: stream.record.numbers() == [2, 2], 20, stream.logs())
    stream.wait_settled()
    assert stream.record.numbers() == [2, 2]


def test_nothing_runs_after_a_confirmed_cancel_whatever_dies(one_stream: Stream) -> None:
    """Half of the calls are cancelled at any time while processes are killed; the others end, and none is lost."""
    stream, choose = one_stream, random.Random(5)
    (tick,) = _tasks(stream, app.tick)
    calls = tick.delay_many([(n,) for n in range(40)])
    worker = stream.worker(
        _APP,
        topics=["ticks"],
        processes=2,
        threads=4,
        settings={"beat_s": 0.2, "lease_s": 2.0, "renew_s": 0.5, "lease_margin_s": 0.5},
    )
    victims = range(39, 0, -2)  # the last first: they wait, run, or have ended when their turn comes
    results = [stream.app.result(call) for call in calls]
    confirmed: dict[int, float] = {}

    def look() -> bool:
        for n in victims:
            if n not in confirmed and results[n].status == "cancelled":
                confirmed[n] = time.monotonic()
        return all(result.status != "pending" for result in results)

    for number, victim in enumerate(victims):
        until(lambda n=number: len(stream.record.events("tick")) > 12 * n, 30, stream.logs())
        assert stream.app.cancel(calls[victim]) or results[victim].status == "done"
        look()
        if number % 8 == 4:
            until(lambda: len(worker.children()) == 2, 20, "the one that was killed before has its successor")
            kill(choose.choice(worker.children()), signal.SIGKILL)
    until(look, 40, stream.logs())
    stream.wait_settled(30)
    after = [one for one in stream.record.events("tick") if one["at"] > confirmed.get(one["n"], one["at"])]
    assert after == []
    assert len(confirmed) > 5, "some were cancelled in time"
    assert {n for n in range(40) if results[n].status == "done"} == set(range(40)) - set(confirmed)
    assert stream.rows("SELECT * FROM ems_dead") == []
