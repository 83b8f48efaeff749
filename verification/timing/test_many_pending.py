"""Many delayed messages with random times while leading beats are killed; EMS_TEST_LONG=1 makes it 100,000."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import Program

LONG = os.environ.get("EMS_TEST_LONG") == "1"
COUNT, SPREAD_S, START_S, KILL_EVERY_S = (100_000, 300.0, 60.0, 5.0) if LONG else (3_000, 6.0, 3.0, 2.5)
PART = 100
pytestmark = [pytest.mark.alone, pytest.mark.timeout(START_S + 2 * SPREAD_S + 240)]
LEASE = {"beat_lease_s": 5, "beat_s": 1}  # as by default: the lease of a leader that was killed lasts to the next kill


def test_many_pending_messages_are_in_time_while_leaders_die(stream: Stream) -> None:
    dice = random.Random(8)
    beats = [stream.beat(LEASE) for _ in range(2)]
    until(lambda: _leader(stream, beats), 10, "one leads")
    light_kib = max(_rss_kib(beat) for beat in beats)
    for _ in range(COUNT // PART):
        stream.app.send_many("t", [None] * PART, countdown=START_S + dice.random() * SPREAD_S)
    stream.run("CREATE TABLE planned AS SELECT uid, due_at FROM ems_outbox")
    stream.run("ALTER TABLE planned ADD PRIMARY KEY (uid)")
    assert stream.one("SELECT COUNT(*) FROM planned") == COUNT, "nothing was early"
    kills = leaders = heavy_kib = 0
    next_kill = time.monotonic() + START_S
    while stream.one("SELECT COUNT(*) FROM ems_outbox"):
        heavy_kib = max(heavy_kib, *(_rss_kib(beat) for beat in beats))
        if time.monotonic() > next_kill:
            leader = _leader(stream, beats)
            kills, leaders = kills + 1, leaders + (leader is not None)
            victim = leader or beats[0]
            beats.remove(victim)
            victim.send(signal.SIGKILL)
            victim.wait()
            beats.append(stream.beat(LEASE))
            next_kill = time.monotonic() + KILL_EVERY_S
        time.sleep(0.1)  # this only paces the killing
    assert leaders, "a leader died"
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == COUNT, 5, "all are there")
    late = sorted(
        float(row[0])
        for row in stream.rows(
            "SELECT TIMESTAMPDIFF(MICROSECOND, p.due_at, m.born_at) / 1000000 "
            "FROM ems_message m JOIN planned p ON p.uid = m.uid"
        )
    )
    assert len(late) == COUNT, "each once"
    assert late[0] >= 0, "none early"
    p50_ms, p99_ms, worst_ms = (1000 * late[place] for place in (COUNT // 2, COUNT * 99 // 100, -1))
    print(
        f"{COUNT} messages, {kills} kills, {leaders} of leaders: late p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms, worst "
        f"{worst_ms:.0f} ms; a beat has {light_kib} KiB, at most {heavy_kib}"
    )
    assert p99_ms < 250
    assert heavy_kib < light_kib + 16 * 1024, "what is pending costs no memory"


def _leader(stream: Stream, beats: list[Program]) -> Program | None:
    rows = stream.rows("SELECT holder FROM ems_leader WHERE expires_at > UTC_TIMESTAMP(6)")
    pid = int(rows[0][0].rsplit("-", 2)[1]) if rows else 0
    return next((beat for beat in beats if beat.pid == pid), None)


def _rss_kib(beat: Program) -> int:
    lines = Path(f"/proc/{beat.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
