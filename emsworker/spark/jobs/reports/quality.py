"""The job ``quality``: checks the stream for defects, changes nothing, and exits with 1 if it finds an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from emsworker.arrow import scan
from emsworker.arrow.manifest import File, read_manifests
from emsworker.arrow.planning import Slice
from emsworker.arrow.profile import closing_session, open_stream
from emsworker.extending.database import Database, server_now
from emsworker.extending.stream import quality as store
from emsworker.extending.stream import topics
from emsworker.extending.values import Group, OffsetRange, Topic, counted, plural
from emsworker.spark.jobs.archive.auditing import ERROR, NOTE, AuditFinding, Trimmed, audit
from emsworker.spark.jobs.archive.copying import cut, frame_of
from emsworker.spark.jobs.archive.reading import read_files
from emsworker.spark.jobs.folder import open_folder
from emsworker.spark.jobs.job import Job, JobResult, OfTopics, WrongOption, option
from emsworker.spark.jobs.reading import read_span
from emsworker.spark.jobs.report import JobReport, Table
from emsworker.spark.jobs.session import prepared

_SAMPLES = 1000
_SLACK_S, _PATIENCE_S = 5, 120.0
_COLUMNS = ("check", "severity", "topic", "group", "partition", "count", "detail")


@dataclass(frozen=True, kw_only=True)
class QualityOptions(OfTopics):
    """Options of ``ems pipeline quality``."""

    folder: str | None = option(None, help="An archive that is to be checked, too.", metavar="FOLDER")
    gap_age: float = option(
        60.0, help="After how long an offset without a row counts as a gap.", metavar="SPAN", read=read_span
    )


@dataclass(frozen=True)
class _Stream:
    """Topics, groups and bounds at the start of the job."""

    topics: list[Topic]
    groups: list[Group]
    bounds: dict[tuple[int, int], tuple[int, int, int]]  # (topic, partition) -> log start offset, trimmed, end


def run(spark: Any, config: QualityOptions) -> JobResult:
    """Run the checks.

    Raises:
        WrongOption: a topic does not exist.
    """
    app = open_stream(config.profile)
    with closing_session(app.stream.database) as database:
        found = _read_stream(database, config.topic)
        summary = {
            "topics": [topic.name for topic in found.topics],
            "offsets": sum(end - log_start for log_start, _, end in found.bounds.values()),
        }
        if config.dry_run:
            return JobResult(summary)
        findings = list(_Checks(prepared(spark), config, database, found, str(app.stream.stream_id)).run())
    findings.sort(key=lambda one: (one.severity, one.check, one.topic, one.partition or 0))
    rows = [tuple(getattr(one, name) for name in _COLUMNS) for one in findings]
    errors = sum(one.severity == ERROR for one in findings)
    by_check = {name: sum(one.check == name for one in findings) for name in sorted({one.check for one in findings})}
    report = JobReport("Quality of the stream", [Table("findings", "Findings", _COLUMNS, rows)])
    failure = f"{counted(errors, 'error')} {plural(errors, 'was')} found" if errors else None
    return JobResult(
        {**summary, "errors": errors, "notes": len(findings) - errors, "by_check": by_check}, report, failure
    )


def _read_stream(database: Database, wanted: tuple[str, ...]) -> _Stream:
    every = database.call(topics.list_topics)
    for name in wanted:
        if name not in {topic.name for topic in every}:
            raise WrongOption("--topic", name, "there is no such topic; `ems topics list` shows what there is")
    chosen = [topic for topic in every if not wanted or topic.name in wanted]
    places = database.call(store.places)
    bounds = {}
    for topic in chosen:
        for one in database.call(partial(scan.list_bounds, topic_id=topic.id)):
            log_start, trimmed = places[topic.id, one.partition]
            bounds[topic.id, one.partition] = (log_start, trimmed, max(one.end, log_start))
    ids = {topic.id for topic in chosen}
    return _Stream(chosen, [group for group in database.call(topics.list_groups) if group.topic_id in ids], bounds)


class _Checks:
    def __init__(self, spark: Any, config: QualityOptions, database: Database, found: _Stream, stream: str) -> None:
        self._spark, self._config, self._database, self._found, self._stream = spark, config, database, found, stream
        self._names = {topic.id: topic.name for topic in found.topics}
        self._now_us = round(database.call(server_now).timestamp() * 1_000_000)

    def run(self) -> Iterator[AuditFinding]:
        # The archive first: the other checks leave out damaged segments.
        damaged = set()
        for one in self._audit():
            damaged.add(one.damaged)
            yield one
        messages = self._messages().cache()
        try:
            self._config.progress("looking for gaps")
            yield from self._gaps(messages)
            self._config.progress("looking for duplicates")
            yield from self._duplicates(messages, damaged)
            self._config.progress("looking for times in the future")
            yield from self._future(messages)
        finally:
            messages.unpersist()
        self._config.progress("looking for orphans")
        yield from self._orphans()
        yield from self._pointing_at_nothing()

    def _audit(self) -> Iterator[AuditFinding]:
        if self._config.folder is None:
            return
        self._config.progress("comparing the archive with its manifests")
        trimmed: Trimmed = {
            (self._names[topic_id], number): trimmed
            for (topic_id, number), (_, trimmed, _) in self._found.bounds.items()
        }
        folder = open_folder(self._spark, self._config.folder)
        yield from audit(self._spark, folder, self._config.topic, self._stream, trimmed)

    # -- what is read --------------------------------------------------------------------------------------------------

    def _messages(self) -> Any:
        slices = [
            Slice(OffsetRange(topic_id, number, log_start, end), self._names[topic_id])
            for (topic_id, number), (log_start, _, end) in self._found.bounds.items()
            if log_start < end
        ]
        columns = ("topic", "partition", "offset", "uid", "kind", "timestamp")
        tasks = cut(self._config.profile, "messages", slices)
        return frame_of(self._spark, self._config.profile, "messages", tasks, columns)

    def _log(self, dataset: str) -> Any:
        reader = self._spark.read.format("ems").option("dataset", dataset)
        if self._config.profile is not None:
            reader = reader.option("profile", self._config.profile)
        return reader.option("subscribe", ",".join(self._names.values())).load()

    def _archived(self, damaged: set[str | None]) -> Any:
        """Read the archived messages of the stream's own topics, without damaged segments."""
        files: list[File] = []
        folder = open_folder(self._spark, self._config.folder or "")
        for topic_id, topic in self._names.items() if self._config.folder is not None else ():
            for manifest in read_manifests(folder, topic):
                if (manifest.stream, manifest.topic_id) == (self._stream, topic_id) and manifest.segment not in damaged:
                    files += manifest.files
        return read_files(self._spark, folder, "messages", files)

    def _bounds(self) -> Any:
        rows = [(self._names[topic_id], number, *places) for (topic_id, number), places in self._found.bounds.items()]
        schema = "topic string, partition int, log_start bigint, trimmed bigint, end bigint"
        return self._spark.createDataFrame(rows, schema)

    # -- the checks ----------------------------------------------------------------------------------------------------

    def _gaps(self, messages: Any) -> Iterator[AuditFinding]:
        """Find offsets without a row, which block every group; a young one may still be filled by its producer."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        before = F.lag("offset").over(Window.partitionBy("topic", "partition").orderBy("offset"))
        rows = (
            messages.select("topic", "partition", "offset", "timestamp", before.alias("before"))
            .join(self._bounds(), ["topic", "partition"])
            .withColumn("before", F.coalesce("before", F.col("log_start") - 1))
            .where(F.col("offset") > F.col("before") + 1)
            .where(F.unix_micros("timestamp") < self._now_us - round(self._config.gap_age * 1e6))
            .orderBy("topic", "partition", "offset")
            .limit(_SAMPLES)
            .collect()
        )
        for row in rows:
            lo, hi = row.before + 1, row.offset - 1
            text = f"offsets {lo} to {hi} have no row: a worker closes such holes in a second; is none running?"
            yield AuditFinding("gaps", ERROR, row.topic, None, row.partition, hi - lo + 1, text)

    def _duplicates(self, messages: Any, damaged: set[str | None]) -> Iterator[AuditFinding]:
        """Find ids at two places, the archive included, and messages that a group has finished several times."""
        from pyspark.sql import functions as F

        columns = ("topic", "partition", "offset", "uid")
        everywhere = messages.select(*columns).unionByName(self._archived(damaged).select(*columns))
        place = F.struct("partition", "offset")
        rows = everywhere.where("uid IS NOT NULL").groupBy("topic", "uid").agg(F.collect_set(place).alias("places"))
        for row in rows.where("size(places) > 1").orderBy("topic", "uid").limit(_SAMPLES).collect():
            places = ", ".join(f"{one.partition}/{one.offset}" for one in sorted(row.places))
            text = f"message {row.uid} is at {places}: it was sent again under its id after retention dropped it"
            yield AuditFinding("duplicates", NOTE, row.topic, None, None, len(row.places) - 1, text)
        done = self._log("attempts").where("outcome = 'done'").groupBy("topic", "group", "partition", "offset").count()
        for row in done.where("count > 1").orderBy("topic", "group", "partition", "offset").limit(_SAMPLES).collect():
            times = counted(row["count"], "time")
            text = f"offset {row.offset} was finished {times}: replayed, or run again after a crash"
            yield AuditFinding("duplicates", NOTE, row.topic, row.group, row.partition, row["count"] - 1, text)

    def _future(self, messages: Any) -> Iterator[AuditFinding]:
        """Find times later than the server's: its clock was set back."""
        from pyspark.sql import functions as F

        sources = (
            ("messages", messages.withColumn("group", F.lit(None).cast("string")), "timestamp"),
            ("claims", self._log("claims"), "progressAt"),
            ("attempts", self._log("attempts"), "endedAt"),
        )
        for what, frame, column in sources:
            late = frame.where(F.unix_micros(column) > self._now_us + _SLACK_S * 1_000_000)
            grouped = late.groupBy("topic", "group", "partition").agg(
                F.count("*").alias("n"), F.max(column).cast("string").alias("latest")
            )
            for row in grouped.orderBy("topic", "group", "partition").collect():
                text = (
                    f"{what} with times up to {row.latest} UTC, which is in the future: the server's clock was set back"
                )
                yield AuditFinding("future", ERROR, row.topic, row.group, row.partition, row.n, text)

    def _orphans(self) -> Iterator[AuditFinding]:
        """Find claims beyond the end of the stream, and attempts of deleted messages."""
        from pyspark.sql import functions as F

        bounds = self._bounds()
        place = ["topic", "partition"]
        beyond = self._log("claims").join(bounds, place).where("hi >= end")
        attempts = self._log("attempts").join(bounds, place)
        letters = self._log("deadletters").select("topic", "group", "partition", "offset")
        below = attempts.where("offset < trimmed").join(letters, ["topic", "group", "partition", "offset"], "left_anti")
        for frame, severity, column, text in (
            (beyond, ERROR, "lo", "claims reach beyond the end of the stream: were messages deleted by hand?"),
            (below, NOTE, "offset", "attempts of messages that are gone, such as requeued dead letters"),
        ):
            grouped = frame.groupBy("topic", "group", "partition").agg(
                F.count("*").alias("n"), F.min(column).alias("first")
            )
            for row in grouped.orderBy("topic", "group", "partition").collect():
                detail = f"{text} (the first at offset {row.first})"
                yield AuditFinding("orphans", severity, row.topic, row.group, row.partition, row.n, detail)

    def _pointing_at_nothing(self) -> Iterator[AuditFinding]:
        retries = self._database.call(store.orphan_retries)
        claims = self._database.call(partial(store.ownerless_claims, patience_s=_PATIENCE_S))
        for rows, text in (
            (retries, "retries whose message is gone; the group's workers end them"),
            (claims, "running claims whose client is gone: no beat has recovered them; is one running?"),
        ):
            for one in rows:
                if one.topic_id in self._names:
                    detail = f"{text} (the first at offset {one.first})"
                    name = self._names[one.topic_id]
                    yield AuditFinding("orphans", ERROR, name, one.group, one.partition, one.count, detail)


JOB = Job("quality", QualityOptions, run)
