"""The reports computed by Polars, in this process, from what :func:`emsworker.arrow.read_arrow` reads.

Only numbers, times and names are kept of the messages; headers are read batch by batch. What Spark does in one
aggregation over all logs is done here log by log, because a group with one row needs no work then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa

from emsworker.arrow.columns import arrow_schema, schema_of
from emsworker.arrow.frames import read_arrow
from emsworker.extending.apps import CAUSATION
from emsworker.extending.values import TASK_HEADER, Filter
from emsworker.spark.jobs.reading import CURSORS, Reading, ReportScope
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
from emsworker.spark.jobs.reports.outcomes import ATTEMPT_COLUMNS, CLAIM_COLUMNS, FAILURES, ONE

_PLACE = ("topic", "partition", "offset")
_DEAD_COLUMNS = "group topic partition offset attempts reason error deadAt"
_TRACEBACK = "Traceback (most recent call last):\n"
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?::|$)", re.ASCII)
_INDENTED = re.compile(r"\s|$", re.ASCII)
_PLAIN = re.compile(r"[\w./:@-]+", re.ASCII)
_SENDER, _RUNNER = r"-(\d+)$", r"^[^-]*-(\d+)-"

Headers = Mapping[str, str]
Made = tuple[pl.DataType, Callable[[bytes | None, Headers], Any]]
"""A column made from the tag and the headers of a message: its type, and what makes it."""


class PolarsEngine:
    """The engine in this process."""

    name = "polars"

    def __init__(self, scope: ReportScope) -> None:
        self._data, self._config = _Datasets(scope), scope.config

    def lag(self, every_s: float, check: Callable[[float], None]) -> list[Row]:
        """Count births and ends of each span, and the lag at its end."""
        frame = self._data.outcomes(all_times=True)
        if frame.height:
            last = frame.select(pl.coalesce("endedAt", "timestamp").max()).item()
            check((last - frame["timestamp"].min()).total_seconds())
        found = lag_over_time(frame, every_s)
        if self._config.since is not None:
            found = found.filter(pl.col("at") > self._config.since)
        if self._config.until is not None:
            found = found.filter(pl.col("at") <= self._config.until)
        return _rows(found.sort("topic", "group", "at"), LAG)

    def topics(self, window_s: float, by: str, top: int) -> list[Row]:
        """Rank the topics in each window with any event."""
        messages = self._data.messages("topic timestamp size")
        attempts = _between(self._data.log("attempts", ATTEMPT_COLUMNS), "endedAt", self._config)
        dead = _between(self._data.log("deadletters", "topic deadAt"), "deadAt", self._config)
        ranked = ranking(messages, attempts, dead, window_s).filter(pl.col(f"by_{by}") <= top)
        return _rows(ranked.sort("window", f"by_{by}", "topic"), TOPICS)

    def latency(self, by: tuple[str, ...]) -> list[Row]:
        """Aggregate queueing and run times, in milliseconds."""
        frame = self._data.outcomes({"task": _header(TASK_HEADER)} if "task" in by else {})
        return _rows(latency(frame.with_columns(hour=pl.col("timestamp").dt.truncate("1h")), by), latency_columns(by))

    def flows(self) -> list[Row]:
        """Count flows by function and by the state of their latest event."""
        events = self._data.messages("timestamp offset value").filter(pl.col("value").is_not_null())
        fields = pl.Struct({name: pl.String for name in EVENT})
        read = events.select("offset", pl.col("value").cast(pl.String).str.json_decode(fields).alias("event"))
        return _rows(count_flows(read.unnest("event")), FLOWS)

    def dead_letters(self, exception: str | None, samples: int) -> list[Row]:
        """Count dead letters by the exception that they ended with."""
        return _rows(kinds(self._letters(exception), samples), DEAD)

    def dead_places(self, exception: str | None) -> Iterator[tuple[str, int, int]]:
        """Iterate over the places of dead letters, in the order of the stream."""
        yield from self._letters(exception).select(_PLACE).sort(_PLACE).iter_rows()

    def _letters(self, exception: str | None) -> pl.DataFrame:
        letters = _between(classify(self._data.log("deadletters", _DEAD_COLUMNS)), "deadAt", self._config)
        return letters if exception is None else letters.filter(pl.col("exception") == exception)

    def story(self, value: str, header: str) -> Story | None:
        """Tell the story whose messages have ``value`` as their id or in this header."""
        made: dict[str, Made] = {"shared": _header(header), "parent": _header(CAUSATION), "task": _header(TASK_HEADER)}
        chosen = (pl.col("uid") == value) | (pl.col("shared") == value)
        # Parsing headers is what takes long. A value of plain characters is written in JSON as it is.
        maybe = pl.col("uid") == value
        maybe |= pl.col("rawHeaders").bin.contains(value.encode()) if _PLAIN.fullmatch(value) else pl.lit(True)
        columns = "topic partition offset timestamp uid producer"
        family = self._data.messages(columns, made | self._data.left_out(), first=maybe, where=chosen)
        if not family.height:
            return None
        attempts = self._data.log("attempts", f"{ATTEMPT_COLUMNS} error")
        its = attempts.join(family.select(*_PLACE, "uid"), on=_PLACE)
        ended = self._data.outcomes_of(family, partial(narrow, family=family))
        messages = tell(family, ended, its)
        tries = its.rename({"uid": "id", "endedAt": "ended_at", "ranMs": "ran_ms"}).with_columns(
            error=pl.col("error").str.strip_chars(" ").str.split("\n").list.last()
        )
        return Story(_rows(messages, STORY), _rows(tries.sort("ended_at", "id", "group"), ATTEMPTS))


def _rows(frame: pl.DataFrame, columns: Mapping[str, str]) -> list[Row]:
    return frame.select(*columns).rows()


def _between(frame: pl.DataFrame, time: str, config: Reading) -> pl.DataFrame:
    if config.since is not None:
        frame = frame.filter(pl.col(time) >= config.since)
    return frame if config.until is None else frame.filter(pl.col(time) < config.until)


def _us(column: str) -> pl.Expr:
    return pl.col(column).dt.epoch("us")


# -- reading -----------------------------------------------------------------------------------------------------------


def _header(name: str) -> Made:
    return pl.String(), lambda tag, headers: headers.get(name)


class _Datasets:
    """The datasets of a stream as data frames."""

    def __init__(self, scope: ReportScope) -> None:
        self._scope, self._filters = scope, scope.filters()

    def messages(
        self,
        columns: str,
        made: Mapping[str, Made] | None = None,
        *,
        first: pl.Expr | None = None,
        where: pl.Expr | None = None,
        all_times: bool = False,
    ) -> pl.DataFrame:
        """Read columns of the messages, and make others from their tags and headers, which are not kept.

        Args:
            first: columns are made for these rows only, and others are not kept.
            where: rows to keep, by any column.
            all_times: include messages from before ``since``.
        """
        config = self._scope.config
        names, made = columns.split(), made or {}
        asked = [*names, "tag", "rawHeaders"] if made else names
        options = self._scope.message_options(all_times=all_times)
        limits = replace(config, since=None) if all_times else config
        found = []
        for batch in read_arrow(options, columns=asked):
            frame = _frame(batch) if first is None else _frame(batch).filter(first)
            if made:
                labels = frame.select("tag", pl.col("rawHeaders").cast(pl.String))
                pairs = [(tag, json.loads(raw) if raw else {}) for tag, raw in labels.iter_rows()]
                frame = frame.select(names).with_columns(
                    pl.Series(name, [make(*pair) for pair in pairs], kind) for name, (kind, make) in made.items()
                )
            frame = frame if where is None else frame.filter(where)
            found.append(_between(frame, "timestamp", limits))
        kinds = {name: kind for name, (kind, _) in made.items()}
        empty = _frame(arrow_schema("messages", names).empty_table())
        return pl.concat([empty.with_columns(pl.Series(name, [], kind) for name, kind in kinds.items()), *found])

    def log(self, dataset: str, columns: str) -> pl.DataFrame:
        """Read columns of claims, attempts, retries or dead letters of all times."""
        return _frame(read_arrow(self._scope.log_options(dataset), columns=columns.split()).read_all())

    def outcomes(self, made: Mapping[str, Made] | None = None, *, all_times: bool = False) -> pl.DataFrame:
        """Read the messages, and compute the outcome of each in each group that wants it."""
        columns = {**(made or {}), **self.left_out()}
        return self.outcomes_of(self.messages("topic partition offset timestamp", columns, all_times=all_times))

    def outcomes_of(
        self, messages: pl.DataFrame, narrow: Callable[[pl.DataFrame], pl.DataFrame] = lambda claims: claims
    ) -> pl.DataFrame:
        """Compute the outcomes of messages that were read with :meth:`left_out`; ``narrow`` filters the claims."""
        logs = (
            narrow(self.log("claims", CLAIM_COLUMNS)),
            self.log("attempts", ATTEMPT_COLUMNS),
            self.log("retries", " ".join(ONE)),
            self.log("deadletters", f"{' '.join(ONE)} deadAt"),
        )
        rows = [dict(zip(CURSORS, row, strict=True)) for row in self._scope.cursors()]
        cursors = _frame(pa.Table.from_pylist(rows, schema_of(CURSORS)))
        left_out = {_left_out(*place): place for place in self._filters}
        return outcomes(messages, cursors, stories(*logs), left_out).drop(left_out)

    def left_out(self) -> dict[str, Made]:
        """Return a column for each group with a filter: whether the filter rejects the message."""

        def column(wanted: Filter) -> Made:
            return pl.Boolean(), lambda tag, headers: not wanted.matches(tag, headers)

        return {_left_out(*place): column(wanted) for place, wanted in self._filters.items()}


def _left_out(topic: str, group: str) -> str:
    return f"{topic} not for {group}"


def _frame(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table))


# -- outcomes ----------------------------------------------------------------------------------------------------------


def unroll(claims: pl.DataFrame) -> pl.DataFrame:
    """Expand each claim of the stream to a row for each of its offsets, with the claim's facts about that message."""
    finished = pl.col("offset") <= pl.col("ackedTo")
    taken = finished | (pl.col("state") == "start")
    took = (_us("progressAt") - _us("claimedAt")) / (1000.0 * (pl.col("ackedTo") - pl.col("lo") + 1))
    return (
        claims.filter((pl.col("source") == "stream") & (pl.col("hi") >= pl.col("lo")))
        .with_columns(offset=pl.int_ranges("lo", pl.col("hi") + 1), shareMs=took)
        .explode("offset")
        .select(
            *ONE,
            *(pl.when(taken).then(pl.col(name)).alias(name) for name in ("claimedAt", "client")),
            pl.when(finished).then(pl.col("progressAt")).alias("finishedAt"),
            *(pl.when(finished).then(pl.col(name)).alias(name) for name in ("shareMs", "claimId")),
            (~finished & (pl.col("state") != "done")).alias("open"),
        )
    )


