"""The job ``archive`` is killed at seeded moments of every step, and run again: nothing is lost, nothing doubled.

What is compared was hashed by Python before the first run, from the rows as PyMySQL gives them, and afterwards from the
files as PyArrow gives them: neither the job's checksums nor Spark have a part in it. The long form is
``EMS_TEST_LONG=1 ./dev test-spark tests/spark/test_archive_kills.py -q``: a million messages and twenty kills.
"""

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emsworker.spark.jobs import load
from emsworker.spark.jobs.archive.restore import RestoreOptions
from tests.spark import archives
from tests.spark.archives import Place, archived, fill, sent, table_attempts, table_claims, table_messages
from tests.support.streams import Stream

LONG = bool(os.environ.get("EMS_TEST_LONG"))
ROWS, SEGMENT, MOMENTS = (1_000_000, 50_000, 20) if LONG else (20_000, 5_000, 2)
_STEPS = ("copying", "comparing", "is archived", "deleting offsets")
_LOOK_EVERY = 5 if LONG else 1  # of a million rows it takes longer than the job
_LATEST_S = 2.0 if LONG else 0.4

Rows = dict[Place, bytes]


def same(found: Rows, expected: Rows, what: str) -> None:
    """Compare two sets of hashed rows; pytest's own way to tell the difference takes hours for a million."""
    lost, added = expected.keys() - found.keys(), found.keys() - expected.keys()
    changed = [place for place, row in found.items() if place in expected and expected[place] != row]
    assert not (lost or added or changed), (
        f"{what}: {len(lost)} rows are lost {sorted(lost)[:3]}, {len(added)} are new {sorted(added)[:3]}, "
        f"{len(changed)} are changed {sorted(changed)[:3]}"
    )


def total(rows: Rows) -> str:
    """How many, and the sum of their hashes: one figure for all columns of all rows, in whatever order."""
    return f"{len(rows):,} rows, digest {sum(int.from_bytes(row) for row in rows.values()) % (1 << 128):032x}"


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Shows how far the long form has come."""
    begun = time.monotonic()

    def show(text: str) -> None:
        if LONG:
            with capsys.disabled():
                print(f"{time.monotonic() - begun:7.1f} s  {text}", flush=True)

    return show


def kill(stream: Stream, topic_id: int, profiles: Path, folder: Path, rows: Rows, tell: Callable[[str], None]) -> None:
    """Run the job again and again, and kill each run."""
    chance = random.Random(20261121)
    for moment in range(MOMENTS):
        step, delay_s = _STEPS[(moment * 3 + 1) % len(_STEPS)], chance.random() * _LATEST_S
        process = archives.job(profiles, *_arguments(folder), log=folder / "log")
        was_running = archives.killed(process, folder / "log", step, delay_s)
        assert was_running, f"kill {moment}, {delay_s:.2f} s after {step!r}, came too late to be in the middle"
        tell(f"kill {moment + 1} of {MOMENTS}: {delay_s:.2f} s after {step!r}")
        if moment % _LOOK_EVERY == _LOOK_EVERY - 1:
            left, kept = table_messages(stream, topic_id), archived(folder / "lake", "orders", "messages")
            same(left | kept, rows, f"after kill {moment + 1} at {step!r}")
            tell(f"{len(left):,} rows in the table, {len(kept):,} in the archive: together the original")


def _arguments(folder: Path) -> tuple[str, ...]:
    return "archive", "--folder", str(folder / "lake"), "--segment", str(SEGMENT)


@pytest.mark.timeout(7200 if LONG else 600)
def test_nothing_is_lost_or_doubled_when_the_archiver_is_killed(
    stream: Stream, spark: Any, profiles: Path, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    topic = fill(stream, ROWS)
    tell(f"filled with {ROWS:,} messages")
    rows, claims, attempts = table_messages(stream, topic.id), table_claims(stream), table_attempts(stream)
    original = sent(stream, topic.id)
    tell(f"before: {total(rows)}")
    kill(stream, topic.id, profiles, tmp_path, rows, tell)
    log, lake = tmp_path / "log", tmp_path / "lake"
    process = archives.job(profiles, *_arguments(tmp_path), "--json", log=log)
    assert process.wait(3600 if LONG else 300) == 0, log.read_text()[-3000:]
    tell("the last run has ended")

    assert table_messages(stream, topic.id) == {}
    kept = archived(lake, "orders", "messages")
    tell(f"archive: {total(kept)}")
    same(kept, rows, "messages")
    same(archived(lake, "orders", "claims"), claims, "claims")
    story = archived(lake, "orders", "attempts")
    assert not story.keys() & table_attempts(stream).keys()
    same(story | table_attempts(stream), attempts, "attempts")
    listed = {
        file["path"]
        for path in (lake / "manifests" / "orders").glob("*.json")
        for file in json.loads(path.read_text())["files"]
    }
    found = {str(path.relative_to(lake)) for path in (lake / "data").rglob("*.parquet")}
    assert found == listed, "no file is left of the runs that died"

    copy = stream.topic("copy", partitions=2)
    options = RestoreOptions(profile="test", folder=str(lake), topic="orders", to="copy", keep_partitions=True)
    load("restore").run(spark, options)
    restored = sent(stream, copy.id)
    tell(f"restored: {', '.join(f'{len(rows):,} of partition {number}' for number, rows in restored.items())}")
    for partition, bodies in original.items():
        pairs = enumerate(zip(restored[partition], bodies, strict=True))
        differs = next((number for number, (one, other) in pairs if one != other), None)
        assert differs is None, f"message {differs} of partition {partition} is another"
    assert restored.keys() == original.keys()
