"""Files for Prometheus and Grafana: a dashboard, rules of alerts, and tests of these rules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PLACE = '{topic=~"$topic",group=~"$group"}'
_TOPIC = '{topic=~"$topic"}'
_RATE = "[$__rate_interval]"
_FAILED = 'outcome=~"failed|rejected|timeout|orphaned"'
_WIDTH, _HEIGHT = 8, 8
_COLUMNS = 24 // _WIDTH


@dataclass(frozen=True)
class Panel:
    """A chart: its title, and its queries with their legends.

    Args:
        unit: as Grafana names it.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"histogram_quantile({share}, sum by (le, task) (rate({metric}_bucket{_PLACE}{_RATE})))",
            f"{{{{task}}}} p{share * 100:g}",
        )
        for share in (0.5, 0.95, 0.99)
    )


def _of_group(*names: str) -> str:
    return " + ".join(f"sum by (topic, group) (ems_group_{name}{_PLACE})" for name in names)


_GROUP, _READER, _TASK = "{{topic}}/{{group}}", "{{topic}}/{{reader}}", "{{task}}"

PANELS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Stream",
        (
            Panel(
                "Oldest unfinished message",
                "s",
                ((f"max by (topic, group) (ems_group_oldest_seconds{_PLACE})", _GROUP),),
                "The number to watch. Messages that wait for a retry count.",
            ),
            Panel("Lag", "short", ((_of_group("unclaimed", "claimed", "waiting", "retries"), _GROUP),)),
            Panel(
                "Oldest message that could start",
                "s",
                ((f"max by (topic, group) (ems_group_startable_seconds{_PLACE})", _GROUP),),
                "If it grows, workers are missing.",
            ),
            Panel("Waiting for a retry", "short", ((_of_group("retries"), _GROUP),)),
            Panel("Dead letters", "short", ((_of_group("dead"), _GROUP),)),
            Panel("Refused rows of ems_publish", "short", (("ems_publish_refused", "refused"),)),
            Panel("Busy workers", "short", ((f"max by (topic, group) (ems_group_busy_workers{_PLACE})", _GROUP),)),
        ),
    ),
    (
        "Readers",
        (
            Panel(
                "Offsets behind the end",
                "short",
                ((f"max by (topic, reader) (ems_reader_max_offsets_behind{_TOPIC})", _READER),),
                "Of streaming queries that hold messages, in the partition with most of them.",
            ),
            Panel(
                "Time until a hold is lost",
                "s",
                ((f"min by (topic, reader) (ems_reader_hold_left_seconds{_TOPIC})", _READER),),
                "At 0 retention goes on without the reader.",
            ),
        ),
    ),
    (
        "Tasks",
        (
            Panel("Runs", "ops", ((f"sum by (outcome) (rate(ems_runs_total{_PLACE}{_RATE}))", "{{outcome}}"),)),
            Panel(
                "Share of runs that fail",
                "percentunit",
                (
                    (
                        f"sum by (task) (rate(ems_runs_total{_PLACE[:-1]},{_FAILED}}}{_RATE}))"
                        f" / sum by (task) (rate(ems_runs_total{_PLACE}{_RATE}) > 0)",
                        _TASK,
                    ),
                ),
            ),
            Panel("Run time", "s", _quantiles("ems_run_seconds")),
            Panel("Wait until the first run", "s", _quantiles("ems_wait_seconds")),
            Panel("Retries", "ops", ((f"sum by (task) (rate(ems_retries_total{_PLACE}{_RATE}))", _TASK),)),
            Panel("Given up", "ops", ((f"sum by (task) (rate(ems_dead_total{_PLACE}{_RATE}))", _TASK),)),
        ),
    ),
    (
        "Workers",
        (
            Panel("Child processes by state", "short", (("sum by (state) (ems_worker_children)", "{{state}}"),)),
            Panel(
                "Child processes started",
                "short",
                ((f"sum by (instance) (increase(ems_worker_starts_total{_RATE}))", "{{instance}}"),),
            ),
            Panel("Beats that lead", "short", (("sum(ems_beat_leading)", "leading"),), "1, always."),
            Panel(
                "Failures of the beat's services",
                "ops",
                ((f"sum by (service) (rate(ems_beat_failures_total{_RATE}))", "{{service}}"),),
            ),
            Panel(
                "Messages sent by tasks",
                "ops",
                ((f'sum by (topic) (rate(ems_sent_total{{topic=~"$topic"}}{_RATE}))', "{{topic}}"),),
            ),
        ),
    ),
)
"""The rows of the dashboard."""


def exported_files() -> dict[str, str]:
    """Return the contents of the files that ``ems monitoring export`` writes, by name."""
    folder = files("emsworker.monitoring") / "exported"
    rules = {name: (folder / name).read_text(encoding="utf-8") for name in ("ems-rules.yml", "ems-rules-test.yml")}
    return {"ems-dashboard.json": json.dumps(dashboard(), indent=2) + "\n", **rules}


def dashboard() -> dict[str, Any]:
    """Return the dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in PANELS:
        panels.append({"type": "row", "title": title, "gridPos": _at(0, y, 24, 1), "collapsed": False, "panels": []})
        for number, panel in enumerate(row):
            x = number % _COLUMNS * _WIDTH
            panels.append(_panel(panel, _at(x, y + 1 + number // _COLUMNS * _HEIGHT, _WIDTH, _HEIGHT)))
        y += 1 + -(-len(row) // _COLUMNS) * _HEIGHT
    for number, one in enumerate(panels, 1):
        one["id"] = number
    return {
        "uid": "ems",
        "title": "EMS",
        "tags": ["ems"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(name) for name in ("topic", "group"))]},
        "panels": panels,
    }


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query, "legendFormat": legend, "range": True}
        for number, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    narrowed = '{topic=~"$topic"}' if name == "group" else ""
    query = f"label_values(ems_group_unclaimed{narrowed}, {name})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
