"""What becomes of messages whose handlers fail."""

import re
from collections import Counter
from itertools import pairwise

from emsworker import Ems
from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import until


def test_the_ladder_then_a_dead_letter_and_the_other_group_untouched(stream: Stream) -> None:
    worker = stream.worker(topics=["acts"], groups=["a", "b"], settings={"ladder": "200ms 600ms", "max_attempts": 4})
    stream.send("acts", [{"n": 1, "do": "fail", "text": "no luck"}], key="k", headers={"h": "v"})
    until(lambda: len(stream.rows("SELECT * FROM ems_dead")) == 2, 20, "dead in both groups")
    stream.wait_settled()
    for group in "ab":
        starts = [one["at"] for one in stream.record.events("start", group=group)]
        gaps = [later - earlier for earlier, later in pairwise(starts)]
        for gap, rung in zip(gaps, (0.2, 0.6, 0.6), strict=True):
            assert rung <= gap < rung + 0.6, gaps
    dead = stream.rows("SELECT body, `key`, headers, attempts, reason, error FROM ems_dead")[0]
    assert dead[:2] == (b'{"n":1,"do":"fail","text":"no luck"}', b"k") and b'"h"' in dead[2]
    assert dead[3:5] == (4, "used up its 4 attempts")
    assert "RuntimeError: no luck" in dead[5] and "Traceback" in dead[5] and "emsworker/worker" not in dead[5]
    attempts = stream.rows("SELECT group_id, attempt, outcome FROM ems_attempt ORDER BY 1, 2")
    assert [row[1:] for row in attempts] == [(n, "failed") for n in (1, 2, 3, 4)] * 2
    assert worker.stop() == 0


def test_error_policies_of_exceptions_and_handlers(stream: Stream) -> None:
    stream.send("steer", [{"n": 1, "do": "reject"}, {"n": 2, "do": "ignore"}, {"n": 3, "do": "fail", "until": 1}])
    stream.send("steer", [{"n": 4, "do": "retry", "countdown": 0.7, "until": 1}, {"n": 5}])
    stream.send("to_dead", [{"n": 1, "do": "fail"}, {"n": 2}])
    stream.send("to_ignore", [{"n": 1, "do": "fail"}, {"n": 2}])
    worker = stream.worker(topics=["steer", "to_dead", "to_ignore"], settings={"ladder": "10ms"})
    stream.wait_ended([3, 4, 5], group="steered")
    stream.wait_ended([2], group="to_dead")
    stream.wait_ended([2], group="to_ignore")
    stream.wait_settled()
    starts = Counter((one["group"], one["n"]) for one in stream.record.events("start"))
    assert starts == {
        **{("steered", n): 2 if n in (3, 4) else 1 for n in range(1, 6)},
        **{(group, n): 1 for group in ("to_dead", "to_ignore") for n in (1, 2)},
    }
    fourth = [one["at"] for one in stream.record.events("start", group="steered", n=4)]
    assert fourth[1] - fourth[0] >= 0.7 and machine_s(fourth[1]) - machine_s(fourth[0]) < 1.5
    dead = dict(stream.rows("SELECT g.name, d.reason FROM ems_dead d JOIN ems_group g ON g.id = d.group_id"))
    assert dead == {"steered": "not wanted", "to_dead": "RuntimeError: asked to fail"}
    after = [(one["offset"], one["outcome"]) for one in stream.record.events("after_run", group="steered")]
    assert sorted(after) == [
        (1, "rejected"), (2, "ignored"), (3, "done"), (3, "failed"), (4, "done"), (4, "failed"), (5, "done"),
    ]  # fmt: skip
    assert len(stream.record.events("before_run", group="steered")) == 7
    assert worker.stop() == 0
    assert len(stream.record.events("process_start")) == len(stream.record.events("process_stop")) == 1


def test_a_batch_fails_some_by_id_and_an_error_of_the_whole_finds_the_culprit(stream: Stream) -> None:
    bodies = [{"n": n} for n in range(30)]
    bodies[3] = {"n": 3, "do": "name"}
    bodies[17] = {"n": 17, "do": "fail"}
    stream.send("batches", [{"n": n} for n in range(100, 200)])
    worker = stream.worker(topics=["batches"], settings={"max_attempts": 2, "ladder": "100ms"})
    stream.wait_ended(range(100, 200))
    stream.send("batches", bodies)
    stream.wait_ended([n for n in range(30) if n not in (3, 17)])
    stream.wait_settled()
    dead = stream.rows("SELECT `offset`, attempts FROM ems_dead ORDER BY 1")
    assert dead == [(104, 2), (118, 2)]
    assert {row[0] for row in stream.rows("SELECT `offset` FROM ems_attempt")} == {104, 118}
    assert max(one["size"] for one in stream.record.events("batch")) == 10
    assert worker.stop() == 0


