"""Report of the lag of groups over time, their rates, and the time until they catch up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emsworker.admin.monitoring import GroupLag
from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.reading import Datasets, Reading, needs_spark, read_span
from emsworker.spark.jobs.report import Chart, JobReport, Table
from emsworker.spark.jobs.reports.outcomes import read_outcomes

_MOST_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class LagOptions(Reading):
    """Options of ``ems pipeline lag``."""

    every: float = option(60.0, help="One line for each span of this length.", metavar="SPAN", read=read_span)


def lag_over_time(outcomes: Any, every_s: float) -> Any:
    """Compute the lag of each group at the end of each span from its first message to its last event.

    Lag is defined as in ``ems groups list``: messages that are born and not ended (done or dead). Messages that a group
    skipped do not count.

    Returns:
        ``topic``, ``group``; ``at``: the end of the span; ``born`` and ``ended`` in it; ``lag`` at its end;
        ``born_per_s``, ``ended_per_s``; ``drain_s``: seconds until the lag has drained if both rates stay, NULL if it
        never does.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    span_us = round(every_s * 1_000_000)
    kept = outcomes.where("state != 'skipped'")
    number = [F.floor(F.unix_micros(name) / F.lit(span_us)).alias("span") for name in ("timestamp", "endedAt")]
    one, none = F.lit(1), F.lit(0)
    events = kept.select("topic", "group", number[0], one.alias("born"), none.alias("ended")).unionByName(
        kept.where("endedAt IS NOT NULL").select("topic", "group", number[1], none.alias("born"), one.alias("ended"))
    )
    counted = events.groupBy("topic", "group", "span").agg(F.sum("born").alias("born"), F.sum("ended").alias("ended"))
    extent = counted.groupBy("topic", "group").agg(F.min("span").alias("lo"), F.max("span").alias("hi"))
    every = extent.select("topic", "group", F.explode(F.sequence("lo", "hi")).alias("span"))
    dense = every.join(counted, ["topic", "group", "span"], "left").fillna(0, ["born", "ended"])
    order = Window.partitionBy("topic", "group").orderBy("span").rowsBetween(Window.unboundedPreceding, 0)
    lag = F.sum(F.col("born") - F.col("ended")).over(order)
    dense = dense.withColumn("lag", lag).withColumn("at", F.timestamp_micros((F.col("span") + 1) * F.lit(span_us)))
    net = F.col("ended") - F.col("born")
    drain = F.when(F.col("lag") == 0, F.lit(0.0)).when(net > 0, F.col("lag") / net * every_s)
    return dense.select(
        "topic",
        "group",
        "at",
        "born",
        "ended",
        "lag",
        F.round(F.col("born") / every_s, 3).alias("born_per_s"),
        F.round(F.col("ended") / every_s, 3).alias("ended_per_s"),
        F.round(drain, 3).alias("drain_s"),
    )


def run(spark: Any, config: LagOptions) -> JobResult:
    """Run ``ems pipeline lag``."""
    data = Datasets(spark, config)
    lags = data.lags()
    summary: dict[str, Any] = {"groups": len(lags), "lag_now": sum(lag.lag for lag in lags)}
    if config.dry_run:
        return JobResult(summary | {"every_s": config.every})
    frame = read_outcomes(data, all_times=True).select("topic", "group", "state", "timestamp", "endedAt").persist()
    try:
        return _report(frame, config, lags, summary)
    finally:
        frame.unpersist()


def _report(frame: Any, config: LagOptions, lags: list[GroupLag], summary: dict[str, Any]) -> JobResult:
    from pyspark.sql import functions as F

    _check_steps(frame, config)
    found = lag_over_time(frame, config.every)
    if config.since is not None:
        found = found.where(F.col("at") > config.since)
    if config.until is not None:
        found = found.where(F.col("at") <= config.until)
    table = Table.of("lag", f"Lag, every {config.every:g} s", found.orderBy("topic", "group", "at"))
    records = table.records()
    peak = max(records, key=lambda row: row["lag"], default=None)
    if peak is not None:
        summary |= {"peak": peak["lag"], "peak_at": peak["at"], "peak_group": f"{peak['topic']}/{peak['group']}"}
    return JobResult(summary, JobReport("Lag", [_now(lags), table], _charts(records)))


def _check_steps(frame: Any, config: LagOptions) -> None:
    """Raise WrongOption if the spans are too short for the time that the stream covers."""
    from pyspark.sql import functions as F

    first, last = frame.agg(F.min("timestamp"), F.max(F.coalesce("endedAt", "timestamp"))).first()
    if first is not None and (seconds := (last - first).total_seconds()) / config.every > _MOST_STEPS:
        fix = f"the stream covers {seconds:.0f} s, which would be more than {_MOST_STEPS} lines for a group; "
        raise WrongOption("--every", f"{config.every:g}", f"{fix}take {seconds / _MOST_STEPS:.0f}s or more")


def _now(lags: list[GroupLag]) -> Table:
    from pyspark.sql.types import StructType

    columns = ("topic", "group", "lag", "unclaimed", "claimed", "waiting", "retries", "dead", "oldest_s")
    rows = [
        (one.topic.name, one.group.name, one.lag, one.unclaimed, one.claimed, one.waiting, one.retries, one.dead, age)
        for one, age in ((lag, lag.oldest_age_s) for lag in lags)
    ]
    kinds = ("string", "string", *["bigint"] * 6, "double")
    schema = StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, kind in zip(columns, kinds, strict=True)))
    return Table("now", "Now", columns, rows, schema)


def _charts(records: list[dict[str, Any]]) -> list[Chart]:
    times = sorted({row["at"] for row in records})
    series: dict[str, dict[Any, int]] = {}
    for row in records:
        series.setdefault(f"{row['topic']} / {row['group']}", {})[row["at"]] = row["lag"]
    if not series:
        return []
    labels = [time.strftime("%m-%d %H:%M:%S") for time in times]
    lines = {name: [values.get(time) for time in times] for name, values in series.items()}
    return [Chart("Lag, messages", "line", labels, lines)]


JOB = Job("lag", LagOptions, run, needs_spark)
