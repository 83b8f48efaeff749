"""``./dev demo-pipeline``: the jobs of the data pipeline over the flights, every figure compared with pandas'."""

from __future__ import annotations

import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.spark.jobs import load
from emsworker.spark.jobs.archive.reading import read_archive
from emsworker.spark.jobs.output import write
from emsworker.spark.jobs.report import JobReport, Table
from emsworker.spark.jobs.session import open_session
from sample_app.expected import Expected
from sample_app.figures import Figures, figures
from sample_app.settings import AIRCRAFT_EVENTS, FLIGHTS, NOTIFICATIONS, READERS, ROTATING
from sample_app.verify import Outcome

_ANALYST = Path(__file__).with_name("analyst.py")
_AGES = 10 * 366 * 86400.0


def show(app: Ems, expected: Expected, limit: int | None, folder: Path) -> list[str]:
    """Run the analyst's script, the reports and the archive; returns what is wrong."""
    os.environ["EMS_URL"] = app.stream.url  # of the tasks in Spark's Python processes, too
    want, outcome = figures(limit), Outcome()
    # As `ems pipeline` makes them of a stream of this size: without Spark.
    _, topics_report = _run(outcome, None, "topics", folder, window=_AGES)
    _compare_topics(outcome, topics_report, expected, want)
    _, latency = _run(outcome, None, "latency", folder)
    _compare_latency(outcome, latency, expected, want)
    if want.late is not None:
        _, told = _run(outcome, None, "trace", folder, id=expected.flights[want.late])
        _compare_story(outcome, told, expected, want.late)
    with open_session("ems-demo") as spark:
        compared = outcome.compared
        _compare_delays(outcome, "the stream", _analyse(spark), want)
        count = outcome.compared - compared
        click.echo(f"delays by airport and hour, and by weather, from format('ems'): {count:,} figures")
        Admin(app).change_topic(FLIGHTS, keep_done_s=0, archive_first=True)
        job = load("archive")
        done = job.run(spark, job.options(folder=str(folder / "lake"), topic=(FLIGHTS,), progress=click.echo)).summary
        archived = read_archive(spark, str(folder / "lake"), FLIGHTS)
        outcome.number("messages in the archive", archived.where("kind = 'message'").count(), _messages(expected, want))
        outcome.number("messages dropped", done["dropped"]["messages"], done["copied"]["messages"])
        _compare_delays(outcome, "the archive", _analyse(spark, archived), want)
        topics = (FLIGHTS, AIRCRAFT_EVENTS, NOTIFICATIONS)  # of the flights the archive has left nothing in MySQL
        checked, _ = _run(outcome, spark, "quality", folder, folder=str(folder / "lake"), topic=topics)
        outcome.number("offsets checked for quality", checked["offsets"], want.events + want.notices)
    click.echo(
        f"{outcome.compared:,} figures of the pipeline compared with pandas', {len(outcome.differences):,} differences"
    )
    return [line.replace("in MySQL", "in the pipeline") for line in outcome.differences]


def _analyse(spark: Any, archived: Any = None) -> Mapping[str, Any]:
    """Run the script as it stands."""
    results: Mapping[str, Any] = runpy.run_path(str(_ANALYST), {"session": spark, "archived": archived})["results"]
    return results


def _run(outcome: Outcome, spark: Any, name: str, pages: Path, /, **options: Any) -> tuple[Any, JobReport]:
    """Run a report, and write it as a page; a report that calls itself failed is a difference.

    Returns:
        its summary and itself.
    """
    job = load(name)
    result = job.run(spark, job.options(**options))
    if result.failure is not None:
        outcome.differences.append(f"report {name}: {result.failure}")
    if result.report is None:
        return result.summary, JobReport(name, [Table(name, name, (), [])])
    (page,) = write(result.report, "html", pages / "reports" / f"{name}.html", result.summary)
    click.echo(f"report {name}: {dict(result.summary)} ({page})")
    return result.summary, result.report


def _messages(expected: Expected, want: Figures) -> int:
    return want.flights + len(expected.malformed)


def _compare_delays(outcome: Outcome, where: str, results: Mapping[str, Any], want: Figures) -> None:
    for name, rows in (("by_hour", want.by_hour), ("by_weather", want.by_weather)):
        found = {tuple(row)[:2]: tuple(row)[2:] for row in results[name]}
        wanted = {row[:2]: row[2:] for row in rows}
        for key in sorted(found.keys() | wanted.keys()):
            have, need = found.get(key, ()), wanted.get(key, ())
            outcome.compared += max(len(have), len(need))
            if have != need:
                outcome.differences.append(f"{name} of {where}, {key}: {have} in Spark, and should be {need}")


def _compare_topics(outcome: Outcome, report: JobReport, expected: Expected, want: Figures) -> None:
    found = {name: {"messages": 0, "dead": 0} for name in (FLIGHTS, AIRCRAFT_EVENTS, NOTIFICATIONS)}
    for row in report.tables[0].records():
        for column in found.get(row["topic"], ()):
            found[row["topic"]][column] += row[column]
    refused = len(READERS) * len(expected.malformed)
    wanted = {
        FLIGHTS: (_messages(expected, want), refused),
        AIRCRAFT_EVENTS: (want.events, 0),
        NOTIFICATIONS: (want.notices, len(expected.dead) - refused),
    }
    for topic, (messages, dead) in wanted.items():
        outcome.number(f"topic {topic}: messages", found[topic]["messages"], messages)
        outcome.number(f"topic {topic}: dead letters", found[topic]["dead"], dead)


def _compare_latency(outcome: Outcome, report: JobReport, expected: Expected, want: Figures) -> None:
    counts: dict[str, int] = {}
    for row in report.tables[0].records():
        counts[row["group"]] = counts.get(row["group"], 0) + row["messages"]
        steps = [row[f"queued_{name}_ms"] or 0.0 for name in ("p50", "p95", "p99", "max")]
        outcome.number(f"group {row['group']}: percentiles out of order", int(steps != sorted(steps)), 0)
    wanted = dict.fromkeys(READERS, _messages(expected, want))
    wanted |= {"rotation": want.rotating, "logbook": want.events, "notifier": want.notices}
    for group, count in wanted.items():
        outcome.number(f"group {group}: messages taken", counts.get(group, 0), count)


def _compare_story(outcome: Outcome, report: JobReport, expected: Expected, late: int) -> None:
    """A flight that left very late: it, its aircraft's event and its notice, in every group."""
    from sample_app.data import read_rows

    carrier = list(read_rows(late + 1))[late]["carrier"]
    found = sorted((row["topic"], row["group"]) for row in report.tables[0].records())
    wanted = [(FLIGHTS, group) for group in READERS] + [(AIRCRAFT_EVENTS, "logbook"), (NOTIFICATIONS, "notifier")]
    wanted += [(FLIGHTS, "rotation")] if carrier in ROTATING else []
    outcome.compared += len(wanted)
    shown = [pair for pair in found if pair[1] is not None]
    if shown != sorted(wanted):
        outcome.differences.append(f"the story of {expected.flights[late]}: {found} in Spark, and should be {wanted}")
