"""A poison message hurts only itself, however its process dies and whoever its neighbours are."""

import pytest

from tests.process.stream import Stream
from tests.support.waiting import until

pytestmark = pytest.mark.few

_APP = "tests.process.apps.poison:app"


def _dead(stream: Stream) -> list[tuple[str, int, int]]:
    """Group, offset and attempts of every dead letter."""
    return stream.rows("SELECT g.name, d.`offset`, d.attempts FROM ems_dead d JOIN ems_group g ON g.id = d.group_id")


@pytest.mark.parametrize("deed", ["task_exits", "callback_exits", "loop_stops"])
def test_a_coroutine_that_ends_the_loop_of_its_process_is_found_and_charged(one_stream: Stream, deed: str) -> None:
    stream = one_stream
    worker = stream.worker(_APP, topics=["loops", "innocent"], processes=1, threads=2)
    stream.send("loops", [{"n": n} | ({"do": deed} if n == 5 else {}) for n in range(10)])
    stream.send("innocent", [{"n": n, "s": 0.1} for n in range(10, 20)])
    until(lambda: _dead(stream), 40, f"the poison is dead; log:\n{stream.logs()}")
    stream.wait_settled()
    assert _dead(stream) == [("loops", 6, 2)]
    assert set(stream.rows("SELECT DISTINCT `offset`, outcome FROM ems_attempt")) == {(6, "orphaned")}
    assert set(stream.record.numbers()) == set(range(20)) - {5}
    assert worker.stop() == 0


def test_a_handler_that_closes_the_files_of_its_process_is_charged_alone(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(_APP, topics=["threads", "innocent"], processes=1, threads=2)
    stream.send("threads", [{"n": n} | ({"do": "close_files"} if n == 5 else {}) for n in range(10)])
    stream.send("innocent", [{"n": n, "s": 0.1} for n in range(10, 20)])
    stream.wait_settled(40)
    died = stream.rows(
        "SELECT g.name, a.`offset` FROM ems_attempt a JOIN ems_group g ON g.id = a.group_id "
        "WHERE a.outcome = 'orphaned'"
    )
    assert set(died) <= {("threads", 6)}
    # a file that another handler has open meanwhile may be closed below it: that is an error of its own, and told
    others = stream.rows("SELECT DISTINCT outcome FROM ems_attempt WHERE outcome NOT IN ('orphaned', 'done')")
    assert others in ([], [("failed",)]), stream.logs()
    assert worker.stop() == 0


def test_a_process_that_cannot_report_any_more_is_replaced(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(_APP, topics=["threads", "innocent"], processes=1, threads=2)
    stream.send("threads", [{"n": 0, "do": "take_the_pipe", "s": 600}])
    until(lambda: _dead(stream) == [("threads", 1, 2)], 40, f"it is dead; log:\n{stream.logs()}")
    assert "has closed its pipe to this process" in stream.logs()
    stream.send("innocent", [{"n": 1, "s": 0}])
    stream.wait_ended([1], 20)
    assert worker.stop() == 0


@pytest.mark.slow
def test_many_that_kill_their_processes_delay_other_topics_by_seconds(one_stream: Stream) -> None:
    stream = one_stream
    stream.send("deadly", [{"n": n, "do": "exit"} for n in range(6)])
    stream.send("innocent", [{"n": n, "s": 0.01} for n in range(6, 306)])
    worker = stream.start("worker", app=_APP, topics=["deadly", "innocent"], processes=2, threads=3)
    stream.wait_ended(range(6, 306), 30)
    until(lambda: len(_dead(stream)) == 6, 120, f"they are dead; log:\n{stream.logs()}")
    stream.wait_settled()
    assert sorted(_dead(stream)) == [("deadly", offset, 3) for offset in range(1, 7)]
    charged = "SELECT DISTINCT g.name FROM ems_attempt a JOIN ems_group g ON g.id = a.group_id"
    assert stream.rows(charged) == [("deadly",)]
    assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["innocent", "innocent_loops"])
def test_what_shares_a_process_with_poison_of_another_group_is_not_charged(one_stream: Stream, topic: str) -> None:
    stream = one_stream
    worker = stream.worker(_APP, topics=["threads", topic], processes=1, threads=4)
    stream.send(topic, [{"n": n, "s": 6} for n in range(3)])
    until(lambda: len(stream.record.events("start")) == 3, 20, "they run")
    stream.send("threads", [{"n": 3, "do": "exit"}])
    stream.wait_ended(range(3), 60)
    until(lambda: _dead(stream), 60, f"the poison is dead; log:\n{stream.logs()}")
    stream.wait_settled()
    assert _dead(stream) == [("threads", 1, 2)]
    assert {group for (group,) in stream.rows("SELECT group_id FROM ems_attempt")} == {
        group for (group,) in stream.rows("SELECT id FROM ems_group WHERE name = 'threads'")
    }
    assert worker.stop() == 0
