"""Letters f and g: what takes its process or its connection along is charged as its own task says, and comes to an end."""

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from emsworker.core.model import TASK_HEADER
from tests.process.stream import Stream
from tests.support.proxy import proxied
from tests.support.waiting import until

APP = "tests.process.apps.lost:app"
# What the group would do; no test waits for that.
GROUP = {"ladder": "1h", "max_attempts": 16, "timeout_s": 60}
UNCHARGED = 2  # runs, while each crash or loss narrows the suspicion down: docs/discussions/recovery.md
POISON, TOTAL = 12, 30


def _starts(stream: Stream, n: int = POISON) -> list[int]:
    return [one["attempt"] for one in stream.record.events("start") if one["n"] == n]


def _call(stream: Stream, name: str, *bodies: dict[str, Any]) -> None:
    """Call a task of the app."""
    for body in bodies:
        stream.app.publisher.send("calls", [[body], {}], headers={TASK_HEADER: name})


def _effects(stream: Stream) -> Counter[int]:
    return Counter(row[0] for row in stream.rows("SELECT n FROM effect"))


def _others_are_well(stream: Stream) -> None:
    """They have all ended, and nobody but the poison was charged."""
    stream.wait_ended([n for n in range(TOTAL) if n != POISON], 60)
    assert set(stream.rows("SELECT DISTINCT `offset` FROM ems_attempt")) <= {(POISON + 1,)}, "no neighbour is charged"


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["exit", "kill", "fail then kill"])
def test_a_tasks_own_attempts_and_ladder_hold_when_it_kills_its_worker(stream: Stream, deed: str) -> None:
    worker = stream.worker(APP, GROUP, topics=["calls"])
    for n in range(TOTAL):
        _call(stream, *(("own", {"n": n, "do": deed}) if n == POISON else ("patient", {"n": n})))
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 60, f"the poison is dead; log:\n{stream.logs()}")
    _others_are_well(stream)
    stream.wait_settled()
    assert stream.rows("SELECT `offset`, attempts, reason FROM ems_dead") == [
        (POISON + 1, 3, "used up its 3 attempts"),
    ]
    outcomes = stream.rows("SELECT attempt, outcome FROM ems_attempt ORDER BY attempt")
    first = "failed" if deed.startswith("fail") else "orphaned"
    assert outcomes == [(1, first), (2, "orphaned"), (3, "orphaned")], "three charged runs"
    assert len(_starts(stream)) <= 3 + UNCHARGED
    assert worker.stop() == 0


@pytest.mark.parametrize(("task", "dead"), [("dead", 1), ("ignored", 0)])
def test_on_error_holds_for_a_task_that_kills_its_worker(one_stream: Stream, task: str, dead: int) -> None:
    stream = one_stream
    worker = stream.worker(APP, GROUP, topics=["calls"])
    for n in range(TOTAL):
        _call(stream, *((task, {"n": n, "do": "exit"}) if n == POISON else ("patient", {"n": n})))
    until(lambda: stream.rows("SELECT * FROM ems_attempt"), 60, f"it is charged; log:\n{stream.logs()}")
    _others_are_well(stream)
    stream.wait_settled()
    assert stream.rows("SELECT attempt, outcome FROM ems_attempt") == [(1, "orphaned")]
    assert stream.one("SELECT COUNT(*) FROM ems_dead") == dead
    assert len(_starts(stream)) <= 1 + UNCHARGED
    assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["keyed", "batched"])
def test_the_same_with_keys_in_order_and_in_batches(one_stream: Stream, topic: str) -> None:
    stream = one_stream
    worker = stream.worker(APP, GROUP, topics=[topic])
    for n in range(TOTAL):
        body = {"n": n, "do": "kill"} if n == POISON else {"n": n}
        stream.app.send(topic, body, key=f"k{n}", partition=None)
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 60, f"the poison is dead; log:\n{stream.logs()}")
    _others_are_well(stream)
    stream.wait_settled()
    assert stream.rows("SELECT attempts FROM ems_dead") == [(3,)]
    assert stream.rows("SELECT attempt, outcome FROM ems_attempt ORDER BY attempt") == [
        (1, "orphaned"),
        (2, "orphaned"),
        (3, "orphaned"),
    ]
    assert len(_starts(stream)) <= 3 + UNCHARGED
    assert worker.stop() == 0


def _check_the_charged(stream: Stream) -> None:
    """Three charged runs and one dead letter that says why; everything else has its effect once."""
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 90, f"it is dead; log:\n{stream.logs()}")
    _others_are_well(stream)
    stream.wait_settled()
    ((offset, attempts, error),) = stream.rows("SELECT `offset`, attempts, error FROM ems_dead")
    assert (offset, attempts) == (POISON + 1, 3)
    for part in ("times in a row", "wait_timeout", "idle_transaction_timeout", "proxy"):
        assert part in error
    assert stream.rows("SELECT attempt, outcome FROM ems_attempt ORDER BY attempt") == [
        (1, "failed"),
        (2, "failed"),
        (3, "failed"),
    ]
    assert _starts(stream) == [1] * (UNCHARGED + 1) + [2, 3]
    assert _effects(stream) == {n: 1 for n in range(TOTAL) if n != POISON}


