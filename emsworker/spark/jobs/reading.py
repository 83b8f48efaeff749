"""Input of the reports: options for topics, group and time, and what they choose of a stream."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from emsworker.arrow import planning
from emsworker.arrow.columns import parse_columns
from emsworker.arrow.options import read_options
from emsworker.arrow.profile import call, closing_session, open_stream
from emsworker.extending.administration import Admin, GroupLag, Monitoring
from emsworker.extending.errors import UnknownGroup
from emsworker.extending.settings import whole
from emsworker.extending.values import Filter, parse_duration
from emsworker.spark.jobs.job import OfGroups, Options, WrongOption, option


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


def read_moment(text: str) -> datetime:
    """Parse a time, or a duration such as ``10m``: so long ago, by the clock of this machine.

    Raises:
        ValueError: neither of them.
    """
    try:
        return read_time(text)
    except ValueError as error:
        with suppress(ValueError, OverflowError):
            return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
        raise ValueError(f"{error}, or a duration like 10m: so long ago") from None


def read_span(text: str) -> float:
    """Parse a duration above zero; return seconds.

    Raises:
        ValueError: not a duration, or not above zero.
    """
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be longer than 0 s")
    return seconds


read_count = whole(1, 1_000_000).parse
read_partition = whole(0, 65535).parse

CURSORS = parse_columns("group string, topic string, partition int, cursor bigint")
"""Columns of the cursors of groups."""


@dataclass(frozen=True, kw_only=True)
class Reading(OfGroups):
    """Options of every report."""

    since: datetime | None = option(
        None, help="Only messages born at this time (UTC) or later; 10m: since then.", metavar="TIME", read=read_moment
    )
    until: datetime | None = option(
        None, help="Only messages born before this time (UTC), or so long ago.", metavar="TIME", read=read_moment
    )

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise WrongOption("--until", self.until.isoformat(), f"must be later than --since {self.since.isoformat()}")
        if wrong := next((name for name in self.topic if not name or "," in name), None):
            raise WrongOption("--topic", repr(wrong), "names one topic; give the option once for each")


class ReportScope:
    """The part of a stream that a report is about.

    Args:
        config: the options that choose it.

    Raises:
        UnknownTopic: a given topic does not exist.
    """

    def __init__(self, config: Reading) -> None:
        self.config = config
        with closing_session(open_stream(config.profile).stream.database) as database:
            for name in config.topic:
                Admin(database).topic(name)

    def message_options(self, *, all_times: bool = False) -> dict[str, str]:
        """Return the options of ``format("ems")`` that read the messages.

        Args:
            all_times: include messages from before ``since``.
        """
        options = self._options() | {"failOnDataLoss": "false"}
        if self.config.since is not None and not all_times:
            options |= {"startingTimestamp": _ms(self.config.since), "startingOffsetsByTimestampStrategy": "latest"}
        if self.config.until is not None:
            options["endingTimestamp"] = _ms(self.config.until)
        return options

    def log_options(self, dataset: str) -> dict[str, str]:
        """Return the options that read claims, attempts, retries or dead letters of all times: they are few."""
        group = {} if self.config.group is None else {"group": self.config.group}
        return self._options() | {"dataset": dataset} | group

    def _options(self) -> dict[str, str]:
        topics = {"subscribe": ",".join(self.config.topic)} if self.config.topic else {"subscribePattern": ".*"}
        return topics if self.config.profile is None else topics | {"profile": self.config.profile}

    def lags(self) -> list[GroupLag]:
        """Return the present lag of each chosen group.

        Raises:
            UnknownGroup: the given group does not exist.
        """
        config = self.config
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

    def cursors(self) -> list[tuple[str, str, int, int]]:
        """Return each group's cursor in each partition, as in :data:`CURSORS`."""
        return [
            (lag.group.name, lag.topic.name, part.partition, part.cursor)
            for lag in self.lags()
            for part in lag.partitions
        ]


def _ms(time: datetime) -> str:
    return str(int(time.timestamp() * 1000))


def needs_spark(config: Options) -> bool:
    """Return False for a dry run, which reads the groups only."""
    return not config.dry_run


def count_messages(config: Reading) -> int:
    """Count the offsets that a report on messages reads."""
    options = read_options(ReportScope(config).message_options(), streaming=False)
    slices = call(config.profile, lambda session: planning.plan(session, options))
    return sum(len(one.offsets) for one in slices)
