"""The jobs on several processes: an executor is killed in the middle of an archive, and of a stream."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from emsworker.publish.outgoing import Outgoing
from tests.spark import archives
from tests.spark.archives import archived, fill, table_claims, table_messages
from tests.spark.cluster import standalone
from tests.spark.test_kills import copied, driver, executors
from tests.support.streams import Stream, wait_until

LONG = bool(os.environ.get("EMS_TEST_LONG"))
_PATIENCE_S = 400.0
_SMALL = ("--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false")


def archive_under_fire(
    stream: Stream, profiles: Path, folder: Path, master: str, find: Callable[["subprocess.Popen[bytes]"], list[int]]
) -> None:
    """An archive whose executor dies while the first files are being written."""
    topic = fill(stream, 6000)
    rows, claims = table_messages(stream, topic.id), table_claims(stream)
    lake, log = folder / "lake", folder / "archive.log"
    process = archives.job(
        profiles, "archive", "--folder", str(lake), "--segment", "3000", "--master", master, "--json", *_SMALL, log=log
    )
    try:

        def writing() -> list[int]:
            assert process.poll() is None, log.read_text()[-3000:]
            begun = "copying" in log.read_text() and any((lake / "data").rglob("_temporary"))
            return find(process) if begun else []

        os.kill(wait_until(writing, _PATIENCE_S, "a file that is being written")[0], signal.SIGKILL)
        assert process.wait(_PATIENCE_S) == 0, log.read_text()[-3000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text()
    summary = json.loads(text[text.index("\n{\n") :])
    assert summary["copied"] == summary["dropped"]
    assert len(summary["segments"]) == 2
    assert table_messages(stream, topic.id) == {}
    assert archived(lake, "orders", "messages") == rows
    assert archived(lake, "orders", "claims") == claims


@pytest.mark.timeout(1200)
def test_an_archive_on_a_standalone_cluster_outlives_an_executor(
    stream: Stream, profile: None, profiles: Path, tmp_path: Path
) -> None:
    with standalone(tmp_path, profiles) as cluster:
        archive_under_fire(stream, profiles, tmp_path, cluster.url, lambda process: cluster.executors())


@pytest.mark.skipif(not LONG, reason="the long form: EMS_TEST_LONG=1")
@pytest.mark.timeout(1200)
def test_an_archive_on_a_local_cluster_outlives_an_executor(
    stream: Stream, profile: None, profiles: Path, tmp_path: Path
) -> None:
    archive_under_fire(stream, profiles, tmp_path, "local-cluster[2,1,1024]", lambda process: executors(process.pid))


@pytest.mark.skipif(not LONG, reason="the long form: EMS_TEST_LONG=1; the short one uses a local cluster")
@pytest.mark.timeout(1800)
def test_a_stream_on_a_standalone_cluster_outlives_an_executor(
    stream: Stream, profile: None, profiles: Path, tmp_path: Path
) -> None:
    app = stream.app()
    stream.topic("in", partitions=2)
    stream.topic("out", partitions=2)
    app.send_many("in", [Outgoing("in", number, key=f"k{number % 7}") for number in range(1000)])
    with standalone(tmp_path, profiles) as cluster:
        with driver(cluster.url, tmp_path, "forever") as process:

            def progress(rows: int) -> bool:
                assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
                return len(copied(stream)) >= rows

            wait_until(lambda: progress(50), _PATIENCE_S, "progress")
            victim, *others = wait_until(cluster.executors, _PATIENCE_S, "executors")
            os.kill(victim, signal.SIGKILL)
            assert others
            before = len(copied(stream))
            assert before < 1000, "the kill came too late to be in the middle"
            wait_until(lambda: progress(before + 50), _PATIENCE_S, "progress with one executor less")
        with driver(cluster.url, tmp_path, "end") as process:
            assert process.wait(_PATIENCE_S) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    numbers = [int(body) for body in copied(stream)]
    assert sorted(numbers) == list(range(1000))
