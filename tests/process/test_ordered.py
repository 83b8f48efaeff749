"""Order by key and by partition, across processes, with failures and kills."""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from emsworker.admin import Admin
from emsworker.admin.monitoring import Monitoring
from emsworker.core.model import Order
from emsworker.publish.outgoing import Outgoing
from tests.process.record import whole_lines
from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import until
from tests.support.worker import Program, kill

_APP = "tests.process.apps.ordered:app"
_LONG = bool(os.environ.get("EMS_TEST_LONG"))
_PARTITIONS = 8  # as many as threads: each has one to itself
_MOST_KILLS = 60 if _LONG else 6
_FAILING = {"test_failing": 0.05, "max_attempts": 8, "ladder": "100ms 300ms"}


class Run(NamedTuple):
    """One run of a message."""

    group: str
    key: str
    partition: int
    offset: int
    attempt: int
    began: float
    ended: float
    failed: bool


def runs_of(folder: Path, group: str) -> list[Run]:
    """All runs that came to their end, in the order in which they began (one clock for all processes)."""
    lines = [line for path in folder.glob("runs-*.csv") for line in whole_lines(path)]
    parts = [line.split(",") for line in lines]
    found = [
        Run(p[0], p[1], int(p[2]), int(p[3]), int(p[4]), float(p[5]), float(p[6]), p[7] == "1")
        for p in parts
        if p[0] == group
    ]
    return sorted(found, key=lambda run: run.began)


def check_order(runs: list[Run], by: str) -> int:
    """Each lane is strictly serial: nothing overlaps, and nothing begins before all that is earlier has succeeded.

    Returns:
        how many runs repeated one that had succeeded.
    """
    lanes: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        lanes[(run.partition, run.key) if by == "key" else run.partition].append(run)
    repeated = 0
    for lane in lanes.values():
        offsets = sorted({run.offset for run in lane})
        done: set[int] = set()
        until_s, first_open = 0.0, 0
        for run in lane:
            assert run.began >= until_s, f"{run} began before the one before it had ended"
            until_s = run.ended
            repeated += run.offset in done
            while first_open < len(offsets) and offsets[first_open] in done:
                first_open += 1
            assert first_open == len(offsets) or run.offset <= offsets[first_open], (
                f"{run} overtook {offsets[first_open]}"
            )
            if not run.failed:
                done.add(run.offset)
        assert done == set(offsets)
    return repeated


def send(stream: Stream, keys: int, each: int) -> int:
    for number in range(each):
        order = list(range(keys))
        random.Random(number).shuffle(order)
        bodies = [Outgoing("flights", number, key=f"k{key}") for key in order]
        stream.app.send_many("flights", bodies)
    return keys * each


def wait_drained(stream: Stream, group: str, seconds: float) -> None:
    """Poll seldom: what is measured meanwhile should have the server for itself."""
    deadline = machine_s() + seconds
    while any(lag.lag for lag in Monitoring(stream.app.stream.database).lag() if lag.group.name == group):
        assert machine_s() < deadline, f"group {group} is not done within {seconds:g} s"
        time.sleep(0.25)


def harass(
    stream: Stream, worker: Program, settings: dict[str, Any], group: str, seconds: float
) -> tuple[Program, int]:
    """Kill -9 a child now and then, and once the whole worker, until the group is done."""
    kills, deadline = 0, machine_s() + seconds
    while machine_s() < deadline:
        time.sleep(0.8)
        if all(lag.lag == 0 for lag in Monitoring(stream.app.stream.database).lag() if lag.group.name == group):
            return worker, kills
        if kills == _MOST_KILLS:
            continue  # on a machine that is busy, children would be killed before they have begun
        if kills == 1:
            worker.kill_all()
            worker = stream.worker(_APP, settings, processes=2, threads=4, groups=[group])
        else:
            for child in worker.children()[:1]:
                kill(child, signal.SIGKILL)
        kills += 1
    raise AssertionError(f"{group} was not done within {seconds} s")


@pytest.mark.parametrize(("group", "by"), [("keyed", "key"), ("serial", "partition")])
def test_order_is_exact_with_failures_and_kills(stream: Stream, tmp_path: Path, group: str, by: str) -> None:
    keys, each = {"key": (1000, 100) if _LONG else (400, 25), "partition": (40, 10)}[by]
    Admin(stream.app).create_topic("flights", partitions=_PARTITIONS)
    settings = {**_FAILING, "test_work_s": 0.003 if by == "key" else 0.03}
    sent = send(stream, keys, each)  # all of it first: then there is work for several seconds, and time for kills
    worker = stream.worker(_APP, settings, processes=2, threads=4, groups=[group])
    worker, kills = harass(stream, worker, settings, group, 600 if _LONG else 120)
    assert worker.stop() == 0
    runs = runs_of(tmp_path, group)
    repeated = check_order(runs, by)
    assert len({(run.partition, run.offset) for run in runs}) == sent
    assert sum(run.failed for run in runs) > sent * 0.02
    print(f"{group}: {sent} messages, {len(runs)} runs, {kills} kills, {repeated} repeated after success")
    assert kills >= 2, "it ended too soon to show anything"
    assert repeated <= 100 * (kills + 1), "only what had ended since the last acked offset"
    assert stream.rows("SELECT * FROM ems_retry") == [] and stream.open_claims() == []


