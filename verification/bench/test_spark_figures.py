"""The table of ``./dev bench-spark``: ratios are those of the rounds, and what is asked is told with whether it is met."""

import json
from pathlib import Path

from bench.spark.figure import Figure, as_json, load, table

READ = Figure("read", "ours", "rows/s", [60.0, 700.0, 80.0], "raw PyMySQL", [100.0, 1000.0, 100.0], least=0.6)
SLOW = Figure("read", "ours", "rows/s", [50.0, 55.0], "raw PyMySQL", [100.0, 100.0], least=0.6)
FRESH = Figure("fresh", "insert to batch", "ms", [400.0, 500.0, 1200.0], most=1000.0, note="the slowest: 1,200 ms")
PLAIN = Figure("beside", "oldest transaction", "ms", [3.0], "2.0 without a reader")


def test_a_figure_is_met_by_its_ratio_or_its_value() -> None:
    assert (READ.value, READ.ratio, READ.met) == (80.0, 0.7, True), "the median of ratios, not the ratio of medians"
    assert (SLOW.ratio, SLOW.met) == (0.525, False)
    assert (FRESH.ratio, FRESH.met) == (None, True)
    assert Figure("fresh", "x", "ms", [1001.0], most=1000.0).met is False
    assert (PLAIN.met, PLAIN.asked) == (None, "")


def test_the_table_tells_what_is_asked_and_whether_it_is_met() -> None:
    assert table([READ, SLOW, FRESH, PLAIN]).splitlines()[2:] == [
        "| ours | 80/s | 100/s, raw PyMySQL | 70% | at least 60% | yes |",
        "| ours | 52/s | 100/s, raw PyMySQL | 52% | at least 60% | **no** |",
        "| insert to batch (the slowest: 1,200 ms) | 500.0 ms |  |  | at most 1,000.0 ms | yes |",
        "| oldest transaction | 3.0 ms | 2.0 without a reader |  |  |  |",
    ]


def test_figures_come_back_from_json(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps({"spark": as_json([READ, FRESH])}))
    assert load(tmp_path / "one.json") == [READ, FRESH]
