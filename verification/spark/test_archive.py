"""An archive whose executor is killed while it writes."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark import archives
from tests.spark.archives import archived, fill, table_claims, table_messages
from tests.spark.test_kills import executors
from tests.support.streams import Stream, wait_until
from verification.spark.cluster import Cluster

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
    stream: Stream, profile: None, profiles: Path, cluster: Cluster, tmp_path: Path
) -> None:
    archive_under_fire(stream, profiles, tmp_path, cluster.url, lambda process: cluster.executors())


@pytest.mark.skipif(not LONG, reason="the long form: EMS_TEST_LONG=1")
@pytest.mark.timeout(1200)
def test_an_archive_on_a_local_cluster_outlives_an_executor(
    stream: Stream, profile: None, profiles: Path, tmp_path: Path
) -> None:
    archive_under_fire(stream, profiles, tmp_path, "local-cluster[2,1,1024]", lambda process: executors(process.pid))
