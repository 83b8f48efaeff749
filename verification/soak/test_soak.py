"""The short form of ``./dev soak``: it runs, its report is whole, nothing is wrong; and planted leaks turn it red."""

import json
from functools import partial
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase
from tests.support.servers import TestServers, chosen_flavors
from verification.chaos.breaks import database, processes
from verification.soak import report
from verification.soak.running import Plan, Soaked, soak

pytestmark = [pytest.mark.alone, pytest.mark.chaos, pytest.mark.slow]

SHORT = Plan(
    for_s=7,
    capacity_s=1,
    backlog=100,
    warm_s=1.5,
    fault_every_s=2,
    sample_s=0.15,
    retention_s=2,
    linger_s=5,
    faults=(partial(processes.kill_children, times=1), partial(database.kill_connections, for_s=1)),
    redis_faults=(),
)
LEAKY = Plan(
    for_s=12,
    capacity_s=1,
    backlog=100,
    warm_s=1.5,
    fault_every_s=20,
    sample_s=0.15,
    faults=(),
    leaks="bodies,connections",
)
KINDS = ("rss", "files", "threads", "rows", "bytes", "claim", "run", "connections", "history", "backlog", "checker")


def _soak(server: LocalDatabase, folder: Path, plan: Plan) -> Soaked:
    return soak(server, None, folder / "arena", 1, plan, partial(print, flush=True))


def test_a_sound_soak_is_flat_and_its_report_is_whole(servers: TestServers, tmp_path: Path) -> None:
    done = _soak(servers.database(chosen_flavors()[-1]), tmp_path, SHORT)
    assert not done.wrong, "\n".join(done.wrong)
    # An end that is heard when a message is settled does not count.
    assert done.faults and done.confirmed > 50 and done.runs > 3 * done.confirmed
    # What the neighbours' load on this machine does not change.
    steady = {name for name in done.trends if name.split()[0] in ("rss", "files", "threads", "connections")}
    assert not steady & done.rising.keys(), "\n".join(report.lines(done))
    assert {name.split()[0] for name in done.series} == set(KINDS)
    assert {f"rows {table}" for table in ("ems_message", "ems_claim", "ems_retry", "ems_client")} <= done.trends.keys()
    html, markdown, figures = (path.read_text() for path in report.write(done, tmp_path / "report"))
    assert html.count("<svg") >= len(KINDS) and "src=" not in html and "rss worker" in html
    assert "| rss worker | MiB |" in markdown
    found = json.loads(figures)
    assert found["series"].keys() == done.series.keys() and len(found["series"]["rss worker"]["values"]) > 20


def test_planted_leaks_turn_it_red(servers: TestServers, tmp_path: Path) -> None:
    done = _soak(servers.database(chosen_flavors()[0]), tmp_path, LEAKY)
    assert not done.wrong, "\n".join(done.wrong)
    for name in ("rss worker", "connections"):
        assert name in done.rising, (done.trends[name], done.series[name].values)
    assert not done.good
    assert not {"rss supervisor", "files supervisor", "threads worker"} & done.rising.keys(), report.lines(done)
    told = "\n".join(report.lines(done))
    assert "NOT FLAT  connections grows: from" in told and "NOT FLAT  rss worker grows: from" in told
