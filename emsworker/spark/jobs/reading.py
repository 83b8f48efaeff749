"""Input of the reports: options for topics, group and time, and the datasets of ``format("ems")`` within them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from emsworker.admin import Admin
from emsworker.admin.monitoring import GroupLag, Monitoring
from emsworker.arrow.profile import closing_session, open_stream
from emsworker.core.durations import parse_duration
from emsworker.core.errors import UnknownGroup
from emsworker.core.selection.filters import Filter
from emsworker.spark.jobs.job import OfGroups, Options, WrongOption, option
from emsworker.spark.jobs.session import prepared


def read_time(text: str) -> datetime:
    """Parse a time such as ``2026-11-21T08:00`` (UTC unless it names a zone).

    Raises:
        ValueError: not a time, or outside the years 1 to 9999 in UTC.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a time like 2026-11-21T08:00 or 2026-11-21T08:00:00+02:00") from None
    try:
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except OverflowError:  # within the years 1 to 9999 in its zone, but not in UTC
        raise ValueError("must lie within the years 1 to 9999, in UTC") from None


def read_span(text: str) -> float:
    """Parse a duration above zero; return seconds.

    Raises:
        ValueError: not a duration, or not above zero.
    """
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be longer than 0 s")
    return seconds


def read_count(text: str) -> int:
    """Parse a whole number from 1 to 1,000,000.

    Raises:
        ValueError: not such a number.
    """
    return read_whole(1, 1_000_000)(text)


def read_whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``least`` to ``most``."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,20}", text) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return read


read_partition = read_whole(0, 65535)


@dataclass(frozen=True, kw_only=True)
class Reading(OfGroups):
    """Options of every report."""

    since: datetime | None = option(
        None, help="Only messages born at this time (UTC) or later.", metavar="TIME", read=read_time
    )
    until: datetime | None = option(
        None, help="Only messages born before this time (UTC).", metavar="TIME", read=read_time
    )

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise WrongOption("--until", self.until.isoformat(), f"must be later than --since {self.since.isoformat()}")
        if wrong := next((name for name in self.topic if not name or "," in name), None):
            raise WrongOption("--topic", repr(wrong), "names one topic; give the option once for each")

    def between(self, frame: Any, time: str) -> Any:
        """Filter a data frame by the time in one of its columns."""
        if self.since is not None:
            frame = frame.where(frame[time] >= self.since)
        return frame if self.until is None else frame.where(frame[time] < self.until)


class Datasets:
    """The datasets of a stream as data frames.

    Args:
        spark: any session; its settings are not changed. With ``None`` only the groups can be read.
        config: selects the part of the stream.

    Raises:
        UnknownTopic: a given topic does not exist.
    """

    def __init__(self, spark: Any, config: Reading) -> None:
        self._spark: Any = None if spark is None else prepared(spark)
        self._config = config
        with closing_session(open_stream(config.profile).stream.database) as database:
            for name in config.topic:
                Admin(database).topic(name)

    def messages(self, columns: str, *, all_times: bool = False) -> Any:
        """Read columns of the messages, given by their names with blanks between them; no others are read.

        Args:
            all_times: include messages from before ``since``.
        """
        options = {"failOnDataLoss": "false"}
        config = replace(self._config, since=None) if all_times else self._config
        if config.since is not None:
            options |= {"startingTimestamp": _ms(config.since), "startingOffsetsByTimestampStrategy": "latest"}
        if config.until is not None:
            options["endingTimestamp"] = _ms(config.until)
        frame = self._load("messages", columns, options)
        # Offsets are only nearly in order of time: times are the server's, but two commits may overtake each other.
        return config.between(frame, "timestamp") if "timestamp" in columns.split() else frame

    def log(self, dataset: str, columns: str) -> Any:
        """Read columns of claims, attempts, retries or dead letters of all times: they are few."""
        options = {} if self._config.group is None else {"group": self._config.group}
        return self._load(dataset, columns, options)

    def _load(self, dataset: str, columns: str, options: dict[str, str]) -> Any:
        from emsworker.spark.columns import ddl

        reader = self._spark.read.format("ems").schema(ddl(dataset, columns)).option("dataset", dataset)
        if self._config.profile is not None:
            reader = reader.option("profile", self._config.profile)
        if self._config.topic:
            return reader.option("subscribe", ",".join(self._config.topic)).options(**options).load()
        return reader.option("subscribePattern", ".*").options(**options).load()

    def lags(self) -> list[GroupLag]:
        """Return the present lag of each chosen group.

        Raises:
            UnknownGroup: the given group does not exist.
        """
        config = self._config
        with closing_session(open_stream(config.profile).stream.database) as database:
            found = [
                lag
                for lag in Monitoring(database).lag()
                if config.group in (None, lag.group.name) and (not config.topic or lag.topic.name in config.topic)
            ]
        if config.group is not None and not found:
            where = ", ".join(config.topic) or "any topic"
            raise UnknownGroup(f"there is no group {config.group!r} of {where}; `ems groups list` shows what there is")
        return found

    def groups(self) -> list[str]:
        """List the groups of the report as ``topic/group``."""
        return [f"{lag.topic.name}/{lag.group.name}" for lag in self.lags()]

    def filters(self) -> dict[tuple[str, str], Filter]:
        """Return the filters of the groups that have one, by topic and group."""
        return {(lag.topic.name, lag.group.name): lag.group.filter for lag in self.lags() if lag.group.filter}

    def cursors(self) -> Any:
        """Return each group's cursor in each partition: ``group``, ``topic``, ``partition``, ``cursor``."""
        rows = [
            (lag.group.name, lag.topic.name, part.partition, part.cursor)
            for lag in self.lags()
            for part in lag.partitions
        ]
        return self._spark.createDataFrame(rows, "`group` string, topic string, partition int, cursor bigint")


def _ms(time: datetime) -> str:
    return str(int(time.timestamp() * 1000))


def needs_spark(config: Options) -> bool:
    """Return False for a dry run, which reads the groups only."""
    return not config.dry_run
