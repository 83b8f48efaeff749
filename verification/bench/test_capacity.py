"""The capacity model is reckoned from a result's figures alone."""

import json
from pathlib import Path

import pytest

from bench import capacity
from bench.capacity import Costs
from bench.report import Figure


def rows(**rates: list[float]) -> list[Figure]:
    names = {name.replace("_", "-"): values for name, values in rates.items()}
    return [Figure(name, "what", "messages/s", "raw", values, [1.0]) for name, values in names.items()]


FIGURES = rows(send_20=[9_000, 10_000, 50_000], send_many=[50_000], drain=[100_000], transactional=[2_000])


def test_costs_are_the_inverse_of_median_rates() -> None:
    late = Figure("drain", "what", "p50 ms", "raw", [3.0], [1.0])
    assert Costs.of([*FIGURES, late]) == Costs(100.0, 20.0, 10.0, 500.0)


def test_a_load_takes_the_machines_that_its_costs_need_at_half_of_their_power() -> None:
    costs = Costs.of(FIGURES)
    assert costs.machines(10_000, costs.send, costs.run) == 3  # 1.1 s of work each second, at 0.5 a machine
    assert costs.machines(1_000_000, costs.batch, costs.run) == 60
    assert costs.machines(1, costs.run) == 1


def test_the_table_has_a_line_for_each_load(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"figures": [vars(row) for row in FIGURES]}))
    lines = capacity.table(file).splitlines()
    assert lines[2] == "| `send()`, 20 callers at once | 100.0 | 10,000 |"
    assert "| 10,000 | 3 | 1 | 11 | 1 | 100 |" in lines
    assert "| 1,000,000 | 220 | 60 | 1,040 | 40 | 10,000 |" in lines
    assert lines[-1].startswith("| 1,000,000 | 60 | 3 days | 0 | ")


def test_a_failover_at_half_power_is_over_after_twice_its_stall() -> None:
    found = capacity.simulate_failover(1000.0, 2000.0, 10.0)
    assert found.over_s == pytest.approx(20.0, abs=0.3) and found.late == pytest.approx(20_000, rel=0.02)
    busier = capacity.simulate_failover(1000.0, 1250.0, 10.0)
    assert busier.over_s == pytest.approx(50.0, abs=0.5), "with a fifth to spare it takes five times as long"


def test_a_result_without_a_line_says_which(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="transactional"):
        Costs.of([row for row in FIGURES if row.line != "transactional"])
