"""Alarms of groups that do not consume, fall behind or fail, each fired and resolved once.

Rules, state changes and receivers are those of ``ems alarms``; only the state is kept by Spark, in its checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from emsworker.alarms.receivers import deliver
from emsworker.arrow.profile import open_stream
from emsworker.extending.errors import ConfigError, EmsError, Problem
from emsworker.extending.processes import forks
from emsworker.extending.settings import whole
from emsworker.extending.values import LONGEST_S, Rule, parse_duration, parse_share
from emsworker.spark.jobs.alerts.group_alarms import RULES
from emsworker.spark.jobs.job import Job, JobResult, OfGroups, option
from emsworker.spark.jobs.reading import Reading, ReportScope, needs_spark, read_count, read_span

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_GONE_SAMPLES, _GONE_LEAST_S = 5, 30.0
_OURS = re.compile(r"emsworker\.[\w.]+: (.*)")


class AlertsFailed(EmsError):
    """The query ended with an error; a restart continues from its checkpoint."""


@dataclass(frozen=True, kw_only=True)
class AlertOptions(OfGroups):
    """Options of ``ems pipeline alerts``."""

    checkpoint: str = option(help="The folder of what it remembers; a restart continues from there.", metavar="FOLDER")
    events: str | None = option(None, help="Write alerts to this folder, as lines of JSON.", metavar="FOLDER")
    to_topic: str | None = option(None, help="Send alerts to this topic, each once.", metavar="NAME")
    webhook: str | None = option(None, help="POST each alert there, as JSON.", metavar="URL")
    command: str | None = option(
        None, help="Run this for each alert, as JSON on standard input; alarm_commands must name its program."
    )
    consume_timeout: float | None = option(
        None, help="Alert when a message was not finished for so long.", metavar="SPAN", read=read_span
    )
    lag: int | None = option(
        None,
        help="Alert when more messages than that are not finished.",
        metavar="N",
        read=whole(0, 10**18).parse,
    )
    error_rate: float | None = option(
        None, help="Alert when a larger share of the attempts fails.", metavar="SHARE", read=parse_share
    )
    within: float = option(300.0, help="The span that the error rate is of.", metavar="SPAN", read=read_span)
    least: int = option(10, help="No error rate of fewer attempts.", metavar="N", read=read_count)
    lasting: float = option(0.0, help="Alert when a breach has lasted so long.", metavar="SPAN", read=parse_duration)
    every: float = option(10.0, help="How often to measure, at least a second.", metavar="SPAN", read=read_span)
    once: bool = option(False, help="Measure once and end, for cron.")

    def __post_init__(self) -> None:
        problems = []
        if all(getattr(self, name) is None for name in RULES):
            fix = "give at least one of --consume-timeout, --lag and --error-rate"
            problems.append(Problem("rules", "none", fix))
        if not 1 <= self.every <= LONGEST_S:
            fix = "must be 1 s or more: each measurement costs the server some"
            problems.append(Problem("--every", f"{self.every:g}", fix))
        if self.events is None and self.to_topic is None and not self.receivers:
            fix = "say where alerts go: --events FOLDER, --to-topic NAME, --webhook URL or --command COMMAND"
            problems.append(Problem("--events", "not given", fix))
        if problems:
            raise ConfigError(problems)
        _ = self.rules  # checks their values

    @property
    def rules(self) -> list[Rule]:
        """The rules that were asked for."""
        return [
            Rule(
                name,
                metric,
                float(getattr(self, name)),
                self.lasting,
                self.within,
                self.least,
                group=self.group,
                webhook=self.webhook,
                command=self.command,
            )
            for name, metric in RULES.items()
            if getattr(self, name) is not None
        ]

    @property
    def receivers(self) -> dict[str, str]:
        """Addresses by kind of receiver."""
        given = {"webhook": self.webhook, "command": self.command}
        return {target: address for target, address in given.items() if address is not None}


@dataclass
class AlertDelivery:
    """Deliver the notifications of each micro-batch.

    A batch that is run again writes the same file and the same messages; webhook and command get theirs once more.

    Args:
        config: names the receivers.
        told: called with a line for each notification.
    """

    config: AlertOptions
    told: Callable[[str], None]
    counts: dict[str, int] = field(default_factory=lambda: {"firing": 0, "resolved": 0})

    def __post_init__(self) -> None:
        self._app = open_stream(self.config.profile)
        self._lock = forks.Lock()

    def __call__(self, frame: Any, batch: int) -> None:
        """Deliver one micro-batch; called by ``foreachBatch``.

        Raises:
            DeliveryFailed: webhook or command failed; the query ends, and a restart delivers the batch again.
        """
        rows = sorted(frame.collect(), key=lambda row: (row.at, row.uid))
        if not rows:
            return
        if self.config.events is not None:
            _write(Path(self.config.events), batch, [row.body for row in rows])
        for row in rows:
            notification = json.loads(row.body)
            if self.config.to_topic is not None:
                self._app.send(self.config.to_topic, notification, uid=row.uid)
            for target, address in self.config.receivers.items():
                deliver(target, address, row.body, self._app.settings.alarm_commands)
            with self._lock:
                self.counts[row.event] += 1
                self.told(notification["text"])

    def close(self) -> None:
        self._app.close()


def _write(folder: Path, batch: int, lines: Sequence[str]) -> None:
    """Write one file for each micro-batch, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".alerts-{batch:08}.part"
    part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    part.replace(folder / f"alerts-{batch:08}.json")


def start(spark: Any, config: AlertOptions, deliver: Callable[[Any, int], None]) -> Any:
    """Start the query; the caller must stop it.

    Args:
        spark: a session whose settings this may change.
        deliver: called with the notifications of each micro-batch.
    """
    from emsworker.spark.jobs.alerts.stream import NAME, NOTIFICATION, SampleSource, Watcher

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # groups are few
    # Each sample has rows. Without this setting, timers make Spark run empty batches for ever.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    spark.dataSource.register(SampleSource)
    rules = [replace(rule, webhook=None, command=None) for rule in config.rules]  # addresses may hold secrets
    measured = json.dumps([asdict(rule) for rule in rules])
    reader = spark.readStream.format(NAME).option("topics", ",".join(config.topic)).option("rules", measured)
    if config.profile is not None:
        reader = reader.option("profile", config.profile)
    gone_ms = round(max(_GONE_SAMPLES * config.every, _GONE_LEAST_S) * 1000)
    events = (
        reader.load()
        .groupBy("topic", "group")
        .transformWithState(Watcher(rules, gone_ms), NOTIFICATION, "Append", "ProcessingTime")
    )
    writer = events.writeStream.foreachBatch(deliver).option("checkpointLocation", config.checkpoint)
    trigger = (
        {"availableNow": True} if config.once else {"processingTime": f"{round(config.every * 1000)} milliseconds"}
    )
    return writer.trigger(**trigger).start()


def run(spark: Any, config: AlertOptions) -> JobResult:
    """Run ``ems pipeline alerts`` until it is interrupted, or once."""
    summary: dict[str, Any] = {
        "rules": {rule.name: rule.above for rule in config.rules},
        "checkpoint": config.checkpoint,
    }
    if config.dry_run:
        reading = Reading(profile=config.profile, topic=config.topic, group=config.group)
        return JobResult(summary | {"groups": ReportScope(reading).groups()})
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
