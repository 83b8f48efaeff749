"""``ems monitoring export`` before a real Prometheus: the rules' own tests, and every panel with data of a real worker.

Debian's package prometheus brings both programs; `./dev verify` installs it.
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.local.ports import free_port
from emsworker.monitoring.export import exported_files
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import ROOT

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None, reason="prometheus is not installed"
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with what is exported."""
    for name, text in exported_files().items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_rules_pass_their_own_tests(files: Path) -> None:
    for arguments in (["check", "rules", "ems-rules.yml"], ["test", "rules", "ems-rules-test.yml"]):
        done = subprocess.run(["promtool", *arguments], cwd=files, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def running(command: list[str], log: Path, **environ: str) -> Iterator[None]:
    """A program that ends with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env={**os.environ, **environ})
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def query(port: int, expression: str) -> list[dict[str, Any]]:
    asked = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{asked}", timeout=10) as answer:
            found = json.load(answer)
    except OSError:
        return []  # it has not started yet
    return [one for one in found["data"]["result"] if one["value"][1] != "NaN"]


def test_every_panel_has_data(one_stream: Stream, files: Path) -> None:
    app = Ems("caller", url=one_stream.url)
    one_stream.app = app
    passes, fails = (app.task(name=name)(print) for name in ("passes", "fails"))
    worker = one_stream.worker("tests.process.apps.metered:app", processes=2, http="0")
    Admin(app).readers.hold(passes.topic, "nightly", {0: 1})  # the worker has created the topic
    stream_port, port = free_port(), free_port()
    targets = [worker.http.removeprefix("http://"), f"127.0.0.1:{stream_port}"]
    config = files / "prometheus.yml"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
                "rule_files": ["ems-rules.yml"],
                "scrape_configs": [{"job_name": "ems", "static_configs": [{"targets": targets}]}],
            }
        )
    )
    serve = [sys.executable, "-m", "emsworker", "monitoring", "serve", str(stream_port)]
    prometheus = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={files / 'data'}"]
    prometheus += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    board = json.loads((files / "ems-dashboard.json").read_text())
    queries = {
        (panel["title"], target["expr"]): target["expr"]
        .replace("$__rate_interval", "1m")
        .replace("$topic", ".*")
        .replace("$group", ".*")
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
    assert len(queries) > 15
    with (
        running(serve, files / "serve.log", EMS_URL=one_stream.url),
        running(prometheus, files / "prometheus.log"),
    ):

        def empty() -> list[Any]:
            passes.delay()
            fails.delay()
            return [title for title, expression in queries.items() if not query(port, expression)]

        until(lambda: not empty(), 60, "every panel has data", poll_s=0.5)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=10) as answer:
            (group,) = json.load(answer)["data"]["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
    assert worker.stop() == 0
