"""Trace of a story: a message, all messages that it led to, and the clients that ran them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from emsworker.admin.monitoring import Monitoring
from emsworker.arrow.profile import closing_session, open_stream
from emsworker.core.errors import InvalidName, UnknownMessage
from emsworker.core.ids import parse_uid, uid_text
from emsworker.core.model import TASK_HEADER
from emsworker.spark.jobs.job import Job, JobResult, option
from emsworker.spark.jobs.reading import Datasets, Reading, needs_spark
from emsworker.spark.jobs.report import JobReport, Table
from emsworker.spark.jobs.reports.outcomes import ATTEMPT_COLUMNS, FILTER_COLUMNS, header, outcomes, read_stories
from emsworker.tasks.correlation import CAUSATION, CORRELATION

_PLACE = ("topic", "partition", "offset")
_COLUMNS = f"topic partition offset timestamp uid producer {FILTER_COLUMNS}"
_SHOWN = (
    *("depth", "topic", "partition", "offset", "id", "parent", "task", "born_at", "producer", "producer_thread"),
    *("group", "state", "client", "claimed_at", "ended_at", "queued_ms", "took_ms", "tries"),
)


@dataclass(frozen=True, kw_only=True)
class TraceOptions(Reading):
    """Options of ``ems pipeline trace``."""

    id: str = option(help="The id of any message of the story, or the value of its correlation header.")
    header: str = option(CORRELATION, help="The header that all messages of a story share.")


def find_family(messages: Any, value: str, name: str) -> Any:
    """Find the messages whose header ``name`` or whose id is ``value``; add ``parent`` and ``task``."""
    from pyspark.sql import functions as F

    chosen = messages.where((F.col("uid") == value) | (header(name) == value))
    return chosen.select(
        *_PLACE,
        "timestamp",
        "uid",
        "producer",
        "tag",
        "rawHeaders",
        header(CAUSATION).alias("parent"),
        header(TASK_HEADER).alias("task"),
    )


def narrow(claims: Any, family: Any) -> Any:
    """Keep the claims that cover a message of the family, which is small and compared with every claim."""
    from pyspark.sql import functions as F

    places = F.broadcast(family.select(F.col("topic").alias("t"), F.col("partition").alias("p"), "offset"))
    inside = F.col("offset").between(F.col("lo"), F.col("hi"))
    return claims.join(
        places, (F.col("topic") == F.col("t")) & (F.col("partition") == F.col("p")) & inside, "left_semi"
    )


def find_threads(family: Any, ended: Any, attempts: Any) -> Any:
    """Find the consumer thread that sent each child: ``uid``, ``producer_thread``.

    It ran the parent in the process that sent the child, in the run that was the first to end after the child's birth.

    Args:
        ended: the outcomes of the family.
        attempts: the attempts of the family, with ``uid``.
    """
    from pyspark.sql import functions as F

    runs = ended.select(F.col("uid").alias("ran"), "client", "endedAt").unionByName(
        attempts.select(F.col("uid").alias("ran"), "client", "endedAt")
    )
    sender = F.regexp_extract("producer", r"-(\d+)$", 1)
    runner = F.regexp_extract("client", r"^[^-]*-(\d+)-", 1)
    in_time = F.col("endedAt").isNull() | (F.col("endedAt") >= F.col("timestamp"))
    pairs = family.where("parent IS NOT NULL").join(
        runs, (F.col("ran") == F.col("parent")) & (sender == runner) & in_time
    )
    never = F.lit("9999-01-01").cast("timestamp")
    return pairs.groupBy("uid").agg(F.min_by("client", F.coalesce("endedAt", never)).alias("producer_thread"))


def tell(family: Any, ended: Any, attempts: Any) -> Any:
    """Return a row for each message of the family and each of its groups (one row if it has no group)."""
    from pyspark.sql import functions as F

    milliseconds = {
        "queued_ms": F.unix_micros("claimedAt") - F.unix_micros("timestamp"),
        "took_ms": F.unix_micros("endedAt") - F.unix_micros("claimedAt"),
    }
    outcome = ended.select("uid", "group", "state", "client", "claimedAt", "endedAt", "tries")
    frame = family.join(outcome, "uid", "left").join(find_threads(family, ended, attempts), "uid", "left")
    for name, micros in milliseconds.items():
        frame = frame.withColumn(name, micros / 1000.0)
    renamed = {"uid": "id", "timestamp": "born_at", "claimedAt": "claimed_at", "endedAt": "ended_at"}
    return frame.drop("tag", "rawHeaders").withColumnsRenamed(renamed)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order messages before their children, children by birth; add ``depth``, 0 if the parent is not known."""
    by_id: dict[str, list[dict[str, Any]]] = {}
    children: dict[str | None, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row["born_at"], row["id"], row["group"] or "")):
        by_id.setdefault(row["id"], []).append(row)
    for uid, own in by_id.items():
        parent = own[0]["parent"]
        children.setdefault(parent if parent in by_id and parent != uid else None, []).append(uid)
    found, left = [], [(uid, 0) for uid in reversed(children.get(None, []))]
    while left:
        uid, depth = left.pop()
        found += [{**row, "depth": depth} for row in by_id[uid]]
        left += [(child, depth + 1) for child in reversed(children.get(uid, []))]
    return found


