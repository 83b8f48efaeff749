"""A worker whose log nobody reads works on, and ends when it is told to."""

import os
import signal
import subprocess
import sys

import pytest

from tests.process.stream import Stream
from tests.support.worker import ROOT

pytestmark = pytest.mark.few

_COUNT = 2000  # lines of more than 64 KiB together


def test_a_pipe_that_nobody_reads_stops_no_work(one_stream: Stream) -> None:
    stream = one_stream
    environment = {name: text for name, text in os.environ.items() if not name.startswith("EMS_")}
    environment |= {"EMS_URL": stream.url, "EMS_TEST_RECORD": str(stream.record.folder), "EMS_POLL_MAX_S": "0.05"}
    command = [sys.executable, "-m", "emsworker", "worker", "-A", "tests.process.apps.poison:app", "-p", "1", "-t", "2"]
    stream.app.stream.catalog.topic("threads")
    worker = subprocess.Popen(
        [*command, "-Q", "threads", "--log-done"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        stream.send("threads", [{"n": n} for n in range(_COUNT)])
        stream.wait_ended(range(_COUNT), 60)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        assert worker.stdout is not None
        assert b"Ready: poison" in worker.stdout.read()
    finally:
        worker.kill()
        worker.communicate()
