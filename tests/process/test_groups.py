"""Groups share work, clients are visible and fenced, slow threads do not hoard."""

import re
import signal
from collections import Counter

import pytest

from emsworker import Ems
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import kill


def test_three_groups_run_each_message_once_in_four_processes_of_four_threads(stream: Stream) -> None:
    stream.send("acts", [{"n": n} for n in range(1000)])
    worker = stream.worker(processes=4, threads=4, topics=["acts"])
    stream.send("acts", [{"n": n} for n in range(1000, 2000)])
    for group in "abc":
        stream.wait_ended(range(2000), 60, group=group)
    stream.wait_settled()
    for group in "abc":
        assert stream.record.numbers(group=group) == list(range(2000))
    assert len({(one["pid"], one["thread"]) for one in stream.record.events("end")}) > 4
    assert worker.stop() == 0
    assert stream.rows("SELECT * FROM ems_client") == []
    assert stream.open_claims() == []


def test_a_stopped_worker_loses_its_work_and_finishes_nothing_of_it_afterwards(stream: Stream) -> None:
    first = stream.worker(topics=["acts"], groups=["a"], threads=2)
    old = set(first.client_ids())
    for client in old:
        assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+-\d+-[0-9a-f]{32}-\d+", client), client
    stream.send("acts", [{"n": 0, "do": "sleep", "s": 1.0, "until": 1}])
    until(lambda: stream.record.events("start"), 10, "it runs")
    children = first.children()
    for pid in [first.pid, *children]:
        kill(pid, signal.SIGSTOP)
    second = stream.worker(topics=["acts"], groups=["a"])
    until(lambda: len(stream.record.events("end")) == 1, 15, "the other worker ran it")
    assert stream.record.events("end")[0]["pid"] not in children
    for pid in [first.pid, *children]:
        kill(pid, signal.SIGCONT)
    until(lambda: len(first.client_ids()) == 2, 10, "it has registered anew")
    assert not old & set(first.client_ids())
    assert first.children() == children, "the same processes go on"
    second.stop()
    stream.send("acts", [{"n": n} for n in range(1, 20)])
    stream.wait_ended(range(1, 20))
    stream.wait_settled()
    assert first.stop() == 0
    assert Counter(stream.record.numbers("start"))[0] == 2, "its first run was overtaken, not repeated"
    by = stream.rows("SELECT client_id FROM ems_claim WHERE state = 'done' AND lo = 1")
    assert len(by) == 1 and by[0][0] not in old


def test_a_call_is_run_by_the_group_of_its_task_alone(one_stream: Stream) -> None:
    stream = one_stream
    from tests.process.apps import shared

    app = Ems("sender", url=stream.url)
    shared.mail.app = shared.bill.app = app
    worker = stream.worker("tests.process.apps.shared:app")
    for n in range(20):
        shared.mail.apply_async((n,), key=f"k{n % 3}")
        shared.bill.apply_async((n,), key=f"k{n % 3}")
    stream.wait_ended(range(20), group="mail")
    stream.wait_ended(range(20), group="bills")
    stream.wait_settled()
    assert stream.record.numbers(group="mail") == stream.record.numbers(group="bills") == list(range(20))
    for table in ("ems_retry", "ems_dead", "ems_attempt"):
        assert stream.one(f"SELECT COUNT(*) FROM {table}") == 0, table
    app.close()
    assert worker.stop() == 0
    log = worker.log.read_text()
    assert "mixed has 2 groups" in log and "UnknownTask" not in log


@pytest.mark.slow
def test_an_idle_worker_gets_the_rest_of_a_slow_ones_claim(stream: Stream) -> None:
    slow = stream.worker(topics=["acts"], groups=["a"])
    stream.send("acts", [{"n": n} for n in range(2000)])
    stream.wait_ended(range(2000))  # its claims have grown large
    stream.send("acts", [{"n": 2000, "do": "sleep", "s": 12}, *({"n": n} for n in range(2001, 2101))])
    until(lambda: 2000 in stream.record.numbers("start"), 10, "it runs the slow message")
    (slow_pid,) = slow.children()
    stream.worker(topics=["acts"], groups=["a"])
    stream.wait_ended(range(2001, 2101), 5)
    assert 2000 not in stream.record.numbers(), "the slow one still runs"
    assert {one["pid"] for one in stream.record.events("end") if one["n"] > 2000}.isdisjoint({slow_pid})
    stream.wait_ended([2000])
    stream.wait_settled()
    assert stream.record.numbers("start") == list(range(2101))
