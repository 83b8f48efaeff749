"""The acceptance of the stream and its workers: kill -9 all the time, and exact accounts at the end.

EMS_TEST_LONG=1 runs it for a minute instead of some seconds.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.process.apps.acceptance_names import GROUPS
from tests.process.record import whole_lines
from tests.process.stream import Stream
from tests.support.looker import Looker
from tests.support.waiting import until
from tests.support.worker import ROOT, Program, kill

pytestmark = pytest.mark.alone

LONG = bool(os.environ.get("EMS_TEST_LONG"))
FOR_S = 60 if LONG else 12
PRODUCERS = 8
APP = "tests.process.apps.acceptance:app"
# What finished since the last acked offset, at most: ack_interval_s, half of it until the flusher looks again, and
# its commits, one for each thread and one on its way. How long a commit takes here under this load is measured
# meanwhile.
ACK_INTERVAL_S, COMMITS = 0.1, 5
SETTINGS: dict[str, Any] = {"lease_s": 6, "renew_s": 1, "lease_margin_s": 1, "ladder": "300ms"}


# The log of a group is a partition of what it has claimed: each offset is in one claim only.
OVERLAPPING = """
SELECT a.group_id, a.`partition`, a.lo, a.hi, a.acked_to, a.isolation, a.client_id, a.claimed_at, a.progress_at,
  b.lo, b.hi, b.acked_to, b.isolation, b.client_id, b.claimed_at, b.progress_at
FROM ems_claim a JOIN ems_claim b ON b.group_id = a.group_id AND b.`partition` = a.`partition`
  AND (b.lo, b.claim_id) > (a.lo, a.claim_id) AND b.lo <= a.hi
WHERE a.source = 'stream' AND b.source = 'stream'
"""


@dataclass(frozen=True)
class Run:
    """One finished run of a handler, by monotonic time."""

    message: tuple[str, str]
    group: str
    thread: int
    began: float
    ended: float
    pid: int


class Probe(threading.Thread):
    """Commits a row again and again, and keeps the longest time that it took, waiting for a processor included."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._looker = Looker(url)
        self._stopping = threading.Event()
        self.worst_s = 0.0

    def run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self._looker.rows("INSERT INTO account VALUES (1, 0) ON DUPLICATE KEY UPDATE amount = amount + 1")
            self.worst_s = max(self.worst_s, time.monotonic() - due)
            due = time.monotonic() + 0.05
        self._looker.close()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self.join(30)


