"""Processes that fork while their threads send: children have locks, connections and a producer of their own."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emsworker.beat.relay import Relay
from emsworker.core.config import Settings
from emsworker.core.ids import uid_text
from tests.support.streams import Stream
from tests.support.waiting import until

FORKS = 60


Fork = Callable[..., dict[str, Any]]


@pytest.fixture(params=["mysql", "redis"])
def fork(stream: Stream, request: pytest.FixtureRequest, tmp_path: Path) -> Fork:
    """Run a process that forks so often, after so many sends; what it tells, and what its children wrote in ``children``."""
    redis_url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    stream.rows("CREATE TABLE orders (process INT, number INT, PRIMARY KEY (process, number)) ENGINE=InnoDB")

    def run(forks: int, *, after: int) -> dict[str, Any]:
        out = tmp_path / "children"
        command = [
            sys.executable,
            "-m",
            "tests.support.forking",
            stream.url,
            redis_url,
            str(forks),
            str(out),
            str(after),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        told: dict[str, Any] = json.loads(done.stdout)
        assert Counter(told["ended"]) == {"0": forks}, done.stderr[-3000:]
        return told

    return run


@pytest.mark.slow
def test_children_of_a_process_that_sends_send_too_and_nothing_is_lost_or_doubled(
    stream: Stream, fork: Fork, tmp_path: Path
) -> None:
    out = tmp_path / "children"
    told = fork(FORKS, after=50)
    assert told["errors"] == []
    relay = Relay()
    until(
        lambda: relay(stream.session, Settings()) and stream.value("SELECT COUNT(*) FROM ems_outbox") == 0, 20, "moved"
    )
    confirmed = Counter([*told["sent"], *out.read_text().split()])
    found = Counter(uid_text(uid) for (uid,) in stream.rows("SELECT uid FROM ems_message WHERE kind = 'message'"))
    assert found == confirmed and set(found.values()) == {1}
    assert len(out.read_text().split()) == 6 * sum(1 for number in range(FORKS) if number % 3)
    producers = stream.value("SELECT COUNT(DISTINCT producer_id) FROM ems_message WHERE kind = 'message'")
    assert producers == 1 + sum(1 for number in range(FORKS) if number % 3), "each child is a producer of its own"


@pytest.mark.slow
def test_children_of_a_process_that_sends_for_the_first_time_end(fork: Fork) -> None:
    for _ in range(3):
        fork(12, after=0)
