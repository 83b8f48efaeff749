"""The benchmark of flows measures what it says, and its tables say what was measured."""

from pathlib import Path

import pytest

from bench.flows import sleeping
from bench.flows.costs import LOCK_WAITS, LOG, ROWS
from bench.flows.lines import FIRST, LINES, Line
from bench.flows.rates import Found, _a_step, rate_table, tables
from bench.flows.sides import EMS, Asked, NotInTime
from bench.peers.arena import Arena
from bench.stage import QUICK, Servers, Stage


def test_a_table_says_which_side_had_not_ended() -> None:
    found = Found({"EMS": [900.0, 1100.0], "DBOS": [100.0]}, late={"Celery, Redis": 180.0})
    assert rate_table({"a join": found}).splitlines()[2] == (
        "| a join | 1,000 | 100 | not ended in 180 s |  | 9.0 |  |  |"
    )


def test_tables_of_rates_latencies_and_costs() -> None:
    cost = _a_step({ROWS: 300, LOG: 50_000, "log writes": 10, "statements": 40, LOCK_WAITS: 7}, 100)
    found = {line.title: Found() for line in (*LINES, FIRST)}
    found["a join of 10"] = Found({"EMS": [50.0]}, {"EMS": [cost], "DBOS": [{LOG: 4_000.0}]})
    found[FIRST.title] = Found(latencies={"EMS": [float(n) for n in range(100)]})
    rates, latencies, costs = tables(found).split("\n\n")
    assert "| a join of 10 | 50 |" in rates and "1,000 steps" not in rates
    assert latencies.splitlines()[-1] == "| EMS | 49.5 | 99.0 |"
    assert costs.splitlines()[-1] == "| a join of 10 | 3.0 | 0.10 | 500 | 4,000 | 7 |"


@pytest.mark.slow
def test_a_side_is_asked_and_killed_when_it_is_late(bench_servers: Servers, tmp_path: Path) -> None:
    with Arena(bench_servers, tmp_path) as arena, Asked(EMS, bench_servers, arena) as asked:
        took_s = asked.ask(Line("a join", "join", 1, 10, (1, 10)), (1, 10), 60)
        assert isinstance(took_s, float) and 0 < took_s < 60
        latencies = asked.ask(FIRST, (3, 1), 60)
        assert isinstance(latencies, list) and len(latencies) == 3 and all(0 < one < 60_000 for one in latencies)
        with pytest.raises(NotInTime):
            asked.ask(Line("a join", "join", 1, 2000, (1, 10)), (1, 2000), 0.01)
        asked.kill()


@pytest.mark.slow
def test_copies_of_a_flow_that_sleeps_are_flows(bench_servers: Servers, tmp_path: Path) -> None:
    with Arena(bench_servers, tmp_path) as arena, Asked(EMS, bench_servers, arena) as asked:
        stage = Stage(asked.environ["EMS_URL"], None, tmp_path, QUICK)
        sleeping.fill(stage, asked, 100_000)
        assert set(sleeping.wake(stage)) == {"1,000 woken in s"}
