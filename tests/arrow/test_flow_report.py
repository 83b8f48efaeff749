"""The report of flows without Spark, from events as the extension of flows sends them."""

from __future__ import annotations

import json

import pytest

from tests.arrow.test_reports import ems
from tests.support.flow_events import EXPECTED, send_events
from tests.support.streams import Stream

pytest.importorskip("polars")


def test_flows_are_counted_by_function_and_the_end_of_each(stream: Stream) -> None:
    send_events(stream)
    done = ems("flows", "--format", "json", url=stream.url)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["tables"]["flows"] == EXPECTED
    assert {name: found[name] for name in ("functions", "flows", "done", "failed", "unfinished")} == {
        "functions": 2,
        "flows": 6,
        "done": 3,
        "failed": 1,
        "unfinished": 1,
    }
    shown = ems("flows", url=stream.url)
    assert shown.code == 0 and "checkout" in shown.out


def test_without_the_topic_the_report_says_so(stream: Stream) -> None:
    done = ems("flows", url=stream.url)
    assert done.code == 1
    assert done.errors == ["Error: there is no topic 'ems.flow-events'; `ems topics list` shows those that exist"]
    stream.topic("ems.flow-events")
    empty = ems("flows", "--json", url=stream.url)
    assert (empty.code, json.loads(empty.out)["functions"]) == (0, 0), empty.err
