"""The outcome of each message in each group: the table that most reports are computed from.

The log of claims is run-length encoded, so a claim is first unrolled to one row for each of its offsets. The join with
the messages is then an equi-join, whose cost grows with the messages and not with messages times claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from emsworker.extending.values import Filter
from emsworker.spark.jobs.reading import CURSORS, Reading, ReportScope
from emsworker.spark.jobs.session import prepared

ONE = ("group", "topic", "partition", "offset")
_PLACE = "group topic partition offset"
CLAIM_COLUMNS = "group topic partition lo hi ackedTo state source client claimId claimedAt progressAt"
ATTEMPT_COLUMNS = f"{_PLACE} attempt outcome ranMs client endedAt"
FILTER_COLUMNS = "tag rawHeaders"
"""Columns that a group's filter needs."""
Filters = Mapping[tuple[str, str], Filter]
"""Filters by topic and group."""
FAILURES = ("failed", "rejected", "timeout", "orphaned")
"""Outcomes of a failed attempt."""


class Datasets:
    """The datasets of a stream as Spark's data frames.

    Args:
        spark: any session; its settings are not changed.
        scope: the part of the stream.
    """

    def __init__(self, spark: Any, scope: ReportScope) -> None:
        self._spark: Any = prepared(spark)
        self.scope = scope

    def messages(self, columns: str, *, all_times: bool = False) -> Any:
        """Read columns of the messages, given by their names with blanks between them; no others are read.

        Args:
            all_times: include messages from before ``since``.
        """
        config = self.scope.config
        frame = self._load("messages", columns, self.scope.message_options(all_times=all_times))
        # Offsets are only nearly in order of time: times are the server's, but two commits may overtake each other.
        if "timestamp" not in columns.split():
            return frame
        return between(frame, "timestamp", replace(config, since=None) if all_times else config)

    def log(self, dataset: str, columns: str) -> Any:
        """Read columns of claims, attempts, retries or dead letters of all times."""
        return self._load(dataset, columns, self.scope.log_options(dataset))

    def _load(self, dataset: str, columns: str, options: dict[str, str]) -> Any:
        from emsworker.spark.columns import ddl

        return self._spark.read.format("ems").schema(ddl(dataset, columns)).options(**options).load()

    def cursors(self) -> Any:
        """Return each group's cursor in each partition."""
        schema = ", ".join(f"`{name}` {kind}" for name, kind in CURSORS.items())
        return self._spark.createDataFrame(self.scope.cursors(), schema)


def between(frame: Any, time: str, config: Reading) -> Any:
    """Filter a data frame by the time in one of its columns."""
    if config.since is not None:
        frame = frame.where(frame[time] >= config.since)
    return frame if config.until is None else frame.where(frame[time] < config.until)


def unroll(claims: Any) -> Any:
    """Expand each claim of the stream to a row for each of its offsets, with the claim's facts about that message."""
    from pyspark.sql import functions as F

    took = F.expr("(unix_micros(progressAt) - unix_micros(claimedAt)) / (1000.0D * (ackedTo - lo + 1))")
    finished = F.col("offset") <= F.col("ackedTo")
    taken = finished | (F.col("state") == "start")
    ranges = claims.where("source = 'stream' AND hi >= lo")
    return ranges.withColumn("offset", F.explode(F.sequence("lo", "hi"))).select(
        *ONE,
        F.when(taken, F.col("claimedAt")).alias("claimedAt"),
        F.when(taken, F.col("client")).alias("client"),
        F.when(finished, F.col("progressAt")).alias("finishedAt"),
        F.when(finished, took).alias("shareMs"),
        F.when(finished, F.col("claimId")).alias("claimId"),
        (~finished & (F.col("state") != "done")).alias("open"),
    )


def stories(claims: Any, attempts: Any, retries: Any, dead: Any) -> Any:
    """Combine the datasets into one row for each message and group that any of them mentions."""
    from pyspark.sql import functions as F

    tried = attempts.withColumnRenamed("client", "runner").withColumnRenamed("endedAt", "attemptAt")
    rows = unroll(claims)
    for other in (tried, retries.withColumn("retried", F.lit(True)), dead):
        rows = rows.unionByName(other, allowMissingColumns=True)
    last = F.struct("attemptAt", "attempt")
    return rows.groupBy(*ONE).agg(
        F.min("claimedAt").alias("claimedAt"),
        F.max_by("client", "claimedAt").alias("client"),
        F.max("finishedAt").alias("finishedAt"),
        F.max_by("shareMs", "finishedAt").alias("shareMs"),
        F.max_by("claimId", "finishedAt").alias("claimId"),
        F.max("open").alias("open"),
        F.max("attempt").alias("tries"),
        F.max_by("outcome", F.when(F.col("attempt").isNotNull(), last)).alias("outcome"),
        F.max_by("runner", F.when(F.col("attempt").isNotNull(), last)).alias("runner"),
        F.max("attemptAt").alias("attemptAt"),
        F.collect_list("ranMs").alias("ranMs"),
        F.max("retried").alias("retried"),
        F.max("deadAt").alias("deadAt"),
    )


