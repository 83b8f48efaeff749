"""Alerts on messages that are not consumed and on groups that fall behind or fail, each fired and resolved once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emsworker.core.durations import LONGEST_S, parse_duration
from emsworker.core.errors import ConfigError, EmsError, Problem
from emsworker.core.process import forks
from emsworker.spark.jobs.alerts.watching import CONSUME_TIMEOUT, ERROR_RATE, LAG, AlertLimits
from emsworker.spark.jobs.job import Job, JobResult, Options, option
from emsworker.spark.jobs.reading import Datasets, Reading, needs_spark, read_count, read_span, read_whole
from emsworker.spark.profile import open_stream

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_GONE_LOOKS, _GONE_LEAST_S = 5, 30.0
_OURS = re.compile(r"emsworker\.[\w.]+: (.*)")


class AlertsFailed(EmsError):
    """The query ended with an error; a restart continues from its checkpoint."""


def read_share(text: str) -> float:
    """Parse a share, ``0.05`` or ``5%``.

    Raises:
        ValueError: not a share from 0 to below 1.
    """
    match = re.fullmatch(r"(\d+|\d*\.\d+)(%?)", text)
    number = float(match[1]) / (100 if match[2] else 1) if match else 1.0
    if number >= 1:
        raise ValueError("must be a share from 0 to below 1, like 0.05 or 5%")
    return number


@dataclass(frozen=True, kw_only=True)
class AlertOptions(Options):
    """Options of ``ems pipeline alerts``."""

    checkpoint: str = option(help="The folder of what it remembers; a restart continues from there.", metavar="FOLDER")
    events: str | None = option(None, help="Write alerts to this folder, as lines of JSON.", metavar="FOLDER")
    to_topic: str | None = option(None, help="Send alerts to this topic, each once.", metavar="NAME")
    consume_timeout: float | None = option(
        None, help="Alert when a message was not finished for so long.", metavar="SPAN", read=read_span
    )
    lag: int | None = option(
        None,
        help="Alert when more messages than that are not finished.",
        metavar="N",
        read=read_whole(0, (1 << 63) - 1),
    )
    error_rate: float | None = option(
        None, help="Alert when a larger share of the attempts fails.", metavar="SHARE", read=read_share
    )
    within: float = option(300.0, help="The span that the error rate is of.", metavar="SPAN", read=read_span)
    least: int = option(10, help="No error rate of fewer attempts.", metavar="N", read=read_count)
    lasting: float = option(
        0.0, help="A breach is told when it has lasted so long.", metavar="SPAN", read=parse_duration
    )
    every: float = option(10.0, help="How often to look, at least a second.", metavar="SPAN", read=read_span)
    once: bool = option(False, help="Look once and end, for cron.")
    topic: tuple[str, ...] = option((), help="Only this topic; may be given several times.", metavar="NAME")
    group: str | None = option(None, help="Only this group.", metavar="NAME")

    def __post_init__(self) -> None:
        problems = []
        if not self.rules:
            fix = "give at least one of --consume-timeout, --lag and --error-rate"
            problems.append(Problem("rules", "none", fix))
        if self.lag is not None and self.lag < 0:
            problems.append(Problem("--lag", str(self.lag), "must be 0 or more"))
        if not 1 <= self.every <= LONGEST_S:
            problems.append(
                Problem("--every", f"{self.every:g}", "must be 1 s or more: each look costs the server some")
            )
        if self.events is None and self.to_topic is None:
            problems.append(Problem("--events", "not given", "say where alerts go: --events FOLDER or --to-topic NAME"))
        if problems:
            raise ConfigError(problems)

    @property
    def rules(self) -> dict[str, float]:
        """The limits that were given, by rule."""
        given = {CONSUME_TIMEOUT: self.consume_timeout, LAG: self.lag, ERROR_RATE: self.error_rate}
        return {name: float(limit) for name, limit in given.items() if limit is not None}

    @property
    def limits(self) -> AlertLimits:
        """The rules with their spans, as :mod:`emsworker.spark.jobs.alerts.watching` takes them."""
        return AlertLimits(self.rules, self.lasting, self.within, self.least)


@dataclass
class AlertDelivery:
    """Deliver the events of each micro-batch. A batch that is run again writes the same file and the same messages.

    Args:
        config: names the folder and the topic.
        told: called with a line for each event.
    """

    config: AlertOptions
    told: Callable[[str], None]
    counts: dict[str, int] = field(default_factory=lambda: {"firing": 0, "resolved": 0})

    def __post_init__(self) -> None:
        self._app = open_stream(self.config.profile) if self.config.to_topic is not None else None
        self._lock = forks.Lock()

    def __call__(self, frame: Any, batch: int) -> None:
        """Deliver one micro-batch; called by ``foreachBatch``."""
        events = [_plain(row.asDict()) for row in sorted(frame.collect(), key=lambda row: (row.at, row.id))]
        if not events:
            return
        if self.config.events is not None:
            _write(Path(self.config.events), batch, events)
        if self._app is not None:
            assert self.config.to_topic is not None
            for event in events:
                self._app.send(self.config.to_topic, event, uid=event["id"])
        with self._lock:
            for event in events:
                self.counts[event["state"]] += 1
                self.told(f"{event['state']} {event['rule']} {event['topic']}/{event['group']}: {event['value']}")

    def close(self) -> None:
        """Close the connection."""
        if self._app is not None:
            self._app.close()


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    times = {name: datetime.fromtimestamp(event[name] / 1_000_000, UTC).isoformat() for name in ("since", "at")}
    return event | times


def _write(folder: Path, batch: int, events: Sequence[dict[str, Any]]) -> None:
    """Write one file for each micro-batch, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".alerts-{batch:08}.part"
    part.write_text("".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events), encoding="utf-8")
    part.replace(folder / f"alerts-{batch:08}.json")


