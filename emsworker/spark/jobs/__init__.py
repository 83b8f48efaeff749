"""The data pipeline: Spark jobs that process more than one message at a time.

Each job is a module that has a :class:`~emsworker.spark.jobs.job.Job` named ``JOB``: its options and a function
``run(spark, config) -> Result``. Run it with ``ems pipeline NAME``, ``python -m emsworker.spark.jobs NAME``,
``spark-submit``, or from a program that has its own session: ``load("archive").run(spark, options)``. Spark is not
imported until a job runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from emsworker.spark.jobs.job import Job, JobResult, Options, WrongOption

JOBS: dict[str, tuple[str, str]] = {
    "archive": ("archive.archive", "Move what retention may drop to Parquet files, compare, and only then drop it."),
    "compact": ("archive.compact", "Rewrite small files of an archive as few large ones."),
    "restore": (
        "archive.restore",
        "Send archived messages into a topic, in order, with headers naming their origin.",
    ),
    "replay": ("archive.replay", "Have one group run archived messages again, in order."),
    "quality": (
        "reports.quality",
        "Look for gaps, duplicates, orphans and wrong times, and compare an archive with its manifests.",
    ),
    "lag": ("reports.lag", "How far groups were behind over time, their rates, and when they will have caught up."),
    "topics": ("reports.topics", "Topics ranked by messages, bytes and errors per span of time."),
    "latency": ("reports.latency", "Percentiles of how long messages waited and ran."),
    "flows": ("reports.flows", "Flows by function: how they ended, and how long they took, from their events."),
    "trace": ("reports.trace", "One message, everything that it led to, and who ran what."),
    "deadletters": ("reports.deadletters", "Dead letters by exception and topic, and a file to run them again."),
    "alerts": (
        "alerts.alerts",
        "Alert when a group falls behind or fails, once, and when that is over.",
    ),
}
"""Name -> module of this package and short help; ``ems pipeline --help`` shows them without importing a module."""


def load(name: str) -> Job[Any]:
    """Load a job by its name.

    Raises:
        WrongOption: there is no such job.
    """
    if name not in JOBS:
        raise WrongOption("job", name, f"there is no such job; there are {', '.join(JOBS)}")
    job: Job[Any] = import_module(f"{__name__}.{JOBS[name][0]}").JOB
    return job


__all__ = ["JOBS", "Job", "JobResult", "Options", "WrongOption", "load"]
