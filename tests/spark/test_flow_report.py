"""The report of flows by both engines."""

from __future__ import annotations

from typing import Any

import polars  # noqa: F401 - its import changes the environment, which no test may

from emsworker.spark.jobs import load
from emsworker.spark.jobs.report import plain
from tests.support.flow_events import EXPECTED, send_events
from tests.support.streams import Stream


def test_both_engines_count_flows(stream: Stream, profile: None, spark_session: Any) -> None:
    send_events(stream)
    job, summaries = load("flows"), []
    for spark in (spark_session, None):
        result = job.run(spark, job.options(profile="test"))
        assert result.report is not None
        (table,) = result.report.tables
        assert table.records() == EXPECTED, spark
        summaries.append(plain(result.summary))
    assert summaries[0] == summaries[1]