def stories(
    claims: pl.DataFrame, attempts: pl.DataFrame, retries: pl.DataFrame, dead: pl.DataFrame
) -> list[pl.DataFrame]:
    """Aggregate each log to one row for each message and group that it mentions."""
    rows = unroll(claims)
    once = rows.group_by(ONE).agg(pl.col("claimedAt").min().alias("first"), pl.col("open").max())
    taken = rows.filter(pl.col("claimedAt").is_not_null()).sort("claimedAt")
    finished = rows.filter(pl.col("finishedAt").is_not_null()).sort("finishedAt")
    last_taken = taken.unique(ONE, keep="last").select(*ONE, "client")
    last_finished = finished.unique(ONE, keep="last").select(*ONE, "finishedAt", "shareMs", "claimId")
    tried = (
        attempts.sort("endedAt", "attempt")
        .group_by(ONE, maintain_order=True)
        .agg(
            pl.col("attempt").max().alias("tries"),
            pl.col("outcome").last(),
            pl.col("client").last().alias("runner"),
            pl.col("endedAt").max().alias("attemptAt"),
            pl.col("ranMs").drop_nulls(),
        )
    )
    retried = retries.select(ONE).unique().with_columns(retried=True)
    died = dead.group_by(ONE).agg(pl.col("deadAt").max())
    return [once.rename({"first": "claimedAt"}), last_taken, last_finished, tried, retried, died]


