"""Tasks with an ETA wait in the stream: a million of them cost a worker nothing, and each is delivered once."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase
from tests.celery.project import Project, Worker
from tests.support.waiting import until

FAR = 1_000_000 if os.environ.get("EMS_TEST_LONG") else 20_000
NEAR, SOON_S, SPREAD_S = 400, 15, 8  # due at 50 a second; not kept by a worker from the beginning
_WATCH_S = 4.0

# Sent by Celery; the others are copies of these, each thousand a thousand seconds later. They come from a table of their
# own: a server sorts all rows of a table that it copies into itself.
_FAR = "for number in range(1000): work.apply_async((-number - 1,), countdown=3600 + number)"
_KEEP = "CREATE TABLE first_thousand AS SELECT * FROM ems_outbox"
_COPY = """
INSERT INTO ems_outbox (topic_id, due_at, uid, `partition`, `key`, tag, headers, body, producer_id, created_at, level)
SELECT topic_id, due_at + INTERVAL %s SECOND, UNHEX(LEFT(SHA2(CONCAT(HEX(uid), %s), 256), 32)), `partition`, `key`, tag, headers, body,
  producer_id, created_at, level FROM first_thousand ORDER BY due_at
"""
_NEAR = f"""
import datetime
first = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds={SOON_S})
for number in range({NEAR}):
    work.apply_async((number,), eta=first + datetime.timedelta(seconds=number * {SPREAD_S} / {NEAR}))
print(first.timestamp())
"""


def _memory_mb(worker: Worker) -> float:
    """The private memory of a worker's processes."""
    total = 0
    for pid in worker.processes():
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1])
    return total / 1024


@dataclass(frozen=True)
class Load:
    """What all programs ask of the server.

    Attributes:
        statements: a second.
        cpu: share of a core that the server needs.
    """

    statements: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.statements:.1f} statements/s, {100 * self.cpu:.2f} % of a core"


def _load(project: Project, server: LocalDatabase) -> Load:
    """Watch the server for a few seconds."""

    def used() -> tuple[int, float]:
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        questions = int(project.rows("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])
        return questions, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = used(), time.monotonic()
    until(lambda: time.monotonic() > began + _WATCH_S, 60, "a while is over")
    after, took_s = used(), time.monotonic() - began
    return Load((after[0] - before[0]) / took_s, (after[1] - before[1]) / took_s)


def _quiet(project: Project, server: LocalDatabase) -> Load:
    """Wait until pollers look no less often than before and the server has done what it had put off."""
    loads = [_load(project, server)]

    def settled() -> bool:
        loads.append(_load(project, server))
        return loads[-1].statements > 0.85 * loads[-2].statements and loads[-1].cpu > 0.7 * loads[-2].cpu

    until(settled, 120, "pollers and server are quiet")
    return loads[-1]


@pytest.mark.slow
def test_tasks_for_later_cost_a_worker_nothing_and_are_delivered_once(project: Project, server: LocalDatabase) -> None:
    worker = project.worker("-c", "2").wait_ready()
    project.run(_FAR)
    project.run("work.delay(-1)")
    project.wait_ended(1)
    few_mb, few = _memory_mb(worker), _quiet(project, server)

    project.rows(_KEEP)
    for number in range(1, FAR // 1000):
        project.rows(_COPY, 1000 * number, number)
    assert project.rows("SELECT COUNT(*) FROM ems_outbox") == [(FAR,)]
    many_mb, many = _memory_mb(worker), _quiet(project, server)
    assert many.statements <= few.statements + 15, f"{few} and {many}"
    assert many.cpu <= few.cpu + 0.02, f"{few} and {many}"
    assert many_mb <= few_mb + 2, f"{few_mb:.1f} and {many_mb:.1f} MB"

    first = float(project.run(_NEAR))
    in_hand: list[int] = []

    def some_are_in_hand() -> bool:
        done = project.celery("inspect", "-d", worker.name, "scheduled", "--json", "--timeout", "2")
        found = json.loads(done.stdout)[worker.name] if done.returncode == 0 else []
        assert all(one["request"]["args"][0] >= 0 for one in found), "those of the next hour are nobody's"
        in_hand.append(len(found))
        return bool(found)

    until(some_are_in_hand, SOON_S + SPREAD_S, "`celery inspect scheduled` tells of them")
    until(lambda: set(range(NEAR)) <= set(project.count("ended")), 120, "all have ended", poll_s=0.2)
    began = project.times("began")
    early = [number for number in range(NEAR) if began[number] < first + number * SPREAD_S / NEAR - 0.01]
    assert not early, f"before their time: {early}"
    assert max(project.count("began").values()) == 1
    assert in_hand[-1] < NEAR / 2, "a worker holds those that are due within a second"
    assert _memory_mb(worker) <= few_mb + 6
    assert project.rows("SELECT COUNT(*) FROM ems_outbox") == [(FAR,)]
    print(f"{FAR:,} waiting: {few} before, {many} then; {few_mb:.1f} and {many_mb:.1f} MB; {in_hand} in hand")
