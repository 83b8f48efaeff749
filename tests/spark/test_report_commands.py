"""The reports as commands: dry runs, wrong options, exit codes. No Java is started unless a test says so."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import CONF, ROOT, spark_environment
from tests.support.commands import Done, environment
from tests.support.streams import Stream

REPORTS = ("lag", "topics", "latency", "trace", "deadletters", "alerts")
NEEDED = {
    "trace": ["--id", "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"],
    "alerts": ["--checkpoint", "none", "--events", "none", "--lag", "5"],
}


def ems(*arguments: str, url: str = "mysql://nobody@127.0.0.1:1/none", timeout_s: float = 60, **changes: str) -> Done:
    environ = environment({"EMS_URL": url, "PYTHONPATH": str(ROOT), **changes})
    command = [sys.executable, "-m", "emsworker", "pipeline", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=ROOT, timeout=timeout_s, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("report", REPORTS)
def test_a_dry_run_looks_only_and_starts_no_spark(stream: Stream, report: str, tmp_path: Path) -> None:
    stream.group(stream.topic("orders"), "sellers")
    before = stream.rows("SELECT table_name, table_rows FROM information_schema.tables WHERE table_schema = DATABASE()")
    done = ems(
        report, *NEEDED.get(report, []), "--dry-run", "--json", url=stream.url, PATH="/nowhere", JAVA_HOME="/none"
    )
    assert done.code == 0, done.err
    summary: dict[str, Any] = json.loads(done.out)
    assert summary["dry_run"] is True
    assert summary["groups"] in (["orders/sellers"], 1)
    assert before == stream.rows(
        "SELECT table_name, table_rows FROM information_schema.tables WHERE table_schema = DATABASE()"
    )


def test_a_refused_login_names_the_role_that_the_job_needs(stream: Stream) -> None:
    wrong = re.sub(":[^:@]+@", ":wrong@", stream.url)
    for arguments, role in ((["lag"], "reader"), (["archive", "--dry-run", "--folder", "none"], "admin")):
        done = ems(*arguments, url=wrong, PATH="/nowhere", JAVA_HOME="/none")
        assert done.code == 1 and len(done.errors) == 1, done
        assert f"(`ems grants {role}` prints what a role needs)" in done.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lag", "--every", "soon"], "'soon' is not a duration"),
        (["lag", "--every", "0"], "must be longer than 0 s"),
        (["lag", "--since", "yesterday"], "'yesterday': must be a time like 2026-11-21T08:00"),
        (["lag", "--since", "2026-11-21", "--until", "2026-11-20"], "--until = 2026-11-20T00:00:00+00:00: must be later"),
        (["topics", "--group", "g"], "--group = g: a topic is ranked over all its groups"),
        (["topics", "--top", "0"], "'0': must be a whole number from 1"),
        (["topics", "--by", "colour"], "'colour' is not one of 'messages', 'bytes', 'errors'"),
        (["latency", "--by", "colour"], "'colour' is not one of"),
        (["trace"], "--id"),
        (["deadletters", "--replay", "again.txt"], "--replay = again.txt: what is run again belongs to one group"),
        (["lag", "--topic", "a,b"], "--topic = 'a,b': names one topic"),
        (["alerts", "--lag", "5", "--events", "e"], "--checkpoint"),
        (["alerts", "--checkpoint", "c", "--error-rate", "150%", "--events", "e"], "'150%': must be a share"),
        (["alerts", "--checkpoint", "c", "--error-rate", "many", "--events", "e"], "'many': must be a share"),
        (["alerts", "--checkpoint", "c"], "rules = none: give at least one of --consume-timeout, --lag and"),
        (["alerts", "--checkpoint", "c"], "--events = not given: say where alerts go"),
        (["alerts", "--checkpoint", "c", "--lag", "1", "--every", "10ms", "--events", "e"], "--every = 0.01: must be 1 s"),
        (["alerts", "--checkpoint", "c", "--lag", "-1", "--events", "e"], "'-1': must be a whole number from 0"),
        (["lag", "--colour", "red"], "--colour"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(arguments: list[str], text: str) -> None:
    done = in_process(*arguments)
    assert done.code == 2, done
    assert text in " ".join(done.err.split()), done.err
    assert "Traceback" not in done.err


def in_process(*arguments: str) -> Done:
    """The same without a process: nothing is reached but the options."""
    from click.testing import CliRunner

    from emsworker.cli.main import ems as command

    result = CliRunner(env={"EMS_URL": "mysql://nobody@127.0.0.1:1/none"}).invoke(command, ["pipeline", *arguments])
    return Done(result.exit_code, result.stdout, result.stderr)


def test_an_unknown_group_or_topic_is_an_error(stream: Stream) -> None:
    stream.group(stream.topic("orders"), "sellers")
    done = ems("topics", "--topic", "nowhere", "--dry-run", url=stream.url)
    assert (done.code, done.errors) == (
        1,
        ["Error: there is no topic 'nowhere'; `ems topics list` shows those that exist"],
    )
    done = ems("lag", "--group", "nobody", "--dry-run", url=stream.url)
    assert (done.code, done.errors) == (
        1,
        ["Error: there is no group 'nobody' of any topic; `ems groups list` shows what there is"],
    )


@pytest.mark.timeout(400)
def test_a_story_that_nobody_knows_ends_with_1(stream: Stream) -> None:
    """This one starts Java."""
    stream.group(stream.topic("orders"), "sellers")
    stream.app().send("orders", 1)
    done = ems(
        "trace", "--id", "order-1", "--header", "order", *CONF, url=stream.url, timeout_s=300, **spark_environment()
    )
    assert done.code == 1, done.err
    assert done.errors == ["Error: no message has order = 'order-1'"]
    assert "Traceback" not in done.err