def outcomes(
    messages: pl.DataFrame,
    cursors: pl.DataFrame,
    stories: Sequence[pl.DataFrame],
    left_out: Mapping[str, tuple[str, str]],
) -> pl.DataFrame:
    """Compute the outcome of each message in each group of its topic; see Spark's :func:`outcomes.outcomes`.

    Args:
        left_out: columns of ``messages``, true where the filter of a group (topic and name) rejects the message.
    """
    frame = messages.join(cursors, on=["topic", "partition"])
    for story in stories:
        frame = frame.join(story, on=ONE, how="left")
    if left_out:
        frame = _wanted(frame, left_out)
    state = (
        pl.when(pl.col("retried"))
        .then(pl.lit("retry"))
        .when(pl.col("deadAt").is_not_null())
        .then(pl.lit("dead"))
        .when(pl.col("open") & pl.col("client").is_null())
        .then(pl.lit("waiting"))
        .when(pl.col("open"))
        .then(pl.lit("claimed"))
        .when(pl.col("outcome").is_in(FAILURES))
        .then(pl.lit("dropped"))
        .when(pl.col("outcome").is_not_null() | pl.col("finishedAt").is_not_null())
        .then(pl.lit("done"))
        .when(pl.col("offset") >= pl.col("cursor"))
        .then(pl.lit("unclaimed"))
        .otherwise(pl.lit("skipped"))
    )
    ended = pl.when(pl.col("state").is_in(["done", "dead", "dropped"])).then(
        pl.coalesce("deadAt", "attemptAt", "finishedAt")
    )
    return frame.with_columns(state=state, client=pl.coalesce("runner", "client")).with_columns(endedAt=ended)


