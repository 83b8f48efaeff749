"""A handler asks for more time, sees what is left, and tells how far it has come."""

from emsworker.admin.monitoring import Monitoring
from tests.process.apps.lengthy import TIMEOUT_S
from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import until

_APP = "tests.process.apps.lengthy:app"
_LONG_S = 2.2 * TIMEOUT_S


def test_a_task_that_extends_runs_once_and_one_that_does_not_is_moved_to_retry(stream: Stream) -> None:
    receipts = [_send(stream, "work", "works", n, _LONG_S, n != 1) for n in range(3)]
    _send(stream, "await", "awaits", 10, _LONG_S, True)
    _send(stream, "await", "awaits", 11, _LONG_S, True)
    _send(stream, "await", "awaits", 12, _LONG_S, False)
    stream.send("moved", [{"n": 1}])
    stream.send("keyed", [{"n": 20}], key="x")
    worker = stream.worker(_APP, threads=6)
    seen = until(lambda: stream.app.result(receipts[0]).progress, 10, "it has told something")
    assert seen.fraction is not None and 0 <= seen.fraction < 1 and "to go" in seen.text and seen.attempt == 1
    later = until(lambda: _later(stream, receipts[0], seen.fraction), 10, "and goes on telling")
    clients = {view.row.client_id: view.progress for view in Monitoring(stream.app).clients()}
    assert later.client_id in clients and any(str(one).endswith("s to go") for one in clients[later.client_id])
    trace = Monitoring(stream.app).trace(receipts[0].id)[0].groups[0]
    assert trace.progress is not None and trace.progress.client_id == later.client_id
    stream.wait_ended([0, 2, 10, 11, 20], 20)
    stream.wait_settled()
    begun = stream.record.numbers("begin")
    assert [begun.count(n) for n in (0, 2, 10, 11, 1, 12)] == [1, 1, 1, 1, 2, 2]
    ended = [n for n in stream.record.numbers("end") if n != 1]  # a thread that was given up may still come to its end
    assert ended == [0, 2, 10, 11, 20]
    assert stream.rows("SELECT n FROM effect") == [(1,)], "the transactional one too"
    outcomes = stream.rows("SELECT outcome, COUNT(*) FROM ems_attempt WHERE outcome <> 'done' GROUP BY 1")
    assert outcomes == [("timeout", 4)], "of the two that did not extend, twice each"
    until(
        lambda: _reports(stream) <= 1, 5, "those that ended have no report any more; who died could not delete its own"
    )
    assert stream.app.result(receipts[0]).get(5) == "done" and stream.app.result(receipts[0]).progress is None
    assert worker.stop() == 0


def _send(stream: Stream, task: str, topic: str, n: int, s: float, extends: bool) -> object:
    return stream.app.publisher.send(topic, [[n, s, extends], {}], headers={"ems-task": task})


def _later(stream: Stream, receipt: object, fraction: float) -> object:
    told = stream.app.result(receipt).progress
    return told if told is not None and told.fraction > fraction else None


def _reports(stream: Stream) -> int:
    return stream.one("SELECT COUNT(*) FROM ems_progress")


def test_soft_and_hard_limits_move_together(one_stream: Stream) -> None:
    stream = one_stream
    stream.send("softs", [{"n": 0, "more": 0.9}, {"n": 1, "more": 0.9, "stays": True}, {"n": 2, "more": 0.1}])
    stream.send("lates", [{"n": 3}])
    stream.worker(_APP, topics=["softs", "lates"], threads=4, settings={"beat_s": 0.2})
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 20, "the stubborn one is dead")
    (dead,) = until(lambda: stream.record.events("dead"), 20, "another process tells the middleware")
    assert (dead["n"], dead["error"], dead["reason"]) == (1, "TimeLimitExceeded", "used up its 1 attempt")
    stream.wait_settled()
    soft = {one["n"]: one for one in stream.record.events("soft")}
    assert set(soft) == {0, 1, 2}
    for n, wanted_s in ((0, 0.9), (1, 0.9), (2, 0.3)):
        assert wanted_s - 0.02 <= soft[n]["after"]
        (begun,) = stream.record.events("begin", n=n)
        assert machine_s(soft[n]["at"]) - machine_s(begun["at"]) < wanted_s + 0.5
        assert soft[n]["left"] <= 0.5, "from the soft limit to the hard one it is as long as it was"
    (ran_ms,) = stream.rows("SELECT ran_ms FROM ems_attempt WHERE outcome = 'timeout' AND `offset` = 2")[0]
    assert 1400 <= ran_ms < 3000, "0.8 s and the 0.6 s that were added"
    assert stream.record.events("ended")[0]["left"] == 0, "too late: it is told"
    assert stream.record.numbers("begin", n=3) == [3, 3]


def test_a_soft_limit_that_a_handler_catches_amid_a_statement_ends_its_connection(stream: Stream) -> None:
    """Its next statement gets its own answer or none, and the run counts as one that took too long."""
    numbers = list(range(60))
    stream.send("cuts", [{"n": n} for n in numbers])
    worker = stream.worker(_APP, topics=["cuts"], threads=2)
    until(lambda: len(stream.rows("SELECT * FROM effect")) == len(numbers), 90, f"all done; log:\n{stream.logs()}")
    stream.wait_settled()
    lost = stream.record.events("lost")
    assert lost, "some were cut amid a statement"
    assert all("cut an exchange" in one["error"] or "lost" in one["error"].lower() for one in lost), lost
    assert {one["is_own"] for one in stream.record.events("found")} == {True}
    assert sorted(n for (n,) in stream.rows("SELECT n FROM effect")) == numbers, "each effect once"
    ended = dict(stream.rows("SELECT outcome, COUNT(*) FROM ems_attempt GROUP BY 1"))
    assert ended.keys() == {"timeout", "done"} and ended["done"] == len(numbers)
    assert ended["timeout"] >= len(numbers), "on a loaded machine a second run may be late, too"
    assert worker.stop() == 0
