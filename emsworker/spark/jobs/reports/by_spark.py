"""The reports computed by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from emsworker.extending.apps import CAUSATION
from emsworker.extending.values import TASK_HEADER
from emsworker.spark.jobs.reading import ReportScope
from emsworker.spark.jobs.report import MAX_ROWS
from emsworker.spark.jobs.reports.engine import (
    ATTEMPTS,
    DEAD,
    EVENT,
    FLOWS,
    LAG,
    RANKED,
    SHARES,
    STORY,
    TOPICS,
    Row,
    Story,
    latency_columns,
)
from emsworker.spark.jobs.reports.outcomes import (
    ATTEMPT_COLUMNS,
    FAILURES,
    FILTER_COLUMNS,
    Datasets,
    between,
    header,
    outcomes,
    read_outcomes,
    read_stories,
)

_ACCURACY = 100_000  # percentiles are exact to 1/100,000 of the rows
_PLACE = ("topic", "partition", "offset")
_STORY_COLUMNS = f"topic partition offset timestamp uid producer {FILTER_COLUMNS}"
_DEAD_COLUMNS = "group topic partition offset attempts reason error deadAt"


class SparkEngine:
    """The engine on a session of Spark, whose settings are not changed."""

    name = "spark"

    def __init__(self, spark: Any, scope: ReportScope) -> None:
        self._data, self._config = Datasets(spark, scope), scope.config

    def lag(self, every_s: float, check: Callable[[float], None]) -> list[Row]:
        """Count births and ends of each span, and the lag at its end."""
        from pyspark.sql import functions as F

        columns = ("topic", "group", "state", "timestamp", "endedAt")
        frame = read_outcomes(self._data, all_times=True).select(*columns).persist()
        try:
            first, last = frame.agg(F.min("timestamp"), F.max(F.coalesce("endedAt", "timestamp"))).first()
            if first is not None:
                check((last - first).total_seconds())
            found = lag_over_time(frame, every_s)
            if self._config.since is not None:
                found = found.where(F.col("at") > self._config.since)
            if self._config.until is not None:
                found = found.where(F.col("at") <= self._config.until)
            return _rows(found.orderBy("topic", "group", "at"), LAG)
        finally:
            frame.unpersist()

    def topics(self, window_s: float, by: str, top: int) -> list[Row]:
        """Rank the topics in each window with any event."""
        from pyspark.sql import functions as F

        messages = self._data.messages("topic timestamp size")
        attempts = between(self._data.log("attempts", ATTEMPT_COLUMNS), "endedAt", self._config)
        dead = between(self._data.log("deadletters", "topic deadAt"), "deadAt", self._config)
        ranked = ranking(messages, attempts, dead, window_s)
        return _rows(ranked.where(F.col(f"by_{by}") <= top).orderBy("window", f"by_{by}", "topic"), TOPICS)

    def latency(self, by: tuple[str, ...]) -> list[Row]:
        """Aggregate queueing and run times, in milliseconds."""
        from pyspark.sql import functions as F

        found = read_outcomes(self._data, "rawHeaders")
        named = found.withColumn("task", header(TASK_HEADER)).withColumn("hour", F.date_trunc("hour", "timestamp"))
        return _rows(latency(named, by), latency_columns(by))

    def flows(self) -> list[Row]:
        """Count flows by function and by the state of their latest event."""
        from pyspark.sql import functions as F

        schema = ", ".join(f"{name} string" for name in EVENT)
        read = F.from_json(F.col("value").cast("string"), schema)
        events = self._data.messages("timestamp offset value").where("value IS NOT NULL")
        return _rows(count_flows(events.select("offset", read.alias("event")).select("offset", "event.*")), FLOWS)

    def dead_letters(self, exception: str | None, samples: int) -> list[Row]:
        """Count dead letters by the exception that they ended with."""
        return _rows(kinds(self._letters(exception), samples), DEAD)

    def dead_places(self, exception: str | None) -> Iterator[tuple[str, int, int]]:
        """Iterate over the places of dead letters, in the order of the stream."""
        for row in self._letters(exception).select(*_PLACE).orderBy(*_PLACE).toLocalIterator():
            yield row.topic, row.partition, row.offset

    def _letters(self, exception: str | None) -> Any:
        letters = between(classify(self._data.log("deadletters", _DEAD_COLUMNS)), "deadAt", self._config)
        return letters if exception is None else letters.where(letters["exception"] == exception)

    def story(self, value: str, header: str) -> Story | None:
        """Tell the story whose messages have ``value`` as their id or in this header."""
        family = find_family(self._data.messages(_STORY_COLUMNS), value, header).persist()
        try:
            return None if family.isEmpty() else self._tell(family)
        finally:
            family.unpersist()

    def _tell(self, family: Any) -> Story:
        from pyspark.sql import functions as F

        data = self._data
        attempts = data.log("attempts", f"{ATTEMPT_COLUMNS} error")
        told = read_stories(data, partial(narrow, family=family))
        ended = outcomes(family, data.cursors(), told, data.scope.filters()).persist()
        its = attempts.join(F.broadcast(family.select(*_PLACE, "uid")), list(_PLACE)).persist()
        try:
            messages = _rows(tell(family, ended, its), STORY)
            tries = its.withColumnsRenamed({"uid": "id", "endedAt": "ended_at", "ranMs": "ran_ms"}).withColumn(
                "error", F.element_at(F.split(F.trim("error"), "\n"), -1)
            )
            return Story(messages, _rows(tries.orderBy("ended_at", "id", "group"), ATTEMPTS))
        finally:
            its.unpersist()
            ended.unpersist()


def _rows(frame: Any, columns: dict[str, str]) -> list[Row]:
    """Return the rows of a table, or one more than it may have."""
    return [tuple(row) for row in frame.select(*columns).limit(MAX_ROWS + 1).collect()]


# -- lag --------------------------------------------------------------------------------------------------------------


def lag_over_time(outcomes: Any, every_s: float) -> Any:
    """Return the rows of :meth:`ReportEngine.lag`, in any order."""
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
    return dense.select(*LAG)


# -- topics -----------------------------------------------------------------------------------------------------------


def window_of(time: str, window_s: float) -> Any:
    """Return the start of the window of a time; windows start at multiples of their length since 1970."""
    from pyspark.sql import functions as F

    return F.window(time, f"{round(window_s * 1_000_000)} microseconds")["start"]


def ranking(messages: Any, attempts: Any, dead: Any, window_s: float) -> Any:
    """Rank the topics in each window with any event.

    Args:
        messages: ``topic``, ``timestamp``, ``size``.
        attempts: ``topic``, ``endedAt``, ``outcome``.
        dead: ``topic``, ``deadAt``.

    Returns:
        ``window``, ``topic``, ``messages``, ``bytes``, ``errors``, ``dead``, and the rank by each of the first three.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    zero = F.lit(0).cast("bigint")
    parts = (
        (messages, "timestamp", (F.lit(1), F.col("size"), zero, zero)),
        (attempts.where(F.col("outcome").isin(*FAILURES)), "endedAt", (zero, zero, F.lit(1), zero)),
        (dead, "deadAt", (zero, zero, zero, F.lit(1))),
    )
    names = (*RANKED, "dead")
    union: Any = None
    for frame, time, values in parts:
        counted = [value.cast("bigint").alias(name) for name, value in zip(names, values, strict=True)]
        part = frame.select(window_of(time, window_s).alias("window"), "topic", *counted)
        union = part if union is None else union.unionByName(part)
    sums = union.groupBy("window", "topic").agg(*(F.sum(name).alias(name) for name in names))
    for name in RANKED:
        order = Window.partitionBy("window").orderBy(F.col(name).desc())
        sums = sums.withColumn(f"by_{name}", F.rank().over(order))
    return sums