class Killer:
    """Kills a child, or sometimes a whole worker, and starts that again."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._chance = random.Random(2)
        self.workers = {group: self._start(group) for group in GROUPS}
        self.killed: dict[int, float] = {}
        for worker in self.workers.values():
            worker.wait_ready()

    def _start(self, group: str) -> Program:
        return self._stream.start("worker", SETTINGS, app=APP, groups=[group], processes=4, threads=4)

    def kill_one(self) -> None:
        group = self._chance.choice(GROUPS)
        worker = self.workers[group]
        children = worker.children()
        if self._chance.random() < 0.3 or not children:
            self.killed |= dict.fromkeys(children, time.monotonic())
            worker.kill_all()
            self.workers[group] = self._start(group)
        else:
            victim = self._chance.choice(children)
            self.killed[victim] = time.monotonic()
            kill(victim, signal.SIGKILL)


def _producers(stream: Stream, folder: Path) -> list[subprocess.Popen[bytes]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EMS_")}
    environment |= {"EMS_URL": stream.url, "EMS_TEST_RECORD": str(folder)}
    command = [sys.executable, "-m", "tests.process.apps.acceptance"]
    return [
        subprocess.Popen([*command, str(number), str(FOR_S), "0.06"], cwd=ROOT, env=environment)
        for number in range(PRODUCERS)
    ]


def _runs(folder: Path) -> list[Run]:
    lines = [line for path in folder.glob("runs-*.jsonl") for line in whole_lines(path)]
    rows = [json.loads(line) for line in lines]
    return [Run((row[0], row[4]), row[3], row[5], row[6], row[7], row[8]) for row in rows]


def _unowed_repetitions(runs: list[Run], killed: dict[int, float], bound_s: float) -> tuple[int, float, list[str]]:
    """How many runs were repeated, the longest time before a kill that was lost, and what breaks the promise.

    A finished run may be repeated only if its process was killed, and if it ended within the last acked offset's time
    before that, or was the thread's last one. A run that had not finished left no line, so it is none of these.
    """
    by_message = defaultdict(list)
    last: dict[tuple[int, int], Run] = {}
    for run in runs:
        by_message[run.message, run.group].append(run)
        thread = (run.pid, run.thread)
        if thread not in last or last[thread].ended < run.ended:
            last[thread] = run
    repeated, worst_s, wrong = 0, 0.0, []
    for group_runs in by_message.values():
        for run in sorted(group_runs, key=lambda run: run.ended)[:-1]:
            repeated += 1
            if run.pid not in killed:
                wrong.append(f"{run} was repeated, but its process was not killed")
                continue
            before_s = killed[run.pid] - run.ended
            if last[run.pid, run.thread] != run:
                worst_s = max(worst_s, before_s)
                if before_s > bound_s:
                    wrong.append(f"{run} was repeated, though it ended {before_s:.3f} s before the kill")
    return repeated, worst_s, wrong


@pytest.mark.chaos
@pytest.mark.slow
def test_nothing_is_lost_and_little_is_repeated_while_workers_are_killed(stream: Stream, tmp_path: Path) -> None:
    killer = Killer(stream)
    probe = Probe(stream.url)
    probe.start()
    producers = _producers(stream, tmp_path)
    began = time.monotonic()
    for number in range(1, FOR_S // 2 + 1):
        until(lambda number=number: time.monotonic() - began > 2 * number, 10, "two seconds more")
        killer.kill_one()
    assert [producer.wait(60) for producer in producers] == [0] * PRODUCERS
    stream.wait_settled(90)
    drained_s = time.monotonic() - began
    probe.stop()

    sent = {tuple(json.loads(line)) for path in tmp_path.glob("sent-*.jsonl") for line in path.read_text().splitlines()}
    runs = _runs(tmp_path)
    for group in GROUPS[:2]:
        assert {run.message for run in runs if run.group == group} == sent
    effects = stream.rows("SELECT uid FROM cash")
    assert sorted(row[0] for row in effects) == sorted(uid for _, uid in sent), "exactly once"
    assert stream.rows(OVERLAPPING) == [], "no offset was in two claims"
    plain = [run for run in runs if run.group != "cash"]
    bound_s = ACK_INTERVAL_S * 1.5 + COMMITS * probe.worst_s
    repeated, worst_s, wrong = _unowed_repetitions(plain, killer.killed, bound_s)
    assert not wrong, "\n".join(wrong[:10])
    assert stream.rows("SELECT * FROM ems_dead") == []
    charged = stream.one("SELECT COUNT(*) FROM ems_attempt WHERE outcome = 'orphaned'")
    print(
        f"{len(sent)} messages x {len(GROUPS)} groups, {len(killer.killed)} processes killed, drained after "
        f"{drained_s:.1f} s: 0 lost, {repeated} of {len(plain)} plain runs repeated, at worst {worst_s * 1000:.0f} ms "
        f"before a kill (bound {bound_s * 1000:.0f} ms, worst commit {probe.worst_s * 1000:.0f} ms); {charged} charged"
    )
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_client") == 48, SETTINGS["lease_s"] + 15, "only the living")
    for worker in killer.workers.values():
        worker.send(signal.SIGTERM)
    assert [worker.wait() for worker in killer.workers.values()] == [0, 0, 0]
    assert stream.rows("SELECT * FROM ems_client") == []
    assert stream.open_claims() == []