def test_soft_and_hard_limits(stream: Stream) -> None:
    stream.send("soft", [{"n": 1}, {"n": 2, "s": 5}, {"n": 3}])
    stream.send("hard", [{"n": 1}, {"n": 2, "do": "sleep", "s": 30, "until": 1}, {"n": 3}])
    worker = stream.worker(topics=["soft", "hard"], threads=2)
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 20, "the soft limit")
    stream.wait_ended([2], group="hard")
    stream.wait_settled()
    assert [one["n"] for one in stream.record.events("soft")] == [2]
    assert stream.rows("SELECT `offset` FROM ems_dead") == [(2,)]
    outcomes = stream.rows(
        "SELECT `offset`, outcome, ran_ms FROM ems_attempt WHERE outcome = 'timeout' ORDER BY ran_ms"
    )
    assert [row[:2] for row in outcomes] == [(2, "timeout")] * 2
    assert 300 <= outcomes[0][2] < 500 <= outcomes[1][2] < 2000
    assert re.search(r" emsworker\.worker\.child: .*; this process will be replaced", worker.text())
    assert worker.stop() == 0


def test_tasks_know_their_request_and_retry_themselves(one_stream: Stream) -> None:
    stream = one_stream
    from tests.process.apps import actor

    app = Ems("sender", url=stream.url)
    actor.add.app = actor.bound.app = app
    worker = stream.worker(topics=["tasks"])
    actor.add.delay(2, y=3)
    receipt = actor.bound.apply_async((77,), key="k")
    app.send("tasks", [[], {}], headers={"h": "no task"})
    app.publisher.send("tasks", [[], {}], headers={"ems-task": "nobody_knows"})
    stream.wait_ended([5, 77])
    until(lambda: len(stream.rows("SELECT * FROM ems_dead")) == 2, 20, "unknown tasks are dead")
    stream.wait_settled()
    requests = [{k: one[k] for k in ("id", "task", "attempt", "topic", "offset", "group", "key")}
                for one in stream.record.events("request")]  # fmt: skip
    assert requests == [
        {"id": receipt.id, "task": "bound", "attempt": attempt, "topic": "tasks", "offset": receipt.offset,
         "group": "workers", "key": "k"} for attempt in (1, 2, 3)
    ]  # fmt: skip
    dead = stream.rows("SELECT attempts, error FROM ems_dead ORDER BY `offset`")
    assert [row[0] for row in dead] == [4, 4], "retried first, then dead, never dropped"
    assert "names no task" in dead[0][1] and "'nobody_knows' is not known to this worker" in dead[1][1]
    app.close()
    assert worker.stop() == 0


def test_refused_content_is_dead_at_once_and_never_run(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(topics=["acts"], groups=["a"])
    stream.app.send("acts", {"n": 1}, serializer="pickle")
    stream.send("acts", [{"n": 2}])
    stream.wait_ended([2])
    dead = until(lambda: stream.rows("SELECT `offset`, attempts, reason FROM ems_dead"), 10, "refused")
    assert dead[0][:2] == (1, 1) and "is not accepted" in dead[0][2]
    assert 1 not in stream.record.numbers("start")
    assert worker.stop() == 0


def test_an_error_of_a_handlers_own_service_is_its_failure(one_stream: Stream) -> None:
    stream = one_stream
    stream.send("tx", [{"n": 1, "do": "os_error"}, {"n": 2}])
    worker = stream.worker(topics=["tx"], settings={"max_attempts": 2, "ladder": "100ms"})
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 10, "dead")
    stream.wait_settled()
    assert stream.rows("SELECT n FROM effect") == [(2,)]
    assert worker.stop() == 0


def test_a_slow_start_of_many_failures_stays_in_time(one_stream: Stream) -> None:
    stream = one_stream
    stream.send("acts", [{"n": n, "do": "fail", "until": 1} for n in range(300)])
    worker = stream.worker(topics=["acts"], groups=["a"], threads=4)
    began = machine_s()
    stream.wait_ended(range(300), 20)
    stream.wait_settled()
    assert machine_s() - began < 15
    assert Counter(Counter(stream.record.numbers("start")).values()) == {2: 300}
    assert stream.rows("SELECT outcome, COUNT(*) FROM ems_attempt GROUP BY 1 ORDER BY 1") == [
        ("done", 300),
        ("failed", 300),
    ]
    assert worker.stop() == 0


def test_a_process_has_started_before_its_first_message(one_stream: Stream) -> None:
    one_stream.send("opened", [{"n": 0}])
    worker = one_stream.worker("tests.process.apps.opened:app")
    one_stream.wait_ended([0], 60)
    assert [one["opened"] for one in one_stream.record.events("end")] == [True]
    assert worker.stop() == 0
