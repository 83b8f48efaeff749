"""Report of dead letters by exception and topic, with samples, and a file to requeue the chosen ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emsworker.extending.errors import ConfigError, Problem
from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.reading import Reading, ReportScope, needs_spark, read_count
from emsworker.spark.jobs.report import Chart, JobReport, Table
from emsworker.spark.jobs.reports import open_engine
from emsworker.spark.jobs.reports.engine import DEAD

_MOST_BARS = 20


@dataclass(frozen=True, kw_only=True)
class DeadOptions(Reading):
    """Options of ``ems pipeline deadletters``; ``since`` and ``until`` select by the time of death."""

    exception: str | None = option(None, help="Only those of this exception, as the report names it.")
    samples: int = option(3, help="How many places are shown of each kind.", metavar="N", read=read_count)
    replay: str | None = option(
        None, help="Write the places of all of them to this file, for `ems dead requeue -`.", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay is not None and self.group is None:
            raise WrongOption("--replay", self.replay, "what is run again belongs to one group; name it with --group")


def write_replay(places: Iterable[tuple[str, int, int]], path: Path) -> int:
    """Write places as ``topic/partition/offset``, atomically; return their number.

    Raises:
        ConfigError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    count = 0
    try:
        with part.open("w", encoding="utf-8") as file:
            for topic, partition, offset in places:
                file.write(f"{topic}/{partition}/{offset}\n")
                count += 1
        part.replace(path)
    except OSError as error:
        fix = f"cannot be written ({error.strerror}); name a file in a folder that is there and that you may write to"
        raise ConfigError([Problem("--replay", str(path), fix)]) from None
    finally:
        part.unlink(missing_ok=True)
    return count


def run(spark: Any, config: DeadOptions) -> JobResult:
    """Run ``ems pipeline deadletters``; without a session in this process."""
    scope = ReportScope(config)
    groups = scope.groups()  # an unknown group is an error, though the stream may have no topic at all
    if config.dry_run:
        return JobResult({"groups": groups, "replay": config.replay})
    engine = open_engine(spark, scope)
    rows = engine.dead_letters(config.exception, config.samples)
    table = Table.of("deadletters", "Dead letters by exception, topic and group", DEAD, rows)
    records = table.records()
    summary: dict[str, Any] = {
        "letters": sum(row["letters"] for row in records),
        "kinds": len(records),
        "exceptions": sorted({row["exception"] for row in records}),
    }
    if config.replay is not None:
        count = write_replay(engine.dead_places(config.exception), Path(config.replay))
        summary |= {"replay": config.replay, "to_replay": count}
    labels = [f"{row['exception']} / {row['topic']} / {row['group']}" for row in records[:_MOST_BARS]]
    chart = Chart("Dead letters", "bar", labels, {"letters": [row["letters"] for row in records[:_MOST_BARS]]})
    return JobResult(summary, JobReport("Dead letters", [table], [chart] if labels else []))


def count_letters(config: DeadOptions) -> int:
    """Count the dead letters of the chosen groups."""
    return sum(lag.dead for lag in ReportScope(config).lags())


JOB = Job("deadletters", DeadOptions, run, needs_spark, count_letters)
