"""The snippets of the pages about Spark."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from emsworker.core.model import Failure, Outcome
from emsworker.publish.outgoing import Outgoing
from emsworker.store.groups import progress
from tests.docs.snippets import blocks, needs_spark, pages
from tests.spark.conftest import CONF, ROOT, spark_environment
from tests.support.streams import Stream, flush_of

PIPELINE = (
    "archive",
    "restore",
    "quality",
    "index",
    "lag",
    "latency",
    "topics",
    "trace",
    "deadletters",
    "alerts",
    "flows",
)
"""The pages about jobs, in the order in which a reader could follow them."""
ELSEWHERE = {
    "airflow", "arrow", "avro-protobuf", "benchmarks", "clusters", "debezium", "quickstart",
}  # fmt: skip
NEEDS_MORE = ("--iceberg",)  # a catalogue, which has tests of its own
MESSAGES = 40


def _environment(stream: Stream) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    submit = {"PYSPARK_SUBMIT_ARGS": shlex.join([*CONF, "pyspark-shell"])}
    return plain | spark_environment() | {"EMS_URL": stream.url} | submit


def test_the_snippets_of_the_pages_run_and_print_what_they_say(stream: Stream, tmp_path: Path) -> None:
    """All in one process: each start of Java takes seconds."""
    found = {str(page): blocks(page) for page in pages() if needs_spark(page)}
    assert len(found) >= 4
    expected = {}
    for page, parts in found.items():
        assert {block.language for block in parts} <= {"python", "text", "console", "ini", "yaml"}, page
        texts = [block.text for block in parts if (block.language, block.title) == ("text", "prints")]
        expected[page] = "".join(texts)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.apps.pages", *found],
        cwd=tmp_path,
        env=_environment(stream),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == expected


@pytest.mark.slow
def test_the_commands_that_the_pages_about_the_pipeline_show_do_their_work(stream: Stream, tmp_path: Path) -> None:
    """As they are written, on a stream like the one that the pages speak of; only the folders are others."""
    folder = ROOT / "docs" / "pipeline"
    assert {page.stem for page in folder.glob("*.md")} == {*PIPELINE, *ELSEWHERE}
    known = _furnish(stream)
    lines = [line for name in PIPELINE for line in _commands(folder / f"{name}.md")]
    assert any(" restore " in line for line in lines) and any(" replay " in line for line in lines)
    run = [_here(line, tmp_path, known) for line in lines]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.apps.console", *run],
        cwd=tmp_path,
        env=_environment(stream),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ended = dict(zip(lines, json.loads(done.stdout.splitlines()[-1]), strict=True))
    assert [(line, output) for line, (code, output) in ended.items() if code or "Traceback" in output] == []
    restored = next(output for line, (_, output) in ended.items() if " restore " in line)
    assert re.search(rf"messages +{MESSAGES}\b", restored), restored
    replayed = next(output for line, (_, output) in ended.items() if " replay " in line and "--dry-run" not in line)
    assert re.search(rf"again +{MESSAGES // 2}\b", replayed), replayed


def _furnish(stream: Stream) -> str:
    """Orders of the first of November, which two groups have handled, one with failures, and one of now; return its id."""
    topic = stream.topic("orders", partitions=2)
    stream.topic("orders-again", partitions=2)
    stream.topic("pager")
    orders = [
        Outgoing("orders", {"order": n}, key="c17" if n % 2 else "c18", headers={"order": f"order-{4700 + n}"})
        for n in range(MESSAGES)
    ]
    stream.app().send_many("orders", orders)
    stream.rows("UPDATE ems_message SET born_at = '2026-11-01 12:00:00'")
    for name in ("billing", "sellers"):
        group, client = stream.group(topic, name), stream.client(lease_s=3600)
        for partition in range(2):
            if not stream.value("SELECT COUNT(*) FROM ems_message WHERE `partition` = %s AND `offset` > 0", partition):
                continue
            claim = stream.take(topic, group, client, partition=partition)
            error = Failure(claim.hi, 1, Outcome.FAILED, "ConnectionError: no", None, "used up", 0.001)
            failures = [error] if name == "sellers" else []
            progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=failures))
    return stream.app().send("orders", "of now").id


def _commands(page: Path) -> list[str]:
    shown = [block.text.replace("\\\n", " ") for block in blocks(page) if block.language == "console"]
    lines = [line[2:] for text in shown for line in text.splitlines() if line.startswith("$ ems ")]
    return [line for line in lines if not any(word in line for word in NEEDS_MORE)]


def _here(line: str, folder: Path, known: str) -> str:
    line = line.replace("/archive/shop", str(folder / "archive")).replace("/var/lib/ems", str(folder / "ems"))
    line = re.sub(r"--id 0190d6a4-\S+", f"--id {known}", line)
    return f"{line} --once" if " alerts " in line and "--once" not in line else line
