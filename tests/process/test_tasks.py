"""Figures of tasks, and the pause of single ones, with real workers."""

import os
import signal
from itertools import pairwise

from emsworker.admin import Admin
from emsworker.admin.monitoring import Monitoring
from emsworker.admin.tasks import TaskView
from emsworker.core.log_lines import AttemptLog
from tests.process.stream import Stream
from tests.process.test_metrics import page, value
from tests.support.waiting import until

_APP = "tests.process.apps.by_task:app"


def _call(stream: Stream, topic: str, group: str, calls: list[tuple[str, int, str | None]]) -> None:
    """Send calls of tasks by name: the task, its number, and its key."""
    for task, n, key in calls:
        args = [n] if key is None else [n, key]
        stream.app.send_task(task, args, topic=topic, group=group, key=key)


def _views(stream: Stream, topic: str) -> dict[str, TaskView]:
    return {one.task: one for one in Admin(stream.app).tasks.list(topic)}


def test_workers_count_what_they_run_by_task(stream: Stream) -> None:
    worker = stream.worker(_APP, {"task_figures_s": 0.1}, threads=2, http="0")
    calls = [(task, n, None) for n in range(10) for task in ("burn", "sleep", "fail")]
    _call(stream, "mixed", "g", calls)
    stream.wait_settled()
    until(lambda: sum(one.runs for one in _views(stream, "mixed").values()) == 30, 10, "all are written")
    views = _views(stream, "mixed")
    assert set(views) == {"burn", "sleep", "fail", "slow", "quick", "talk", "atalk"}
    burn, sleep, fail, idle = (views[name] for name in ("burn", "sleep", "fail", "slow"))
    assert (burn.runs, burn.failed, burn.dead) == (10, 0, 0) and (fail.runs, fail.failed, fail.dead) == (10, 10, 10)
    assert burn.cpu_s is not None and 0.02 <= burn.cpu_s < 0.06 and fail.cpu_s is not None and fail.cpu_s < 0.01
    cpu = 'ems_run_cpu_seconds_total{group="g",task="burn",topic="mixed"}'
    until(lambda: value(page(worker), cpu) >= 0.2, 10, "the worker's metrics have it")
    assert sleep.cpu_s is None, "coroutines share their thread"
    assert all(0.016 <= span < 10 for span in burn.runs_s) and sorted(burn.waits_s) == list(burn.waits_s)
    assert fail.error is not None and fail.error.startswith("Reject: no ") and "secret" not in fail.error
    assert fail.error_at is not None and burn.error is None
    assert (idle.runs, idle.waiting, idle.running, idle.waits_s) == (0, 0, 0, ())
    _call(stream, "mixed", "g", [("quick", n, None) for n in range(5)])
    until(lambda: len(stream.record.numbers("quick")) == 5, 10, "they ran")
    assert worker.stop() == 0
    assert _views(stream, "mixed")["quick"].runs == 5, "the last are written when it stops"
    stream.worker(_APP, threads=1)
    _call(stream, "mixed", "g", [("quick", 5, None)])
    until(lambda: len(stream.record.numbers("quick")) == 6, 10, "it ran")
    stream.wait_settled()
    assert _views(stream, "mixed")["quick"].runs == 5, "nothing is counted unless it is wanted"


