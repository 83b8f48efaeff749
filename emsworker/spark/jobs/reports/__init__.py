"""Reports on groups, topics and messages."""

from __future__ import annotations

from typing import Any

from emsworker.extending.declaration import require
from emsworker.spark.jobs.reading import ReportScope
from emsworker.spark.jobs.reports.engine import ReportEngine


def open_engine(spark: Any, scope: ReportScope) -> ReportEngine:
    """Return the engine for a session of Spark, or without one that of this process.

    Raises:
        ExtraMissing: Polars is not installed, and there is no session.
    """
    if spark is not None:
        from emsworker.spark.jobs.reports.by_spark import SparkEngine

        return SparkEngine(spark, scope)
    require("polars", "a report without Spark")
    from emsworker.spark.jobs.reports.by_polars import PolarsEngine

    return PolarsEngine(scope)