@pytest.mark.parametrize("deed", ["cut", "cut and return"])
def test_g_a_message_that_loses_its_connection_every_time_comes_to_an_end(stream: Stream, deed: str) -> None:
    worker = stream.worker(APP, GROUP, topics=["cuts"])
    stream.send("cuts", [{"n": n, "do": deed} if n == POISON else {"n": n} for n in range(TOTAL)])
    _check_the_charged(stream)
    told = [line for line in worker.text().splitlines() if "no attempt is charged" in line]
    assert len(told) == UNCHARGED and all("one loss may be anybody's fault" in line for line in told), told
    assert worker.stop() == 0


def test_g_an_error_that_nobody_knows_after_a_handler_comes_to_an_end(stream: Stream) -> None:
    """A statement of EMS fails each time because of what the handler did; no number of that is on a list."""
    stream.run(
        "CREATE TRIGGER refuse BEFORE UPDATE ON ems_claim FOR EACH ROW "
        "IF @refused = 1 THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31999, MESSAGE_TEXT = 'no more of that'; END IF"
    )
    worker = stream.worker(APP, GROUP, topics=["cuts"])
    stream.send("cuts", [{"n": n, **({"do": "refuse"} if n == POISON else {})} for n in range(TOTAL)])
    _check_the_charged(stream)
    assert "no more of that" in stream.one("SELECT error FROM ems_dead")
    assert worker.stop() == 0


@pytest.mark.slow
def test_g_a_proxy_that_cuts_silent_connections(stream: Stream) -> None:
    """A transaction that is silent for longer comes to an end; a handler that holds no connection loses nothing."""
    with proxied(stream.url, idle_s=1.0) as (proxy, url):
        worker = stream.worker(APP, {**GROUP, "url": url}, topics=["cuts", "calls"])
        silent = {"do": "sleep", "s": 2.5}
        stream.send("cuts", [{"n": n, **(silent if n == POISON else {})} for n in range(TOTAL)])
        _call(stream, "patient", *({"n": n, **silent} for n in (100, 101)))
        _check_the_charged(stream)
        stream.wait_ended([100, 101])
        assert (len(_starts(stream, 100)), len(_starts(stream, 101))) == (1, 1)
        assert set(stream.rows("SELECT state FROM ems_result")) == {("done",)}
        assert proxy.cuts >= 5
        assert re.search(r"this time after [23]\.\d s", stream.one("SELECT error FROM ems_dead"))
        assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("lease_s", "away_s"), [(2, 2.5), (60, 0)])
def test_g_restarts_of_the_server_charge_nobody(stream: Stream, tmp_path: Path, lease_s: int, away_s: float) -> None:
    """With a lease that outlives them it is the worker that decides, otherwise the beat."""
    worker = stream.worker(APP, {**GROUP, "lease_s": lease_s}, topics=["cuts"])
    stream.send("cuts", [{"n": 1, "do": "wait"}])
    restarts = UNCHARGED + 3
    for number in range(1, restarts + 1):
        until(lambda number=number: len(_starts(stream, 1)) >= number, 60, f"run {number}; log:\n{stream.logs()}")
        stream.server.kill()
        back = time.monotonic() + away_s
        until(lambda back=back: time.monotonic() >= back, away_s + 5, "it has been away for so long")
        stream.server.start(120)
        (tmp_path / f"go-1-{number}").touch()
    until(lambda: len(_starts(stream, 1)) > restarts, 60, f"the last run; log:\n{stream.logs()}")
    (tmp_path / f"go-1-{restarts + 1}").touch()
    until(lambda: _effects(stream) == {1: 1}, 60, f"its effect; log:\n{stream.logs()}")
    stream.wait_settled()
    assert stream.rows("SELECT attempt, outcome, error FROM ems_attempt") == [], worker.text()
    assert set(_starts(stream, 1)) == {1}
    assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("lease_s", "away_s"), [(60, 1.0), (2, 4.0)])
def test_what_runs_through_an_outage_is_not_charged(stream: Stream, lease_s: int, away_s: float) -> None:
    """What is shorter than the lease is not noticed; after what is longer the tasks are run again."""
    worker = stream.worker(APP, {**GROUP, "lease_s": lease_s}, topics=["calls"], threads=3, beat=False)
    _call(stream, "patient", *({"n": n, "do": "sleep", "s": away_s + 4} for n in range(3)))
    until(lambda: len(stream.record.events("start")) == 3, 60, f"three run; log:\n{stream.logs()}")
    stream.server.kill()
    back = time.monotonic() + away_s
    until(lambda: time.monotonic() >= back, away_s + 5, "it has been away for so long")
    stream.server.start(120)
    stream.beat({**GROUP, "lease_s": lease_s})
    _call(stream, "patient", {"n": 3, "do": "nothing"})
    stream.wait_ended(range(4), 60)
    stream.wait_settled()
    most = 1 if lease_s > away_s else 2
    assert all(1 <= len(_starts(stream, n)) <= most for n in range(4)), worker.text()
    assert stream.rows("SELECT attempt, outcome, error FROM ems_attempt") == []
    assert worker.stop() == 0
