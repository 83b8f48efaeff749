"""Processes that fork while their threads send: children have locks, connections and a producer of their own."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from emsworker.core.config import Settings
from emsworker.core.ids import uid_text
from emsworker.runtime.maintenance import Relay
from tests.support.streams import Stream
from tests.support.waiting import until

FORKS = 60


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ["mysql", "redis"])
def test_children_of_a_process_that_sends_send_too_and_nothing_is_lost_or_doubled(
    stream: Stream, allocator: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    redis_url = request.getfixturevalue("redis_url") if allocator == "redis" else ""
    stream.rows("CREATE TABLE orders (process INT, number INT, PRIMARY KEY (process, number)) ENGINE=InnoDB")
    out = tmp_path / "children"
    out.touch()
    command = [sys.executable, "-m", "tests.support.forking", stream.url, redis_url, str(FORKS), str(out), "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["errors"] == []
    assert Counter(told["ended"]) == {"0": FORKS}, done.stderr[-3000:]
    relay = Relay()
    until(
        lambda: relay(stream.session, Settings()) and stream.value("SELECT COUNT(*) FROM ems_outbox") == 0, 20, "moved"
    )
    confirmed = Counter([*told["sent"], *out.read_text().split()])
    found = Counter(uid_text(uid) for (uid,) in stream.rows("SELECT uid FROM ems_message WHERE kind = 'message'"))
    assert found == confirmed and set(found.values()) == {1}
    assert len(out.read_text().split()) == 5 * sum(1 for number in range(FORKS) if number % 3)
    producers = stream.value("SELECT COUNT(DISTINCT producer_id) FROM ems_message WHERE kind = 'message'")
    assert producers == 1 + sum(1 for number in range(FORKS) if number % 3), "each child is a producer of its own"


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ["mysql", "redis"])
def test_children_of_a_process_that_sends_for_the_first_time_end(
    stream: Stream, allocator: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    redis_url = request.getfixturevalue("redis_url") if allocator == "redis" else ""
    stream.rows("CREATE TABLE orders (process INT, number INT, PRIMARY KEY (process, number)) ENGINE=InnoDB")
    out = tmp_path / "children"
    for _ in range(3):
        command = [sys.executable, "-m", "tests.support.forking", stream.url, redis_url, "12", str(out), "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert Counter(json.loads(done.stdout)["ended"]) == {"0": 12}, done.stderr[-3000:]
