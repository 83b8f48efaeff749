"""Report of dead letters by exception and topic, with samples, and a file to requeue the chosen ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emsworker.core.errors import ConfigError, Problem
from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.reading import Datasets, Reading, needs_spark, read_count
from emsworker.spark.jobs.report import Chart, JobReport, Table

_COLUMNS = "group topic partition offset attempts reason error deadAt"
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


def classify(letters: Any) -> Any:
    """Add to dead letters the ``exception`` that they ended with, and its ``line`` of the traceback.

    Python writes the exception below the frames, which are indented; the last traceback has the exception raised last.
    An error without an exception (for example, a worker died) is its own name.
    """
    from pyspark.sql import functions as F

    last = F.element_at(F.split("error", r"Traceback \(most recent call last\):\n"), -1)
    flush = F.filter(F.split(last, "\n"), lambda line: ~line.rlike(r"^\s|^$"))
    line = F.coalesce(F.get(flush, F.lit(0)), F.col("reason"))
    name = F.regexp_extract(line, r"^([A-Za-z_][\w.]*)(?::|$)", 1)
    return letters.withColumn("line", line).withColumn("exception", F.when(name != "", name).otherwise(line))


def kinds(letters: Any, samples: int) -> Any:
    """Count dead letters by exception, topic and group, with first and last time, an example and the latest places."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    by = ("exception", "topic", "group")
    place = F.concat_ws("/", "topic", "partition", "offset")
    order = Window.partitionBy(*by).orderBy(F.col("deadAt").desc(), "partition", "offset")
    numbered = letters.withColumn("number", F.row_number().over(order))
    shown = F.when(F.col("number") <= samples, F.struct("number", place.alias("place")))
    return (
        numbered.groupBy(*by)
        .agg(
            F.count("*").alias("letters"),
            F.min("deadAt").alias("first_seen"),
            F.max("deadAt").alias("last_seen"),
            F.max("attempts").alias("most_attempts"),
            F.min_by("line", "number").alias("example"),
            F.transform(F.array_sort(F.collect_list(shown)), lambda one: one["place"]).alias("samples"),
        )
        .orderBy(F.col("letters").desc(), *by)
    )


def choose(letters: Any, config: DeadOptions) -> Any:
    """Filter dead letters by time and exception."""
    letters = config.between(letters, "deadAt")
    return letters if config.exception is None else letters.where(letters["exception"] == config.exception)


def write_replay(letters: Any, path: Path) -> int:
    """Write ``topic/partition/offset`` of each dead letter in the order of the stream, atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    count = 0
    rows = letters.select("topic", "partition", "offset").orderBy("topic", "partition", "offset")
    try:
        with part.open("w", encoding="utf-8") as file:
            for row in rows.toLocalIterator():
                file.write(f"{row.topic}/{row.partition}/{row.offset}\n")
                count += 1
        part.replace(path)
    except OSError as error:
        fix = f"cannot be written ({error.strerror}); name a file in a folder that is there and that you may write to"
        raise ConfigError([Problem("--replay", str(path), fix)]) from None
    finally:
        part.unlink(missing_ok=True)
    return count


def run(spark: Any, config: DeadOptions) -> JobResult:
    """Run ``ems pipeline deadletters``."""
    data = Datasets(spark, config)
    if config.dry_run:
        return JobResult({"groups": data.groups(), "replay": config.replay})
    data.lags()  # an unknown group is an error here too, though the stream may have no topic at all
    letters = choose(classify(data.log("deadletters", _COLUMNS)), config)
    table = Table.of("deadletters", "Dead letters by exception, topic and group", kinds(letters, config.samples))
    records = table.records()
    summary: dict[str, Any] = {
        "letters": sum(row["letters"] for row in records),
        "kinds": len(records),
        "exceptions": sorted({row["exception"] for row in records}),
    }
    if config.replay is not None:
        summary |= {"replay": config.replay, "to_replay": write_replay(letters, Path(config.replay))}
    labels = [f"{row['exception']} / {row['topic']} / {row['group']}" for row in records[:_MOST_BARS]]
    chart = Chart("Dead letters", "bar", labels, {"letters": [row["letters"] for row in records[:_MOST_BARS]]})
    return JobResult(summary, JobReport("Dead letters", [table], [chart] if labels else []))


JOB = Job("deadletters", DeadOptions, run, needs_spark)
