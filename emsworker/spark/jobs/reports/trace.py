"""Trace of a story: a message, all messages that it led to, and the clients that ran them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emsworker.arrow.profile import closing_session, open_stream
from emsworker.extending.administration import Monitoring
from emsworker.extending.apps import CORRELATION
from emsworker.extending.errors import InvalidName, UnknownMessage
from emsworker.extending.values import parse_uid, uid_text
from emsworker.spark.jobs.job import Job, JobResult, option
from emsworker.spark.jobs.reading import Reading, ReportScope, count_messages, needs_spark
from emsworker.spark.jobs.report import JobReport, Table
from emsworker.spark.jobs.reports import open_engine
from emsworker.spark.jobs.reports.engine import ATTEMPTS, STORY, Story

_SHOWN = {"depth": "int"} | STORY


@dataclass(frozen=True, kw_only=True)
class TraceOptions(Reading):
    """Options of ``ems pipeline trace``."""

    id: str = option(help="The id of any message of the story, or the value of its correlation header.")
    header: str = option(CORRELATION, help="The header that all messages of a story share.")


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
    """Run ``ems pipeline trace``; without a session in this process."""
    scope = ReportScope(config)
    value = _correlation(config)
    summary = {config.header: value}
    if config.dry_run:
        return JobResult(summary | {"groups": scope.groups()})
    story = open_engine(spark, scope).story(value, config.header)
    if story is None:
        return JobResult(summary | {"messages": 0}, failure=f"no message has {config.header} = {value!r}")
    return _report(story, summary, value)


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


def _report(story: Story, summary: dict[str, Any], value: str) -> JobResult:
    told = Table.of("messages", "", STORY, story.messages)
    rows = in_order(told.records())
    attempts = Table.of("attempts", "Attempts that were written down", ATTEMPTS, story.attempts)
    shown = [tuple(row[name] for name in _SHOWN) for row in rows]
    messages = Table("messages", "Messages, each before what it led to", tuple(_SHOWN), shown, _SHOWN)
    summary |= {
        "messages": len({row["id"] for row in rows}),
        "topics": sorted({row["topic"] for row in rows}),
        "depth": max(row["depth"] for row in rows),
        "attempts": len(attempts.rows),
        "unfinished": sum(row["state"] in ("unclaimed", "waiting", "claimed", "retry") for row in rows),
        "dead": sum(row["state"] == "dead" for row in rows),
    }
    return JobResult(summary, JobReport(f"Trace of {value}", [messages, attempts]))


JOB = Job("trace", TraceOptions, run, needs_spark, count_messages)
