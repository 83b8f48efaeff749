"""The two engines of the reports: what each computes, and the columns of the rows that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from emsworker.arrow.columns import parse_columns

Row = tuple[Any, ...]
RANKED = ("messages", "bytes", "errors")
SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
"""Percentiles by their names; each is the smallest value that at least this share of the values does not exceed."""
BY = parse_columns("topic string, group string, task string, hour timestamp")
"""What times can be grouped by: ``task`` is NULL if the message does not call one, ``hour`` is that of birth."""
FIGURES = ("p50_ms", "p95_ms", "p99_ms", "max_ms")

LAG = parse_columns("topic string, group string, at timestamp, born bigint, ended bigint, lag bigint")
TOPICS = parse_columns(
    "window timestamp, topic string, messages bigint, bytes bigint, errors bigint, dead bigint, by_messages int, "
    "by_bytes int, by_errors int"
)
DEAD = parse_columns(
    "exception string, topic string, group string, letters bigint, first_seen timestamp, last_seen timestamp, "
    "most_attempts int, example string, samples array<string>"
)
STORY = parse_columns(
    "topic string, partition int, offset bigint, id string, parent string, task string, born_at timestamp, "
    "producer string, producer_thread string, group string, state string, client string, claimed_at timestamp, "
    "ended_at timestamp, queued_ms double, took_ms double, tries int"
)
ATTEMPTS = parse_columns(
    "id string, group string, attempt int, outcome string, ended_at timestamp, ran_ms bigint, client string, "
    "error string"
)
FLOWS = parse_columns(
    "name string, flows bigint, done bigint, failed bigint, cancelled bigint, unfinished bigint, waits double, "
    "took_p50_ms double, took_p95_ms double, took_p99_ms double, took_max_ms double"
)
EVENT = parse_columns("flow string, name string, state string, started_at timestamp, at timestamp")
"""The fields of an event of a flow that the report reads."""


def latency_columns(by: tuple[str, ...]) -> dict[str, str]:
    """Return the columns of :meth:`ReportEngine.latency`."""
    columns = {name: BY[name] for name in by}
    for prefix, count in (("queued", "messages"), ("ran", "runs")):
        columns[count] = "bigint"
        columns |= {f"{prefix}_{name}": "double" for name in FIGURES}
    return columns


@dataclass(frozen=True)
class Story:
    """A message and all that it led to.

    Attributes:
        messages: rows of :data:`STORY`: one for each message and group, or one for a message without a group.
        attempts: rows of :data:`ATTEMPTS`, in the order in which they ended.
    """

    messages: list[Row]
    attempts: list[Row]


class ReportEngine(Protocol):
    """Engine that computes the reports of a :class:`~emsworker.spark.jobs.reading.ReportScope`.

    Both engines return the same values. Rows are in the order of the
    table that they are for; what follows from a row alone (rates, rounding) is left to the report.
    """

    name: str

    def lag(self, every_s: float, check: Callable[[float], None]) -> list[Row]:
        """Count births and ends of each span, and the lag at its end; rows of :data:`LAG`.

        Lag is defined as in ``ems groups list``: messages that are born and not ended (done or dead). Messages that a
        group skipped do not count. There is a row for every span from a group's first message to its last event.

        Args:
            check: called with the seconds that the stream covers, before anything else is computed.
        """

    def topics(self, window_s: float, by: str, top: int) -> list[Row]:
        """Rank the topics in each window with any event; rows of :data:`TOPICS`.

        A message counts at its birth, an error at the end of the attempt, a dead letter at its death.

        Args:
            by: one of :data:`RANKED`.
            top: the last rank to return.
        """

    def latency(self, by: tuple[str, ...]) -> list[Row]:
        """Aggregate queueing and run times, in milliseconds; rows of :func:`latency_columns`.

        A message is queued from its birth until a client first took it. The run time of a recorded attempt is what the
        worker measured. For all others it is the time of their claim divided by the messages that it finished: exact
        for slow tasks, which are claimed one by one, a mean for quick ones.
        """

    def flows(self) -> list[Row]:
        """Count flows by function and by the state of their latest event; rows of :data:`FLOWS`.

        ``waits`` is the mean number of times that a flow has waited. Times are those of flows that are done, from the
        start to the end.
        """

    def dead_letters(self, exception: str | None, samples: int) -> list[Row]:
        """Count dead letters by the exception that they ended with; rows of :data:`DEAD`.

        Python writes the exception below the frames, which are indented; the last traceback has the exception raised
        last. An error without an exception (for example, a worker died) is its own name.

        Args:
            exception: only those of this one.
            samples: places of each row, the latest first.
        """

    def dead_places(self, exception: str | None) -> Iterator[tuple[str, int, int]]:
        """Iterate over the places of dead letters, in the order of the stream."""

    def story(self, value: str, header: str) -> Story | None:
        """Tell the story whose messages have ``value`` as their id or in this header; ``None`` if there is none.

        A child was sent by the thread that ran its parent in the process that sent it, in the run that was the first to
        end after the child's birth.
        """
