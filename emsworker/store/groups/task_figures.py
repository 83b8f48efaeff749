"""Figures of tasks: added up by workers for ten minutes at a time, kept for a day, read for lists."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.flush import storable
from emsworker.core.task_figures import TaskFigures
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
_ERROR_CHARACTERS = 600

Task = tuple[int, str]
"""The id of a group and the name of one of its tasks; a subscription has an empty name."""


@dataclass
class KeptFigures:
    """Figures of a task as they are kept.

    Attributes:
        error_at: the time of its last error.
    """

    figures: TaskFigures
    error_at: datetime | None = None


def add(session: Session, figures: Mapping[Task, TaskFigures]) -> None:
    """Add figures of this moment to those that are kept. If the answer is lost, they may have been added."""

    def attempt() -> None:
        packet = session.packet()
        packet.begin()  # the rows in order, so that processes that add at the same time wait for each other
        packet.insert_many(_SQL.upsert_figures, _SQL.figure_row, _figure_rows(figures), _SQL.upsert_figures_end)
        packet.insert_many(_SQL.upsert_buckets, _SQL.bucket_row, _bucket_rows(figures), _SQL.upsert_buckets_end)
        packet.commit()
        packet.send()

    session.retry_on_conflict(attempt)


def _figure_rows(figures: Mapping[Task, TaskFigures]) -> Iterator[dict[str, Any]]:
    for (group_id, task), one in sorted(figures.items(), key=lambda pair: pair[0]):
        yield {
            "group_id": group_id,
            "task": task,
            "runs": one.runs,
            "failed": one.failed,
            "retried": one.retried,
            "dead": one.dead,
            "cpu_us": one.cpu_us,
            "cpu_runs": one.cpu_runs,
            "error": None if one.error is None else storable(one.error)[:_ERROR_CHARACTERS],
        }


def _bucket_rows(figures: Mapping[Task, TaskFigures]) -> Iterator[dict[str, Any]]:
    for (group_id, task), one in sorted(figures.items(), key=lambda pair: pair[0]):
        for bucket in sorted({*one.waits, *one.spans}):
            counts = {"waits": one.waits[bucket], "runs": one.spans[bucket]}
            yield {"group_id": group_id, "task": task, "bucket": bucket} | counts


def delete_old(session: Session, limit: int) -> int:
    """Delete figures of more than a day ago, at most ``limit`` rows of each kind; return how many."""
    args = {"limit": limit}
    return session.change(_SQL.delete_old_figures, args) + session.change(_SQL.delete_old_buckets, args)


def read(session: Session, group_ids: Collection[int], within_s: float, *, details: bool) -> dict[Task, KeptFigures]:
    """Return the figures of the tasks of some groups in the last seconds; also of tasks that did not run.

    Args:
        details: read the last errors, too.
    """
    if not group_ids:
        return {}
    args = {"group_ids": sorted(group_ids), "within_s": within_s}
    found: dict[Task, KeptFigures] = {}
    for group_id, task in session.rows(_SQL.list_names, args):
        found[group_id, task] = KeptFigures(TaskFigures())
    for group_id, task, runs, failed, retried, dead, cpu_us, cpu_runs, error_at in session.rows(
        _SQL.list_figures, args
    ):
        kept = None if error_at is None else utc(error_at)
        found[group_id, task] = KeptFigures(
            TaskFigures(int(runs), int(failed), int(retried), int(dead), int(cpu_us), int(cpu_runs)), kept
        )
    for group_id, task, bucket, waits, runs in session.rows(_SQL.list_buckets, args):
        if (group_id, task) in found:  # else written since
            found[group_id, task].figures.waits[bucket] = int(waits)
            found[group_id, task].figures.spans[bucket] = int(runs)
    for group_id, task, error in session.rows(_SQL.list_errors, args) if details else ():
        if (group_id, task) in found:
            found[group_id, task].figures.error = error
    return found


def read_headers(
    session: Session, topic_id: int, partition: int, stretches: Sequence[tuple[int, int]]
) -> list[bytes | None]:
    """Return the headers of messages between some offsets; ``None`` for those that are too long."""
    packet = session.packet()
    for lo, hi in stretches:
        packet.add(_SQL.read_headers, {"topic_id": topic_id, "partition": partition, "lo": lo, "hi": hi})
    return [headers for result in packet.send() for (headers,) in result.rows]


def read_lanes(session: Session, topic_id: int, group_id: int, limit: int) -> list[bytes | None]:
    """Return the headers of at most ``limit`` messages in the lanes of a fair group; see :func:`read_headers`."""
    args = {"topic_id": topic_id, "group_id": group_id, "limit": limit}
    return [headers for (headers,) in session.rows(_SQL.read_lanes, args)]


def read_running(session: Session, group_ids: Collection[int], limit: int) -> list[tuple[int, bytes | None]]:
    """Return the group and the headers of at most ``limit`` messages that run now, one for each busy thread."""
    if not group_ids:
        return []
    return [tuple(row) for row in session.rows(_SQL.read_running, {"group_ids": sorted(group_ids), "limit": limit})]
