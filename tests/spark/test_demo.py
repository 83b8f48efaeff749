"""``./dev demo-pipeline``, from end to end; and that it would tell a difference."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from emsworker.spark.jobs.job import Job, JobResult, Options
from emsworker.spark.jobs.report import JobReport, Table
from sample_app import lake
from sample_app.expected import Expected, expect
from sample_app.figures import Figures, figures
from sample_app.settings import AIRCRAFT_EVENTS, FLIGHTS, NOTIFICATIONS, READERS
from sample_app.verify import Outcome
from tests.spark.conftest import ROOT, spark_environment

_LIMIT = 1000


@pytest.mark.skipif(not os.environ.get("EMS_TEST_LONG"), reason="the long form: EMS_TEST_LONG=1")
@pytest.mark.timeout(1800)
def test_every_figure_of_the_demo_is_what_pandas_computes() -> None:
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith("EMS_") or name == "EMS_MYSQL_ROOT"
    }
    done = subprocess.run(
        [sys.executable, "-m", "sample_app.demo", "--pipeline", "--limit", str(_LIMIT)],
        cwd=ROOT,
        env=plain | spark_environment(),
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "figures of the pipeline compared with pandas', 0 differences" in done.stdout
    assert "everything is equal" in done.stdout


# -- each comparison, with figures that are right, and with one that is wrong ------------------------------------------


@pytest.fixture(scope="module")
def want() -> Figures:
    return figures(_LIMIT)


@pytest.fixture(scope="module")
def expected() -> Expected:
    return expect(_LIMIT, 2013, 4)


def table(*records: dict[str, Any]) -> JobReport:
    return JobReport("", [Table("t", "", tuple(records[0]), [tuple(record.values()) for record in records])])


def found_wrong(compare: Callable[[Outcome], None]) -> list[str]:
    outcome = Outcome()
    compare(outcome)
    assert outcome.compared > 0
    return outcome.differences


def test_the_delays_are_compared_figure_by_figure(want: Figures) -> None:
    right: dict[str, list[tuple[Any, ...]]] = {"by_hour": list(want.by_hour), "by_weather": list(want.by_weather)}
    assert not found_wrong(lambda outcome: lake._compare_delays(outcome, "the stream", right, want))
    origin, hour, flights, *rest = want.by_hour[3]
    wrong = right | {"by_hour": [*want.by_hour[:3], (origin, hour, flights + 1, *rest), *want.by_hour[4:]]}
    (line,) = found_wrong(lambda outcome: lake._compare_delays(outcome, "the stream", wrong, want))
    assert line.startswith(f"by_hour of the stream, {(origin, hour)}: ({flights + 1}, ")
    fewer = right | {"by_weather": list(want.by_weather[1:])}
    (line,) = found_wrong(lambda outcome: lake._compare_delays(outcome, "the archive", fewer, want))
    assert line.startswith(f"by_weather of the archive, {want.by_weather[0][:2]}: () in Spark")


def test_the_topics_are_compared(expected: Expected, want: Figures) -> None:
    refused = len(READERS) * len(expected.malformed)
    rows = [
        {"topic": FLIGHTS, "messages": want.flights + len(expected.malformed), "dead": refused},
        {"topic": AIRCRAFT_EVENTS, "messages": want.events, "dead": 0},
        {"topic": NOTIFICATIONS, "messages": want.notices, "dead": len(expected.dead) - refused},
        {"topic": "reports", "messages": 1, "dead": 0},
    ]
    assert not found_wrong(lambda outcome: lake._compare_topics(outcome, table(*rows), expected, want))
    rows[1]["dead"] = 1
    (line,) = found_wrong(lambda outcome: lake._compare_topics(outcome, table(*rows), expected, want))
    assert line == "topic aircraft-events: dead letters is 1 in MySQL, and should be 0"


def test_the_messages_that_groups_took_are_compared(expected: Expected, want: Figures) -> None:
    def rows(**changes: int) -> JobReport:
        counts = dict.fromkeys(READERS, want.flights + len(expected.malformed))
        counts |= {"rotation": want.rotating, "logbook": want.events, "notifier": want.notices, **changes}
        queued = {"queued_p50_ms": 1.0, "queued_p95_ms": 2.0, "queued_p99_ms": 2.0, "queued_max_ms": 3.5}
        return table(*({"group": group, "messages": count, **queued} for group, count in counts.items()))

    assert not found_wrong(lambda outcome: lake._compare_latency(outcome, rows(), expected, want))
    assert 0 < want.rotating < want.flights, "the filter of the group leaves something out"
    (line,) = found_wrong(lambda outcome: lake._compare_latency(outcome, rows(rotation=1000), expected, want))
    assert line == f"group rotation: messages taken is 1,000 in MySQL, and should be {want.rotating}"


def test_the_story_of_a_flight_is_compared(expected: Expected, want: Figures) -> None:
    assert want.late is not None
    rows = [{"topic": FLIGHTS, "group": group} for group in READERS]
    rows += [{"topic": AIRCRAFT_EVENTS, "group": "logbook"}, {"topic": NOTIFICATIONS, "group": "notifier"}]
    late = want.late
    assert not found_wrong(lambda outcome: lake._compare_story(outcome, table(*rows), expected, late))
    (line,) = found_wrong(lambda outcome: lake._compare_story(outcome, table(*rows[1:]), expected, late))
    assert line.startswith(f"the story of {expected.flights[late]}: ")
    more = table(*rows, {"topic": FLIGHTS, "group": "rotation"})
    assert found_wrong(lambda outcome: lake._compare_story(outcome, more, expected, late)), "its filter leaves it out"


def test_a_report_that_fails_is_a_difference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = JobReport("Quality", [Table("findings", "Findings", ("at",), [(datetime(2026, 11, 21, tzinfo=UTC),)])])
    job = Job("quality", Options, lambda spark, config: JobResult({"errors": 2}, report, "2 errors were found"))
    monkeypatch.setattr(lake, "load", lambda name: job)
    outcome = Outcome()
    assert lake._run(outcome, None, "quality", tmp_path) == ({"errors": 2}, report)
    assert outcome.differences == ["report quality: 2 errors were found"]
    assert "2026-11-21 00:00:00.000Z" in (tmp_path / "reports" / "quality.html").read_text()
