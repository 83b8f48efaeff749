"""The table of ``./dev chaos``, and what is repeated for as long as it is to last."""

from itertools import islice

import pytest

from verification.chaos import table
from verification.chaos.running import Row, repeated
from verification.chaos.scenarios import CLUSTERS


def _row(scenario: str, server: str, note: str = "", lost: int = 0) -> Row:
    return Row(scenario, server, "mysql", 10, 40, lost, 0, 1, 0, 0, None, None, 5.0, note=note)


@pytest.mark.parametrize("server", ["mariadb", *CLUSTERS])
def test_each_column_begins_or_ends_with_its_title(server: str) -> None:
    header, line = table.header(), table.line(_row("former member alone", server))
    for title, cell in (("server", server), ("offsets", "mysql")):
        assert line.index(f" {cell} ") == header.index(f" {title} ")
    for title, cell in (("sent", "10"), ("run", "40")):
        assert line.index(f" {cell} ") + len(cell) == header.index(f" {title} ") + len(title)


def test_scenarios_are_repeated_until_the_time_is_over_and_each_runs_once_at_least() -> None:
    scenarios = CLUSTERS["galera"]
    assert list(repeated(scenarios, 0)) == scenarios
    many = [one.name for one in islice(repeated(scenarios, 3600), 2 * len(scenarios) + 1)]
    assert many == [*[one.name for one in scenarios] * 2, scenarios[0].name]


def test_the_page_has_one_line_for_each_scenario_of_a_cluster() -> None:
    rows = [_row("primary killed", "galera", "6 s + 1 s"), _row("primary killed", "galera", "7 s + 0 s", lost=2)]
    rows.append(_row("all is done", "galera", "0.1 s to the end"))
    told = {"seed": 3, "took_s": 600, "rows": [row.to_json() for row in rows]}
    lines = table.cluster_markdown("galera", told).splitlines()
    assert lines[0].startswith("`--engine galera --seed 3`, 10 minutes")
    assert lines[-2:] == [
        "| primary killed | 2 | 20 | 80 | 2 | 0 | 2 | 0 | 0 | 6 s + 1 s; 7 s + 0 s |",
        "| all is done | 1 | 10 | 40 | 0 | 0 | 1 | 0 | 0 | 0.1 s to the end |",
    ]
