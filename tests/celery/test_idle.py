"""What an idle worker asks the server, and that it notices at once what comes after a quiet time."""

import os
import time

import pytest

from tests.celery.project import Project
from tests.support.waiting import until

MOST = 11.0  # statements a second: about 10, maintenance included, and what falls on both ends of the count
# A part of the maintenance runs each ten seconds, and events are deleted after five minutes.
_QUIET_S, _WATCH_S = (360.0, 60.0) if os.environ.get("EMS_TEST_LONG") else (12.0, 20.0)


def _asked(project: Project) -> int:
    """The statements that the server has been asked, this one and those of its connection left out."""
    before, after = (int(project.rows("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1]) for _ in range(2))
    return before - (after - before)


def _wait(seconds: float) -> float:
    began = time.monotonic()
    until(lambda: time.monotonic() > began + seconds, seconds + 30, "some quiet seconds")
    return time.monotonic() - began


@pytest.mark.slow
def test_an_idle_worker_asks_seldom_and_answers_soon(project: Project) -> None:
    worker = project.worker("-c", "2").wait_ready()
    project.run("work.delay(0)")
    project.wait_ended(1)
    _wait(_QUIET_S)
    before = _asked(project)
    took = _wait(_WATCH_S)
    rate = (_asked(project) - before) / took
    assert rate <= MOST, f"{rate:.1f} statements/s"
    done = project.celery("inspect", "-d", worker.name, "ping")  # it waits for a second
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"{rate:.1f} statements/s")