# -- latency ----------------------------------------------------------------------------------------------------------


def spans(outcomes: Any) -> Any:
    """Return ``queued`` of each message that a group took and ``ran`` of each run with a known time, in ms."""
    from pyspark.sql import functions as F

    unknown = F.lit(None).cast("double")
    waited = (F.unix_micros("claimedAt") - F.unix_micros("timestamp")) / 1000.0
    runs = F.when(F.col("tries").isNull(), F.array("shareMs")).otherwise(F.col("ranMs"))
    ran = F.transform(runs, lambda ms: F.struct(unknown.alias("queued"), ms.cast("double").alias("ran")))
    both = F.concat(F.array(F.struct(waited.alias("queued"), unknown.alias("ran"))), F.coalesce(ran, F.array()))
    return outcomes.withColumn("span", F.explode(both)).withColumns(
        {"queued": F.col("span.queued"), "ran": F.col("span.ran")}
    )


def latency(outcomes: Any, by: tuple[str, ...]) -> Any:
    """Aggregate to a row for each value of ``by``: queueing times of ``messages``, run times of ``runs``."""
    from pyspark.sql import functions as F

    figures = []
    for name, count in (("queued", "messages"), ("ran", "runs")):
        figures.append(F.count(name).alias(count))
        for label, share in SHARES:
            figures.append(F.percentile_approx(name, share, _ACCURACY).alias(f"{name}_{label}_ms"))
        figures.append(F.max(name).alias(f"{name}_max_ms"))
    return spans(outcomes).groupBy(*by).agg(*figures).where("messages + runs > 0").orderBy(*by)


# -- flows ------------------------------------------------------------------------------------------------------------


def count_flows(events: Any) -> Any:
    """Return the rows of :meth:`ReportEngine.flows`, from events with their offsets."""
    from pyspark.sql import functions as F

    micros = {name: F.unix_micros(F.to_timestamp(F.concat(F.col(name), F.lit("Z")))) for name in ("started_at", "at")}
    place = F.struct("at", "offset")
    last = events.groupBy("name", "flow").agg(
        F.max_by("state", place).alias("state"),
        F.max_by("started_at", place).alias("started_at"),
        F.max("at").alias("at"),
        F.count_if(F.col("state") == "waiting").alias("waits"),
    )
    done = F.col("state") == "done"
    took = F.when(done, (micros["at"] - micros["started_at"]) / 1000.0).alias("took")
    counts = [F.count_if(F.col("state") == name).alias(name) for name in ("done", "failed", "cancelled")]
    figures = [F.percentile_approx("took", share, _ACCURACY).alias(f"took_{label}_ms") for label, share in SHARES]
    unfinished = F.count_if(~F.col("state").isin("done", "failed", "cancelled")).alias("unfinished")
    return (
        last.select("name", "state", "waits", took)
        .groupBy("name")
        .agg(
            F.count("*").alias("flows"),
            *counts,
            unfinished,
            F.avg("waits").alias("waits"),
            *figures,
            F.max("took").alias("took_max_ms"),
        )
        .orderBy("name")
    )


# -- dead letters -----------------------------------------------------------------------------------------------------


def classify(letters: Any) -> Any:
    """Add to dead letters the ``exception`` that they ended with, and its ``line`` of the traceback."""
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


# -- stories ----------------------------------------------------------------------------------------------------------


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
