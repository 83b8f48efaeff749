"""Children are replaced after so many messages, or when they have grown; those that crash or hang back off."""

import os
import re
from collections import Counter
from pathlib import Path

from tests.process.stream import Stream
from tests.support.waiting import never, until

_LEAKY = "tests.process.apps.leaky:app"
_LONG = bool(os.environ.get("EMS_TEST_LONG"))


def _ran_once(stream: Stream, count: int) -> None:
    stream.wait_settled(60)
    assert stream.record.numbers("start") == stream.record.numbers() == list(range(count)), "nothing lost or run twice"
    assert stream.rows("SELECT * FROM ems_attempt") == [], "nobody is charged"
    assert stream.rows("SELECT * FROM ems_claim WHERE isolation > 0") == [], "nobody is suspected"


def test_memory_stays_flat_with_a_task_that_leaks(stream: Stream) -> None:
    count, most_mib = (1200 if _LONG else 300), 120
    stream.send("leaks", [{"n": n, "mib": 1, "s": 0.003} for n in range(count)])
    worker = stream.worker(_LEAKY, {"claim_s": 0.05}, threads=2, max_memory_per_child=most_mib)
    stream.wait_ended(range(count), 90)
    _ran_once(stream, count)
    ends = stream.record.events("end")
    in_flight_mib = 60  # a claim of each thread is still worked through
    assert max(one["mib"] for one in ends) < most_mib + in_flight_mib < count
    processes = len({one["pid"] for one in ends})
    assert processes >= 3
    assert worker.text().count("is replaced: recycling: it holds") >= processes - 1
    assert "the next starts in" not in worker.text(), "no back-off"
    assert worker.stop() == 0
    assert stream.rows("SELECT * FROM ems_client") == []


def test_a_child_runs_exactly_so_many_messages(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(_LEAKY, threads=3, processes=2, max_tasks_per_child=40)
    stream.send("leaks", [{"n": n, "s": n % 7 / 2000} for n in range(150)])
    stream.wait_ended(range(150), 60)
    _ran_once(stream, 150)
    per_process = Counter(one["pid"] for one in stream.record.events("end"))
    assert max(per_process.values()) == 40
    assert sum(count == 40 for count in per_process.values()) >= 2
    assert "the next starts in" not in worker.text(), "no back-off"
    assert worker.stop() == 0


def test_recycling_waits_for_what_runs_however_long(one_stream: Stream, tmp_path: Path) -> None:
    stream = one_stream
    stream.send("leaks", [{"n": 0, "held": True}])
    settings = {"stop_timeout_s": 0.2}
    worker = stream.worker(_LEAKY, threads=2, max_memory_per_child=150, settings=settings)
    until(lambda: stream.record.numbers("start") == [0], 10, "the long one runs")
    stream.send("leaks", [{"n": 1, "mib": 150}, *({"n": n} for n in range(2, 30))])
    until(lambda: "(max_memory_per_child)" in worker.text(), 30, "its process is to be replaced")
    never(lambda: "giving back" in worker.text(), 1, "it waits for longer than its stop timeout")
    (tmp_path / "go").touch()
    stream.wait_ended(range(30), 30)
    _ran_once(stream, 30)
    first = {one["n"]: one["pid"] for one in stream.record.events("end")}
    assert first[0] == first[1] != first[29], "what was not started went to the successor"
    assert worker.stop() == 0


def test_a_child_that_hangs_before_it_did_anything_backs_off(one_stream: Stream) -> None:
    settings = {"timeout_s": 0.3, "max_attempts": 50, "ladder": "10ms"}
    worker = one_stream.worker(topics=["acts"], groups=["a"], settings=settings)
    one_stream.send("acts", [{"n": 0, "do": "hang"}])
    pauses = until(lambda: _pauses(worker.text(), 2), 30, "two hangs")
    assert pauses[:2] == [0, 1]
    assert worker.stop() == 0


def test_a_child_that_never_gets_ready_backs_off(one_stream: Stream) -> None:
    program = one_stream.start("worker", {"start_timeout_s": 1}, app="tests.process.apps.stuck:app")
    pauses = until(lambda: _pauses(program.text(), 2), 30, "killed twice")
    assert pauses[:2] == [0, 1]
    assert program.text().count("is not ready after 1 s (start_timeout_s)") >= 2
    program.kill_all()  # it would not listen to anything else


def _pauses(log: str, least: int) -> list[float]:
    found = [float(text) for text in re.findall(r"the next starts in ([\d.]+) s", log)]
    return found if len(found) >= least else []


def test_a_child_without_descriptors_is_replaced(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(_LEAKY, threads=2)
    stream.send("leaks", [{"n": 0, "descriptors": True}])
    until(lambda: "recycling: no file descriptor was free for 10 s" in worker.text(), 60, "it is replaced")
    stream.send("leaks", [{"n": n} for n in range(1, 20)])
    stream.wait_ended(range(1, 20), 60)
    (first, *_), (last,) = stream.record.events("start"), {one["pid"] for one in stream.record.events("end")}
    assert first["pid"] != last, "the first message could not even note its end"
    assert worker.stop() == 0