def run(spark: Any, config: TraceOptions) -> JobResult:
    """Run ``ems pipeline trace``."""
    data = Datasets(spark, config)
    value = _correlation(config)
    if config.dry_run:
        return JobResult({config.header: value, "groups": data.groups()})
    family = find_family(data.messages(_COLUMNS), value, config.header).persist()
    try:
        if family.isEmpty():
            return JobResult(
                {config.header: value, "messages": 0}, failure=f"no message has {config.header} = {value!r}"
            )
        return _report(data, family, {config.header: value})
    finally:
        family.unpersist()


def _correlation(config: TraceOptions) -> str:
    """Return the value that the story shares; for a message's id, look it up."""
    try:
        uid = uid_text(parse_uid(config.id))
    except InvalidName:
        return config.id
    with closing_session(open_stream(config.profile).stream.database) as database:
        try:
            traces = Monitoring(database).trace(uid)
        except UnknownMessage:
            return config.id
    return str(traces[0].headers.get(config.header, uid))


def _report(data: Datasets, family: Any, summary: dict[str, Any]) -> JobResult:
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegerType, StructField, StructType

    attempts = data.log("attempts", f"{ATTEMPT_COLUMNS} error")
    ended = outcomes(
        family, data.cursors(), read_stories(data, partial(narrow, family=family)), data.filters()
    ).persist()
    its = attempts.join(F.broadcast(family.select(*_PLACE, "uid")), list(_PLACE)).persist()
    try:
        told = tell(family, ended, its)
        fields = {field.name: field for field in (*told.schema.fields, StructField("depth", IntegerType()))}
        rows = in_order(Table.of("messages", "", told).records())
        tries = its.select(
            F.col("uid").alias("id"),
            "group",
            "attempt",
            "outcome",
            F.col("endedAt").alias("ended_at"),
            F.col("ranMs").alias("ran_ms"),
            "client",
            F.element_at(F.split(F.trim("error"), "\n"), -1).alias("error"),
        ).orderBy("ended_at", "id", "group")
        table = Table.of("attempts", "Attempts that were written down", tries)
    finally:
        its.unpersist()
        ended.unpersist()
    messages = Table(
        "messages",
        "Messages, each before what it led to",
        _SHOWN,
        [tuple(row[name] for name in _SHOWN) for row in rows],
        StructType([fields[name] for name in _SHOWN]),
    )
    summary |= {
        "messages": len({row["id"] for row in rows}),
        "topics": sorted({row["topic"] for row in rows}),
        "depth": max(row["depth"] for row in rows),
        "attempts": len(table.rows),
        "unfinished": sum(row["state"] in ("unclaimed", "waiting", "claimed", "retry") for row in rows),
        "dead": sum(row["state"] == "dead" for row in rows),
    }
    return JobResult(summary, JobReport(f"Trace of {next(iter(summary.values()))}", [messages, table]))


JOB = Job("trace", TraceOptions, run, needs_spark)
