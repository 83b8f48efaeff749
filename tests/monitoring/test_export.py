"""What ``ems monitoring export`` writes: valid files, about metrics that there are."""

import json
import re

import yaml
from prometheus_client import CollectorRegistry

from emsworker.monitoring.export import PANELS, exported_files
from emsworker.monitoring.metrics import StreamMetrics
from emsworker.observe.metrics import BeatCounts, Metrics, _Beat, _Children

_METRIC = re.compile(r"\bems_[a-z_]+")


def _known() -> set[str]:
    """The names of all series."""
    registry = CollectorRegistry()
    Metrics(registry)
    stream = StreamMetrics.__new__(StreamMetrics)
    own = [*_Children({}, 0).collect(), *_Beat(BeatCounts(True, 0.0, {}, {})).collect()]
    families = [*registry.collect(), *stream.describe(), *own]
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
    return {family.name + suffix for family in families for suffix in suffixes[family.type]}


def test_the_files_are_valid_and_name_metrics_that_there_are() -> None:
    files = exported_files()
    board, rules = json.loads(files["ems-dashboard.json"]), yaml.safe_load(files["ems-rules.yml"])
    tests = yaml.safe_load(files["ems-rules-test.yml"])
    expressions = [query for _, row in PANELS for panel in row for query, _ in panel.queries]
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    known = _known()
    for expression in expressions:
        names = set(_METRIC.findall(expression))
        assert names <= known, expression
    shown = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(shown) == sum(len(row) for _, row in PANELS)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(places) == len(board["panels"]), "no panel covers another"
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    tested = {one["alertname"] for test in tests["tests"] for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert alerts == tested, "each is tested to fire"