def _wanted(frame: pl.DataFrame, left_out: Mapping[str, tuple[str, str]]) -> pl.DataFrame:
    """Keep only the messages of each group, and divide the time of a claim among them."""
    rejected = pl.lit(False)
    for column, (topic, group) in left_out.items():
        rejected |= (pl.col("topic") == topic) & (pl.col("group") == group) & pl.col(column)
    written = pl.any_horizontal(pl.col(name).is_not_null() for name in ("tries", "retried", "deadAt"))
    claim = ["group", "topic", "partition", pl.coalesce("claimId", -pl.col("offset"))]
    frame = frame.with_columns(wanted=~rejected | written)
    share = pl.len().over(claim) / pl.col("wanted").sum().over(claim)
    return frame.with_columns(shareMs=pl.col("shareMs") * share).filter("wanted")


# -- lag ---------------------------------------------------------------------------------------------------------------


def lag_over_time(outcomes: pl.DataFrame, every_s: float) -> pl.DataFrame:
    """Return the rows of :meth:`ReportEngine.lag`, in any order."""
    span_us, by = round(every_s * 1_000_000), ["topic", "group"]
    kept = outcomes.filter(pl.col("state") != "skipped")

    def count(name: str, time: str) -> pl.DataFrame:
        spans = kept.filter(pl.col(time).is_not_null()).select(*by, span=_us(time) // span_us)
        return spans.group_by(*by, "span").agg(pl.len().cast(pl.Int64).alias(name))

    born, ended = count("born", "timestamp"), count("ended", "endedAt")
    counted = born.join(ended, on=[*by, "span"], how="full", coalesce=True)
    extent = counted.group_by(by).agg(pl.col("span").min().alias("lo"), pl.col("span").max().alias("hi"))
    every = extent.select(*by, span=pl.int_ranges("lo", pl.col("hi") + 1)).explode("span")
    dense = every.join(counted, on=[*by, "span"], how="left").with_columns(pl.col("born", "ended").fill_null(0))
    at = ((pl.col("span") + 1) * span_us).cast(pl.Datetime("us", "UTC"))
    lag = (pl.col("born") - pl.col("ended")).cum_sum().over(by)
    return dense.sort(*by, "span").with_columns(lag=lag, at=at)


# -- topics ------------------------------------------------------------------------------------------------------------


def ranking(messages: pl.DataFrame, attempts: pl.DataFrame, dead: pl.DataFrame, window_s: float) -> pl.DataFrame:
    """Rank the topics in each window with any event; the data frames are those of Spark's :func:`by_spark.ranking`."""
    window_us, by = round(window_s * 1_000_000), ["window", "topic"]

    def count(frame: pl.DataFrame, time: str, **figures: pl.Expr) -> pl.DataFrame:
        window = (_us(time) // window_us * window_us).cast(pl.Datetime("us", "UTC"))
        return frame.with_columns(window=window).group_by(by).agg(**figures)

    n, failed = pl.len().cast(pl.Int64), pl.col("outcome").is_in(FAILURES)
    sums = count(messages, "timestamp", messages=n, bytes=pl.col("size").cast(pl.Int64).sum())
    for other in (count(attempts.filter(failed), "endedAt", errors=n), count(dead, "deadAt", dead=n)):
        sums = sums.join(other, on=by, how="full", coalesce=True)
    sums = sums.with_columns(pl.col(*RANKED, "dead").fill_null(0))
    return sums.with_columns(
        pl.col(name).rank("min", descending=True).over("window").cast(pl.Int32).alias(f"by_{name}") for name in RANKED
    )


# -- latency -----------------------------------------------------------------------------------------------------------


def latency(outcomes: pl.DataFrame, by: tuple[str, ...]) -> pl.DataFrame:
    """Aggregate to a row for each value of ``by``: queueing times of ``messages``, run times of ``runs``."""
    queued = ((_us("claimedAt") - _us("timestamp")) / 1000.0).alias("queued")
    tried = outcomes.filter(pl.col("tries").is_not_null()).explode("ranMs")
    measured = tried.select(*by, pl.col("ranMs").cast(pl.Float64).alias("ran"))
    shared = outcomes.filter(pl.col("tries").is_null()).select(*by, pl.col("shareMs").alias("ran"))
    waits = _percentiles(outcomes.select(*by, queued), by, "queued", "messages")
    runs = _percentiles(pl.concat([measured, shared]), by, "ran", "runs")
    both = waits.join(runs, on=by, how="full", coalesce=True, nulls_equal=True)
    return both.with_columns(pl.col("messages", "runs").fill_null(0)).sort(by)


def _percentiles(frame: pl.DataFrame, by: Sequence[str], name: str, count: str) -> pl.DataFrame:
    def nearest_rank(share: float) -> pl.Expr:
        rank = (pl.len() * share).ceil().cast(pl.Int64).clip(1, pl.len())
        return pl.col(name).get(rank - 1)

    figures = {f"{name}_{label}_ms": nearest_rank(share) for label, share in SHARES}
    known = frame.filter(pl.col(name).is_not_null()).sort(name)
    return known.group_by(by, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias(count), pl.col(name).max().alias(f"{name}_max_ms"), **figures
    )


# -- flows -------------------------------------------------------------------------------------------------------------


def count_flows(events: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of :meth:`ReportEngine.flows`, from events with their offsets."""
    times = pl.col("started_at", "at").str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us")
    of_flow = events.with_columns(times).sort("at", "offset").group_by("name", "flow", maintain_order=True)
    last = of_flow.agg(
        pl.col("state", "started_at", "at").last(), (pl.col("state") == "waiting").sum().cast(pl.Int64).alias("waits")
    )
    took = ((_us("at") - _us("started_at")) / 1000.0).alias("took")
    times_by = _percentiles(last.filter(pl.col("state") == "done").select("name", took), ["name"], "took", "done")
    ended = {name: (pl.col("state") == name).sum().cast(pl.Int64) for name in ("failed", "cancelled")}
    counts = last.group_by("name").agg(
        pl.len().cast(pl.Int64).alias("flows"),
        pl.col("waits").mean(),
        (~pl.col("state").is_in(["done", "failed", "cancelled"])).sum().cast(pl.Int64).alias("unfinished"),
        **ended,
    )
    return counts.join(times_by, on="name", how="left").with_columns(pl.col("done").fill_null(0)).sort("name")


# -- dead letters ------------------------------------------------------------------------------------------------------


def classify(letters: pl.DataFrame) -> pl.DataFrame:
    """Add to dead letters the ``exception`` that they ended with, and its ``line`` of the traceback."""
    lines = [_line(error) or reason for error, reason in letters.select("error", "reason").iter_rows()]
    names = [_EXCEPTION.match(line) for line in lines]
    exceptions = [line if name is None else name[1] for line, name in zip(lines, names, strict=True)]
    return letters.with_columns(pl.Series("line", lines, pl.String), pl.Series("exception", exceptions, pl.String))


def _line(error: str | None) -> str | None:
    last = (error or "").split(_TRACEBACK)[-1]
    return next((line for line in last.split("\n") if not _INDENTED.match(line)), None)


def kinds(letters: pl.DataFrame, samples: int) -> pl.DataFrame:
    """Count dead letters by exception, topic and group, with first and last time, an example and the latest places."""
    by = ["exception", "topic", "group"]
    place = pl.concat_str("topic", "partition", "offset", separator="/")
    return (
        letters.sort("deadAt", "partition", "offset", descending=[True, False, False])
        .group_by(by, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("letters"),
            pl.col("deadAt").min().alias("first_seen"),
            pl.col("deadAt").max().alias("last_seen"),
            pl.col("attempts").max().alias("most_attempts"),
            pl.col("line").first().alias("example"),
            place.head(samples).alias("samples"),
        )
        .sort("letters", *by, descending=[True, False, False, False])
    )


# -- stories -----------------------------------------------------------------------------------------------------------


def narrow(claims: pl.DataFrame, family: pl.DataFrame) -> pl.DataFrame:
    """Keep the claims that cover a message of the family."""
    numbered = claims.with_row_index("number")
    pairs = numbered.join(family.select(_PLACE), on=["topic", "partition"])
    inside = pairs.filter(pl.col("offset").is_between("lo", "hi")).select("number").unique()
    return numbered.join(inside, on="number", how="semi").drop("number")


def tell(family: pl.DataFrame, ended: pl.DataFrame, attempts: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each message of the family and each of its groups (one row if it has no group)."""
    outcome = ended.select("uid", "group", "state", "client", "claimedAt", "endedAt", "tries")
    return (
        family.join(outcome, on="uid", how="left")
        .join(_threads(family, ended, attempts), on="uid", how="left")
        .with_columns(
            queued_ms=(_us("claimedAt") - _us("timestamp")) / 1000.0,
            took_ms=(_us("endedAt") - _us("claimedAt")) / 1000.0,
        )
        .rename({"uid": "id", "timestamp": "born_at", "claimedAt": "claimed_at", "endedAt": "ended_at"})
    )


def _threads(family: pl.DataFrame, ended: pl.DataFrame, attempts: pl.DataFrame) -> pl.DataFrame:
    """Find the consumer thread that sent each child: ``uid``, ``producer_thread``."""
    columns = [pl.col("uid").alias("parent"), pl.col("client").alias("producer_thread"), "endedAt"]
    runs = pl.concat([ended.select(columns), attempts.select(columns)])
    in_time = pl.col("endedAt").is_null() | (pl.col("endedAt") >= pl.col("timestamp"))
    same_process = pl.col("producer").str.extract(_SENDER) == pl.col("producer_thread").str.extract(_RUNNER)
    pairs = family.join(runs, on="parent").filter(same_process & in_time)
    first = pairs.sort("endedAt", nulls_last=True).unique("uid", keep="first")
    return first.select("uid", "producer_thread")