@pytest.mark.few
def test_keys_run_in_parallel_within_a_claim(one_stream: Stream, tmp_path: Path) -> None:
    Admin(one_stream.app).create_topic("flights", partitions=1)
    one_stream.app.send_many("flights", [Outgoing("flights", n, key=f"k{n % 8}") for n in range(80)])
    worker = one_stream.worker(_APP, {"test_work_s": 0.05}, threads=8, groups=["keyed"])
    wait_drained(one_stream, "keyed", 30)
    assert worker.stop() == 0
    runs = runs_of(tmp_path, "keyed")
    assert check_order(runs, "key") == 0 and len(runs) == 80
    assert machine_s(runs[-1].ended) - machine_s(runs[0].began) < 80 * 0.05 / 3, "ideal is an eighth of the serial time"


@pytest.mark.few
def test_a_failing_key_blocks_only_itself(one_stream: Stream, tmp_path: Path) -> None:
    Admin(one_stream.app).create_topic("flights", partitions=1)
    worker = one_stream.worker(_APP, {"test_failing": 1, "max_attempts": 2, "ladder": "1h"}, groups=["keyed"])
    one_stream.app.send_many("flights", [Outgoing("flights", n, key=key) for n, key in enumerate("aba")])
    until(lambda: len(runs_of(tmp_path, "keyed")) == 2, 10, "the first of each key has failed")
    one_stream.app.send_many("flights", [Outgoing("flights", n, key=key) for n, key in enumerate("cab")])
    until(lambda: len(runs_of(tmp_path, "keyed")) == 3, 30, "another key is not held up")
    assert [run.key for run in runs_of(tmp_path, "keyed")] == ["a", "b", "c"]

    def all_dead() -> bool:
        # The hour is over; what is blocked has no time of its own.
        one_stream.run(
            "UPDATE ems_retry SET due_at = UTC_TIMESTAMP(6) WHERE due_at < UTC_TIMESTAMP(6) + INTERVAL 1 DAY"
        )
        return bool(one_stream.one("SELECT COUNT(*) FROM ems_dead") == 6)

    until(all_dead, 30, "all have used up their attempts")
    assert worker.stop() == 0
    by_key = {key: [run.offset for run in runs_of(tmp_path, "keyed") if run.key == key] for key in "abc"}
    assert by_key == {"a": [1, 1, 3, 3, 5, 5], "b": [2, 2, 6, 6], "c": [4, 4]}


@pytest.mark.few
def test_a_slow_key_holds_up_only_itself(stream: Stream, tmp_path: Path) -> None:
    Admin(stream.app).create_topic("flights", partitions=1)
    worker = stream.worker(_APP, threads=2, groups=["keyed"])
    keys = ["slow", *(f"k{n % 5}" for n in range(60)), "slow", "k0"]
    bodies = ["slow" if key == "slow" else "" for key in keys]
    messages = [Outgoing("flights", body, key=key) for key, body in zip(keys, bodies, strict=True)]
    stream.app.send_many("flights", messages)
    until(lambda: len(runs_of(tmp_path, "keyed")) == 61, 30, "the other keys go by while it runs")
    (tmp_path / "go").touch()
    stream.app.send_many("flights", [Outgoing("flights", "", key=key) for key in ("slow", "k1")])
    until(lambda: len(runs_of(tmp_path, "keyed")) == 65, 20, "all have run")
    wait_drained(stream, "keyed", 10)
    assert worker.stop() == 0
    assert check_order(runs_of(tmp_path, "keyed"), "key") == 0, "and none of them twice"
    assert stream.rows("SELECT * FROM ems_retry") == [] and stream.open_claims() == []


@pytest.mark.alone
def test_ordered_throughput_is_at_least_two_fifths_of_the_unordered(one_stream: Stream, tmp_path: Path) -> None:
    """Drains of the same messages in pairs; failures take part."""
    Admin(one_stream.app).create_topic("flights", partitions=_PARTITIONS)
    sent = send(one_stream, 1000, 100 if _LONG else 15)
    seconds: dict[str, float] = {}
    for group in ("free", "keyed"):
        Admin(one_stream.app).create_group(
            "flights", group, ladder="100ms", order=Order.KEY if group == "keyed" else Order.NONE
        )
        worker = one_stream.worker(_APP, {**_FAILING, "test_failing": 0.01}, processes=2, threads=4, groups=[group])
        wait_drained(one_stream, group, 120)
        assert worker.stop() == 0
        runs = runs_of(tmp_path, group)
        seconds[group] = runs[-1].ended - runs[0].began
    check_order(runs_of(tmp_path, "keyed"), "key")
    assert Counter(run.failed for run in runs_of(tmp_path, "keyed"))[True] > sent * 0.005
    print(f"{sent} messages: unordered {seconds['free']:.2f} s, by key {seconds['keyed']:.2f} s")
    assert seconds["free"] / seconds["keyed"] >= 0.4