def outcomes(messages: Any, cursors: Any, stories: Any, filters: Filters | None = None) -> Any:
    """Compute the outcome of each message in each group of its topic whose filter accepts it.

    A message that a group's filter rejects does not belong to the group, although its claims cover it; unless a row
    about it exists, which was then written under another filter.

    Args:
        messages: with ``topic``, ``partition``, ``offset`` and any other columns; if there are filters, also with
            :data:`FILTER_COLUMNS`.
        cursors: see :meth:`Datasets.cursors`.
        stories: see :func:`stories`.
        filters: see :meth:`ReportScope.filters`.

    Returns:
        the columns of ``messages``, and ``group``; ``state`` (``unclaimed``, ``waiting``, ``claimed``, ``retry``,
        ``done``, ``dead``, ``dropped``: dead and deleted, ``skipped``: the group never ran it); ``claimedAt``: first;
        ``client``: last; ``endedAt`` if it has ended; ``tries``: recorded attempts, and ``ranMs``: their measured
        times; ``shareMs``: the time of its claim divided by the messages that it finished.
    """
    from pyspark.sql import functions as F

    frame = messages.join(F.broadcast(cursors), ["topic", "partition"]).join(stories, list(ONE), "left")
    if filters:
        frame = _wanted(frame, filters)
    state = (
        F.when(F.col("retried"), "retry")
        .when(F.col("deadAt").isNotNull(), "dead")
        .when(F.col("open") & F.col("client").isNull(), "waiting")
        .when(F.col("open"), "claimed")
        .when(F.col("outcome").isin(*FAILURES), "dropped")
        .when(F.col("outcome").isNotNull() | F.col("finishedAt").isNotNull(), "done")
        .when(F.col("offset") >= F.col("cursor"), "unclaimed")
        .otherwise("skipped")
    )
    ended = F.col("state").isin("done", "dead", "dropped")
    return (
        frame.withColumn("state", state)
        .withColumn("endedAt", F.when(ended, F.coalesce("deadAt", "attemptAt", "finishedAt")))
        .withColumn("client", F.coalesce("runner", "client"))
        .drop("cursor", "outcome", "runner", "attemptAt", "retried", "deadAt", "open", "finishedAt", "claimId")
    )


def _wanted(frame: Any, filters: Filters) -> Any:
    """Keep only the messages of each group, and divide the time of a claim among them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    written = F.col("tries").isNotNull() | F.col("retried").isNotNull() | F.col("deadAt").isNotNull()
    frame = frame.withColumn("wanted", ~_left_out(filters) | written)
    # Messages that no claim has finished get a window each: together they would be one huge window of one task.
    claim = Window.partitionBy("group", "topic", "partition", F.coalesce("claimId", -F.col("offset")))
    share = F.count("*").over(claim) / F.sum(F.col("wanted").cast("int")).over(claim)
    return frame.withColumn("shareMs", F.col("shareMs") * share).where("wanted").drop("wanted")


def _left_out(filters: Filters) -> Any:
    """Return the negation of :meth:`Filter.matches` as a column, for the row's group."""
    from pyspark.sql import functions as F

    left_out = F.lit(False)
    for (topic, group), wanted in filters.items():
        matches = F.lit(True)
        if wanted.tags:
            tags = [F.lit(tag.encode()) for tag in wanted.tags]
            matches &= F.coalesce(F.col("tag").isin(tags), F.lit(False))
        for name, text in wanted.headers.items():
            matches &= header(name).eqNullSafe(text)
        left_out |= (F.col("topic") == topic) & (F.col("group") == group) & ~matches
    return left_out


def read_stories(data: Datasets, narrow: Callable[[Any], Any] = lambda claims: claims) -> Any:
    """Read the stories of a stream; ``narrow`` filters the claims."""
    return stories(
        narrow(data.log("claims", CLAIM_COLUMNS)),
        data.log("attempts", ATTEMPT_COLUMNS),
        data.log("retries", _PLACE),
        data.log("deadletters", f"{_PLACE} deadAt"),
    )


def read_outcomes(data: Datasets, columns: str = "", *, all_times: bool = False) -> Any:
    """Read the outcomes of a stream's messages, with their places and the given columns of ``messages``."""
    filters = data.scope.filters()
    wanted = f"topic partition offset timestamp {columns} {FILTER_COLUMNS if filters else ''}"
    messages = data.messages(" ".join(dict.fromkeys(wanted.split())), all_times=all_times)
    return outcomes(messages, data.cursors(), read_stories(data), filters)


def header(name: str) -> Any:
    """Return the text of a header from the column ``rawHeaders``; NULL if the message does not have it."""
    from pyspark.sql import functions as F

    return F.from_json(F.col("rawHeaders").cast("string"), "map<string,string>")[name]