def start(spark: Any, config: AlertOptions, deliver: Callable[[Any, int], None]) -> Any:
    """Start the query; the caller must stop it.

    Args:
        spark: a session whose settings this may change.
        deliver: called with the events of each micro-batch.
    """
    from emsworker.spark.jobs.alerts.looks import NAME, LookSource
    from emsworker.spark.jobs.alerts.watcher import EVENT, Watcher

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # groups are few
    # Each look has rows. Without this setting, timers make Spark run empty batches for ever.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    spark.dataSource.register(LookSource)
    reader = spark.readStream.format(NAME).option("topics", ",".join(config.topic))
    for name in ("profile", "group"):
        if (value := getattr(config, name)) is not None:
            reader = reader.option(name, value)
    gone_ms = round(max(_GONE_LOOKS * config.every, _GONE_LEAST_S) * 1000)
    events = (
        reader.load()
        .groupBy("topic", "group")
        .transformWithState(Watcher(config.limits, gone_ms), EVENT, "Append", "ProcessingTime")
    )
    writer = events.writeStream.foreachBatch(deliver).option("checkpointLocation", config.checkpoint)
    trigger = (
        {"availableNow": True} if config.once else {"processingTime": f"{round(config.every * 1000)} milliseconds"}
    )
    return writer.trigger(**trigger).start()


def run(spark: Any, config: AlertOptions) -> JobResult:
    """Run ``ems pipeline alerts`` until it is interrupted, or once."""
    summary: dict[str, Any] = {"rules": config.rules, "checkpoint": config.checkpoint}
    if config.dry_run:
        reading = Reading(profile=config.profile, topic=config.topic, group=config.group)
        return JobResult(summary | {"groups": Datasets(None, reading).groups()})
    from pyspark.errors import StreamingQueryException

    delivery = AlertDelivery(config, config.progress)
    try:
        query = start(spark.newSession(), config, delivery)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            found = _OURS.findall(str(error)) or [str(error).strip().splitlines()[0]]
            raise AlertsFailed(f"{found[-1]}; started again, it goes on from its checkpoint") from error
        except KeyboardInterrupt:
            config.progress("interrupted; a restart goes on from the checkpoint")
        finally:
            query.stop()
    finally:
        delivery.close()
    return JobResult(summary | delivery.counts)


JOB = Job("alerts", AlertOptions, run, needs_spark)
