"""Many delayed messages with random times while leading beats are killed (W8); EMS_TEST_LONG=1 makes it 100,000."""

import os
import random
import signal
import time

import pytest

from tests.process.stream import Stream
from tests.support.waiting import until

pytestmark = pytest.mark.alone

LONG = os.environ.get("EMS_TEST_LONG") == "1"
COUNT, SPREAD_S, START_S, KILL_EVERY_S = (100_000, 300.0, 60.0, 5.0) if LONG else (3_000, 6.0, 3.0, 2.5)
PART = 100


def test_w8_many_pending_messages_are_in_time_while_leaders_die(stream: Stream) -> None:
    dice = random.Random(8)
    beats = [stream.beat({"beat_lease_s": 0.5, "beat_s": 0.1}) for _ in range(2)]
    for _ in range(COUNT // PART):
        stream.app.send_many("t", [None] * PART, countdown=START_S + dice.random() * SPREAD_S)
    stream.run("CREATE TABLE planned AS SELECT uid, due_at FROM ems_pending")
    stream.run("ALTER TABLE planned ADD PRIMARY KEY (uid)")
    assert stream.one("SELECT COUNT(*) FROM planned") == COUNT, "nothing was early"
    kills = []
    next_kill = time.monotonic() + START_S
    while stream.one("SELECT COUNT(*) FROM ems_pending"):
        if time.monotonic() > next_kill:
            kills.append(stream.one("SELECT UTC_TIMESTAMP(6)"))
            victim = beats.pop(0)
            victim.send(signal.SIGKILL)
            victim.wait()
            beats.append(stream.beat({"beat_lease_s": 0.5, "beat_s": 0.1}))
            next_kill = time.monotonic() + KILL_EVERY_S
        time.sleep(0.1)  # this only paces the killing
    assert kills, "somebody died"
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_message") == COUNT, 5, "all are there")
    late = [
        (due_at, float(late_s))
        for due_at, late_s in stream.rows(
            "SELECT p.due_at, TIMESTAMPDIFF(MICROSECOND, p.due_at, m.born_at) / 1000000 "
            "FROM ems_message m JOIN planned p ON p.uid = m.uid"
        )
    ]
    assert len(late) == COUNT, "each once"
    assert min(late_s for _, late_s in late) >= 0, "none early"
    # While nobody leads nothing is moved: what falls due just after a kill waits for the next leader.
    quiet = sorted(s for due_at, s in late if not any(-0.3 < (due_at - kill).total_seconds() < 1.2 for kill in kills))
    assert len(quiet) > COUNT / 10
    assert quiet[int(len(quiet) * 0.99)] < 0.25, quiet[-1]
    assert max(late_s for _, late_s in late) < 5.0
