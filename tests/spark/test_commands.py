"""Every job, with all its own options, by the command line of an installed wheel, on real data."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from emsworker.spark.commands import _OF_EVERY_JOB, Pipeline
from emsworker.spark.jobs import JOBS
from tests.spark.archives import fill
from tests.spark.conftest import CONF, ROOT, spark_environment
from tests.support.commands import Done, environment
from tests.support.flow_events import send_events
from tests.support.streams import Stream

_PERIOD = ("--since", "2026-01-01", "--until", "2036-01-01")
_GROUP = ("--topic", "orders", "--group", "g", *_PERIOD)
_CHOSEN = ("--topic", "orders", "--folder", "archive", "--partition", "0", "--offsets", "1-40", "--since", "2026-01-01")
_CHOSEN += ("--until", "2036-01-01", "--where", "offset % 2 = 0", "--job", "again")


class Start(NamedTuple):
    """A command line: the job with its options, and what its output must hold; those of one step run at once."""

    step: int
    arguments: tuple[str, ...]
    said: str


STARTS = (
    Start(0, ("archive", "--topic", "orders", "--folder", "archive", "--segment", "100", "--dry-run"), "dry run"),
    Start(1, ("archive", "--topic", "orders", "--folder", "archive", "--segment", "100"), "segments"),
    Start(1, ("lag", *_GROUP, "--every", "1h"), "LAG"),
    Start(1, ("topics", "--topic", "orders", *_PERIOD, "--window", "1d", "--by", "bytes", "--top", "3"), "BYTES"),
    Start(1, ("latency", *_GROUP, "--by", "group"), "GROUP"),
    Start(1, ("trace", "--id", "c1", "--header", "case", *_GROUP), "orders"),
    Start(1, ("deadletters", *_GROUP, "--exception", "E", "--samples", "1", "--replay", "again.txt"), "letters"),
    Start(1, ("flows", "--since", "2020-01-01", "--until", "2036-01-01"), "FLOWS"),
    Start(2, ("restore", *_CHOSEN, "--to", "copy", "--keep-partitions", "--key", "k1", "--tag", "red", "--dry-run"), "dry run"),
    Start(2, ("restore", *_CHOSEN, "--to", "copy"), "messages      20"),
    Start(2, ("replay", *_CHOSEN, "--group", "g", "--key", "k1", "--tag", "red"), "conflicts"),
    Start(2, ("quality", "--topic", "orders", "--folder", "archive", "--gap-age", "1h"), "by check"),
    Start(2, ("alerts", "--topic", "orders", "--group", "g", "--checkpoint", "seen", "--events", "events", "--once",
              "--lag", "5", "--consume-timeout", "1h", "--error-rate", "50%", "--within", "1h", "--least", "1",
              "--lasting", "1s", "--every", "1s", "--to-topic", "copy"), "rules"),
    Start(3, ("compact", "--topic", "orders", "--folder", "archive", "--segment", "1000", "--keep", "0"), "compact"),
)  # fmt: skip
ELSEWHERE = {"--iceberg", "--webhook", "--command", "--profile"}
"""Options that need what is not here, or take the place of EMS_URL, as in the tests of their own."""


def test_every_job_with_every_option_of_its_own_is_started() -> None:
    """A job or an option that nobody starts here is an error."""
    assert {start.arguments[0] for start in STARTS} == set(JOBS)
    group = Pipeline("pipeline")
    context = click.Context(group)
    common = {name for make in _OF_EVERY_JOB for one in make(click.Command("x")).params for name in one.opts}
    for job in JOBS:
        command = group.get_command(context, job)
        assert command is not None
        own = {one.opts[0] for one in command.params} - common - ELSEWHERE - {"--dry-run"}
        given = {word for start in STARTS if start.arguments[0] == job for word in start.arguments}
        left = own - given - ({"--group"} if job == "topics" else set())  # which it refuses
        assert not left, f"no start of {job} has {left}"
        names = [one.name for one in command.params]
        assert len(names) == len(set(names)), f"an option of {job} has the name of one that every job has"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of an environment with the wheel, and with this one's other packages."""
    folder = tmp_path_factory.mktemp("wheel") / "suite"
    subprocess.run([sys.executable, "-m", "verification.installed", "suite", str(folder)], cwd=ROOT, check=True)
    yield folder / "env" / "bin" / "python"
    shutil.rmtree(folder)


@pytest.mark.slow
def test_the_jobs_start_from_the_wheel_and_do_their_work(stream: Stream, wheel: Path, tmp_path: Path) -> None:
    fill(stream, 400)
    stream.app().send("orders", 1, headers={"case": "c1"})
    stream.topic("copy", partitions=2)
    send_events(stream)
    environ = environment(spark_environment() | {"EMS_URL": stream.url, "PYSPARK_PYTHON": str(wheel)})
    del environ["PYTHONPATH"]  # the checkout

    def run(start: Start) -> Done:
        command = [str(wheel.parent / "ems"), "pipeline", *start.arguments, *_conf(start.arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=300, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for step in sorted({start.step for start in STARTS}):
            now = [start for start in STARTS if start.step == step]
            for start, done in zip(now, pool.map(run, now), strict=True):
                assert done.code == 0, (start, done.out, done.err)
                assert start.said in done.out and "Traceback" not in done.err, (start, done.out, done.err)
    assert stream.value(
        "SELECT COUNT(*) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = 'copy'"
    )


def _conf(arguments: Sequence[str]) -> Sequence[str]:
    """Settings of Spark for a quick start; a report that is given some uses Spark, and these need not."""
    return () if arguments[0] in ("lag", "topics", "latency", "trace", "deadletters", "flows") else CONF
