"""The short reports without Spark, as commands: how long they take, and what they need."""

import json
import subprocess
import sys
from typing import Any

import pytest

from emsworker.core.extras import MODULES
from emsworker.publish.outgoing import Outgoing
from emsworker.store.groups import progress
from tests.support.commands import Done, environment
from tests.support.machine import machine_s
from tests.support.streams import Stream, failed, flush_of

pytest.importorskip("polars")

MESSAGES, PARTITIONS, CLAIM = 100_000, 4, 500
LONGEST_S = 3.0
REPORTS = {
    "lag": ["--every", "1h"],
    "topics": [],
    "latency": [],
    "deadletters": [],
    "trace": ["--id", "story-77", "--header", "story"],
}
_WITHOUT = "import sys; sys.modules.update(dict.fromkeys({names!r})); from emsworker.__main__ import main; main()"


def ems(*arguments: str, url: str, without: tuple[str, ...] = (), timeout_s: float = 60) -> Done:
    """``ems pipeline ...`` in a process that has neither a Java nor PySpark, nor the modules of these extras."""
    names = [module for extra in ("spark", *without) for module in MODULES[extra]]
    names = [name for name in names if name != "pyarrow" or "arrow" in without]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(names=names), "pipeline", *arguments],
        capture_output=True,
        text=True,
        env=environment({"EMS_URL": url, "PATH": "/nowhere", "JAVA_HOME": "/none"}),
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def fill(stream: Stream, count: int = MESSAGES) -> None:
    """A topic that a group has worked through, with a failure and a dead letter in each claim."""
    topic = stream.topic("orders", partitions=PARTITIONS)
    group, app = stream.group(topic, "sellers"), stream.app()
    for start in range(0, count, 5000):
        numbers = range(start, min(start + 5000, count))
        headers = [{"a-task": f"task{n % 7}", "story": f"story-{n}"} for n in numbers]
        app.send_many(
            "orders",
            [
                Outgoing("orders", {"n": n}, key=f"k{n % 40}", headers=one)
                for n, one in zip(numbers, headers, strict=True)
            ],
        )
    stream.rows("UPDATE ems_message SET headers = REPLACE(headers, 'a-task', 'ems-task')")  # as calls of tasks have it
    me = stream.client(lease_s=3600)
    for partition in range(PARTITIONS):
        end = stream.value("SELECT MAX(`offset`) FROM ems_message WHERE `partition` = %s", partition) or 0
        lo = 1
        while lo <= end:
            claim = stream.take(topic, group, me, CLAIM, partition)
            offsets = [message.offset for message in claim.messages]
            failures = [failed(offsets[0], dead="used up"), failed(offsets[-1])]
            progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=failures))
            lo = claim.hi + 1


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_the_short_reports_of_100_000_messages_take_less_than_3_seconds_each(stream: Stream) -> None:
    fill(stream)
    dead = stream.value("SELECT COUNT(*) FROM ems_dead")
    took: dict[str, float] = {}
    for report, arguments in REPORTS.items():
        for _ in range(2):  # the first one finds cold caches of the server
            began = machine_s()
            done = ems(report, *arguments, "--format", "json", url=stream.url)
            took[report] = min(took.get(report, 60.0), machine_s() - began)
            assert done.code == 0, done.err
        summary: dict[str, Any] = json.loads(done.out)
        assert summary["engine"] == "polars"
        if report == "topics":
            assert (summary["messages"], summary["dead"]) == (MESSAGES, dead)
        elif report == "latency":
            assert summary["messages"] == sum(row["messages"] for row in summary["tables"]["latency"]) == MESSAGES
            assert {row["task"] for row in summary["tables"]["latency"]} == {f"task{n}" for n in range(7)}
        elif report == "lag":
            assert summary["peak"] > 0 and summary["lag_now"] == stream.value("SELECT COUNT(*) FROM ems_retry")
        elif report == "deadletters":
            assert summary["letters"] == dead > 0
        else:
            assert summary["messages"] == 1
    print({report: round(seconds, 2) for report, seconds in took.items()})
    assert max(took.values()) < LONGEST_S, took


def test_reports_of_an_empty_stream_are_empty(stream: Stream) -> None:
    for report in ("lag", "topics", "latency", "deadletters"):
        done = ems(report, "--json", url=stream.url)
        assert (done.code, json.loads(done.out)["engine"]) == (0, "polars"), done.err
    stream.group(stream.topic("orders"), "sellers")
    done = ems("latency", "--by", "hour", "--format", "json", url=stream.url)
    assert json.loads(done.out)["tables"] == {"latency": []}


def test_a_story_that_nobody_knows_ends_with_1(stream: Stream) -> None:
    stream.group(stream.topic("orders"), "sellers")
    stream.app().send("orders", 1)
    done = ems("trace", "--id", "order-1", "--header", "order", url=stream.url)
    assert (done.code, done.errors) == (1, ["Error: no message has order = 'order-1'"])


def test_without_both_engines_the_error_names_both_extras(stream: Stream) -> None:
    done = ems("topics", url=stream.url, without=("polars",))
    assert done.code == 1
    assert "pip install 'emsworker[polars]'" in done.err and "pip install 'emsworker[spark]'" in done.err
    assert "Traceback" not in done.err
    done = ems("topics", "--spark", url=stream.url)
    assert done.code == 1 and "pip install 'emsworker[spark]'" in done.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lag", "--no-spark", "--master", "local[2]"], "--master and --conf are for Spark"),
        (["quality", "--no-spark"], "quality runs on Spark only; leave out --no-spark."),
    ],
)
def test_wrong_choices_of_an_engine_are_refused(stream: Stream, arguments: list[str], text: str) -> None:
    done = ems(*arguments, url=stream.url)
    assert done.code == 2 and text in " ".join(done.err.split()), done


def test_a_large_report_goes_on_without_spark_and_says_so(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from emsworker.core import extras
    from emsworker.spark import commands as pipeline

    fill(stream, 200)
    monkeypatch.setattr(pipeline, "LARGE", 199)
    monkeypatch.setitem(extras.MODULES, "spark", ("no_such_module",))  # type: ignore[index]
    monkeypatch.setenv("EMS_URL", stream.url)
    done = CliRunner().invoke(pipeline.command_of(pipeline.load("topics"), "Try."), ["--json"])
    assert done.exit_code == 0, done.output
    assert "reading 200 rows without Spark" in done.stderr
    assert json.loads(done.stdout)["messages"] == 200
