"""Rates and numbers of running messages hold over several worker processes, also when one of them is killed."""

import os
import signal
import time
from bisect import bisect_left

from emsworker.admin import Admin
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import kill

_APP = "tests.process.apps.limited:app"
_LONG = bool(os.environ.get("EMS_TEST_LONG"))


def _most_in_a_second(starts: list[float]) -> int:
    return max(bisect_left(starts, at + 1.0) - number for number, at in enumerate(starts))


def _most_at_once(stream: Stream, start: str, end: str, killed: int, killed_at: float) -> int:
    """How many ran at once; what a killed process ran ended with it."""
    ends = {(one["pid"], one["n"]): one["at"] for one in stream.record.events(end)}
    changes = []
    for one in stream.record.events(start):
        ended = ends.get((one["pid"], one["n"]))
        assert ended is not None or one["pid"] == killed
        changes += [(one["at"], 1), (killed_at if ended is None else ended, -1)]
    running = most = 0
    for _, step in sorted(changes):
        running += step
        most = max(most, running)
    return most


def test_a_rate_holds_over_processes_and_is_reached(stream: Stream) -> None:
    seconds, rate = (20, 100) if _LONG else (3, 100)
    settings = {"beat_s": 0.2}
    workers = [stream.start("worker", settings, app=_APP, threads=3, topics=["rates", "free"]) for _ in range(3)]
    for worker in workers:
        worker.wait_ready()
    stream.send("rates", [{"n": n, "s": n % 3 / 100} for n in range(seconds * rate)])
    stream.send("free", [{"n": n} for n in range(100_000, 100_500)])
    stream.wait_ended(range(100_000, 100_500), 10)
    assert len(stream.record.numbers("start")) < seconds * rate, "no thread waits for a permit while others have work"
    stream.wait_ended(range(seconds * rate), 60)
    stream.wait_settled(60)
    events = stream.record.events("start")
    assert sorted(one["n"] for one in events) == list(range(seconds * rate)), "each once"
    assert len({one["pid"] for one in events}) == 3
    starts = [one["at"] for one in events]
    took_s = starts[-1] - starts[0]
    assert _most_in_a_second(starts) <= 1.5 * rate + 1
    assert len(starts) <= rate * (took_s + 0.5) + 1, "over time never more than the rate"
    later = [at for at in starts if at > starts[0] + 1]  # when what was saved up is spent
    assert _most_in_a_second(later) >= 0.9 * rate, (
        f"{len(starts) / took_s:.1f}/s"
    )  # a busy machine has good seconds too
    assert all(worker.stop() == 0 for worker in workers)


def test_never_more_at_once_also_when_a_worker_is_killed(stream: Stream) -> None:
    topics = ["slots", "aslots", "bslots"]
    workers = [stream.start("worker", {"beat_s": 0.2}, app=_APP, threads=3, topics=topics) for _ in range(3)]
    for worker in workers:
        worker.wait_ready()
    stream.send("slots", [{"n": n, "s": 0.05} for n in range(70)])
    stream.send("aslots", [{"n": n, "s": 0.1} for n in range(30)])
    stream.send("bslots", [{"n": n} for n in range(30)])
    until(lambda: len(stream.record.numbers()) >= 20, 20, "it runs")
    (pid,) = until(
        lambda: stream.rows(
            "SELECT SUBSTRING_INDEX(SUBSTRING_INDEX(client_id, '-', 2), '-', -1) "
            "FROM ems_slot WHERE group_id = (SELECT g.id FROM ems_group g JOIN ems_topic t ON t.id = g.topic_id "
            "WHERE t.name = 'slots') LIMIT 1"
        ),
        5,
        "somebody has a slot",
    )[0]
    kill(int(pid), signal.SIGKILL)
    killed_at = time.monotonic()
    stream.wait_ended(range(70), 60)
    stream.wait_settled(60)
    assert _most_at_once(stream, "start", "end", int(pid), killed_at) == 3
    assert _most_at_once(stream, "astart", "aend", int(pid), killed_at) <= 5
    assert {one["n"] for one in stream.record.events("batch")} <= {1, 2, 3, 4}
    assert {one["n"] for one in stream.record.events("aend")} == set(range(30))
    until(lambda: not stream.rows("SELECT * FROM ems_slot"), 10, "no slot is left behind")
    assert all(worker.stop() == 0 for worker in workers)


def test_limits_are_changed_while_workers_run(one_stream: Stream) -> None:
    stream = one_stream
    stream.worker(_APP, threads=4, topics=["slots"])
    stream.send("slots", [{"n": n, "s": 0.05} for n in range(60)])
    admin = Admin(stream.app)
    until(lambda: admin.limits.running("slots", "a") == 3, 10, "as declared")
    admin.limits.set("slots", "a", max_running=1)
    until(lambda: admin.limits.running("slots", "a") == 1, 10, "fewer")
    admin.limits.set("slots", "a", rate="1/h", max_running=None)
    until(lambda: admin.limits.running("slots", "a") == 0, 10, "none")
    assert len(stream.record.numbers()) < 60
    admin.limits.set("slots", "a", rate=None)
    stream.wait_ended(range(60), 10)
    stream.wait_settled()
