"""The short form of ``./dev chaos``: a little of everything on each server, and the checker finds nothing wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase, Redis, ServerMissing
from emsworker.local.engines import Flavor
from tests.support.servers import TestServers, chosen, chosen_flavors, must_run
from verification.chaos import table
from verification.chaos.arena import Arena
from verification.chaos.running import run_scenarios
from verification.chaos.scenarios import CLUSTERS, IN_SHORT, Scenario, in_short, misused_in_short

pytestmark = [pytest.mark.few, pytest.mark.chaos]


@pytest.mark.parametrize("bring_about", [in_short, misused_in_short])
def test_nothing_is_lost_whatever_breaks(
    server: LocalDatabase, servers: TestServers, tmp_path: Path, bring_about: Callable[[Arena], None]
) -> None:
    redis: Redis | None = servers.redis() if server.flavor == "mysql" and "redis" in chosen() else None
    scenario = Scenario("in short", bring_about, redis=redis is not None)
    rows = list(run_scenarios([scenario], server, redis, tmp_path / "arena", seed=1))
    print(table.header(), *map(table.line, rows), sep="\n")
    for row in rows:
        assert row.good, f"{table.line(row)}\n{row.wrong}"
    assert sum(row.sent for row in rows) > 50


@pytest.mark.parametrize("engine", IN_SHORT)
def test_nothing_is_lost_in_a_cluster(engine: str, tmp_path: Path) -> None:
    flavor: Flavor = "mariadb" if engine == "galera" else "mysql"
    if flavor not in chosen_flavors():
        pytest.skip(f"no {flavor} server")
    scenarios = [one for one in CLUSTERS[engine] if one.name in IN_SHORT[engine]]
    try:
        rows = list(
            run_scenarios(scenarios, LocalDatabase(tmp_path / "unused", flavor), None, tmp_path / "arena", seed=1)
        )
    except ServerMissing as error:
        if must_run("clusters"):
            raise
        pytest.skip(str(error))
    print(table.header(), *map(table.line, rows), sep="\n")
    for row in rows:
        assert row.good, f"{table.line(row)}\n{row.wrong}"
    assert sum(row.sent for row in rows) > 50