def test_a_paused_task_waits_while_others_go_on_and_nothing_is_lost(stream: Stream) -> None:
    admin, sent = Admin(stream.app), 100
    workers = [stream.worker(_APP, threads=2) for _ in range(2)]
    admin.tasks.pause("mixed", "g", "slow")
    _call(stream, "mixed", "g", [(task, n, None) for n in range(sent) for task in ("slow", "quick")])
    until(lambda: len(stream.record.numbers("quick")) == sent, 20, "the others run")
    until(lambda: _views(stream, "mixed")["slow"].waiting == sent, 20, "all are put aside")
    view = _views(stream, "mixed")["slow"]
    assert view.paused and not _views(stream, "mixed")["quick"].paused
    assert not stream.record.numbers("slow") and stream.rows("SELECT * FROM ems_attempt") == []
    assert {row[0] for row in stream.rows("SELECT attempt FROM ems_retry")} == {0}, "no attempt is charged"

    admin.tasks.resume("mixed", "g", "slow")
    until(lambda: len(set(stream.record.numbers("slow"))) > 20, 20, "it runs again")
    os.kill(workers[0].children()[0], signal.SIGKILL)
    admin.tasks.pause("mixed", "g", "slow")
    _call(stream, "mixed", "g", [("quick", sent, None)])
    until(lambda: sent in stream.record.numbers("quick"), 20, "the others go on")
    admin.tasks.resume("mixed", "g", "slow")
    admin.tasks.resume("mixed", "g", "slow")  # again is no error
    until(lambda: set(stream.record.numbers("slow")) == set(range(sent)), 30, "nothing is lost")
    stream.wait_settled(30)
    assert _views(stream, "mixed")["slow"].waiting == 0 and stream.one("SELECT COUNT(*) FROM ems_dead") == 0
    assert stream.one("SELECT SUM(held_tasks) FROM ems_group") == 0
    assert all(worker.stop() == 0 for worker in workers)


def _logs(stream: Stream, message: str) -> tuple[AttemptLog, ...]:
    return Monitoring(stream.app).trace(message)[0].groups[0].history.logs


def test_a_message_keeps_the_last_lines_of_each_attempt(stream: Stream) -> None:
    worker = stream.worker(_APP, {"keep_log_lines": 3}, threads=2)
    failing = stream.app.send_task("talk", [1], topic="mixed", group="g").id
    coroutines = [stream.app.send_task("atalk", [n], topic="mixed", group="g").id for n in range(5)]
    stream.wait_settled()
    logs = until(lambda: len(found := _logs(stream, failing)) == 4 and found, 10, "the last attempt is written")
    assert [log.attempt for log in logs] == [1, 2, 3, 4] and {log.left_out for log in logs} == {18}
    assert all(len(log.lines.splitlines()) == 3 and "line 18 of 1" in log.lines for log in logs)
    assert all("shop: mysql://u:***@host/x is away\\x1b[31m" in log.lines for log in logs), "redacted, no colours"
    for n, message in enumerate(coroutines):
        (log,) = until(lambda message=message: _logs(stream, message), 10, "it is written")
        assert [line.split("shop: ")[1] for line in log.lines.splitlines()] == [f"first {n}", f"second {n}"]
    long = stream.app.send_task("talk", [2, 60.0], topic="mixed", group="g").id
    (log,) = until(lambda: _logs(stream, long), 10, "what runs is written too")
    assert "of 2" in log.lines
    worker.kill_all()
    assert _logs(stream, long) == (log,), "it is there after a crash"
    Admin(stream.app).cancel("mixed", long)
    other = stream.worker(_APP, threads=1)
    silent = stream.app.send_task("atalk", [7], topic="mixed", group="g").id
    until(lambda: 7 in stream.record.numbers("atalked"), 20, "it has run")
    assert other.stop() == 0 and _logs(stream, silent) == (), "nothing is kept unless it is wanted"


def test_later_messages_of_a_key_wait_behind_a_paused_task(stream: Stream) -> None:
    admin = Admin(stream.app)
    worker = stream.worker(_APP, threads=2)
    admin.tasks.pause("keyed", "k", "keyed.slow")
    calls = [("keyed.slow" if key == "a" and n % 3 == 0 else "keyed.quick", n, key) for n in range(30) for key in "ab"]
    _call(stream, "keyed", "k", calls)

    def of_key(key: str) -> list[int]:
        return [one["n"] for one in stream.record.events("keyed") if one["key"] == key]

    until(lambda: len(of_key("b")) == 30, 20, "the other key goes on")
    assert of_key("a") == []
    admin.tasks.resume("keyed", "k", "keyed.slow")
    until(lambda: len(of_key("a")) == 30, 20, "they run")
    assert all(first < second for key in "ab" for first, second in pairwise(of_key(key))), "in order, each once"
    assert worker.stop() == 0
