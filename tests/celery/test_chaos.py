"""A Celery project loses no task, whatever dies: workers, connections, the server."""

from collections.abc import Callable

import pytest
import redis

from emsworker.core.process.clock import ticks
from tests.celery.brokers import open_redis
from tests.celery.chaos import LEASE_S, SCENARIOS, DatabaseFaults
from tests.celery.project import Project, publish
from tests.support.commands import Ems
from tests.support.servers import TestServers
from tests.support.waiting import until

PATIENCE_S = 60.0
PREFETCH = 8  # two processes, multiplier 4
# How many tasks may end twice: what one worker had in hand when it was lost, and none where a connection was.
AGAIN = {
    "killed_worker": PREFETCH,
    "long_task": 0,
    "killed_server": PREFETCH,
    "cut_connections": 0,
    "stopped_worker": PREFETCH,
}

BOUNDED = ("killed_worker",)  # what CI runs of them


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BOUNDED else pytest.mark.slow) for name in SCENARIOS]
)
def test_nothing_is_lost(start: Callable[..., Project], faults: DatabaseFaults, name: str) -> None:
    outcome = SCENARIOS[name](start(lease_s=LEASE_S), faults, PATIENCE_S)
    assert outcome.hit > 0, outcome
    assert outcome.lost == 0, outcome
    if name in AGAIN:
        assert outcome.again <= AGAIN[name], outcome


@pytest.mark.slow
def test_tasks_that_run_through_an_outage_longer_than_the_lease_run_once(
    start: Callable[..., Project], faults: DatabaseFaults
) -> None:
    project = start(lease_s=LEASE_S)
    project.workers(2)
    publish(project, 4, seconds=6 * LEASE_S)
    until(lambda: len(project.count("began")) == 4, 60, "all run")
    faults.server.kill()
    began = ticks()
    until(lambda: ticks() > began + 2 * LEASE_S, 60, "two leases are over")
    faults.server.start()
    project.wait_ended(4)
    until(lambda: project.rows("SELECT * FROM ems_claim WHERE state = 'start'") == [], 60, "all are acknowledged")
    assert project.count("began") == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.slow
def test_a_task_that_kills_its_worker_becomes_a_dead_letter(start: Callable[..., Project]) -> None:
    project = start(lease_s=LEASE_S, delivery_limit=3)
    project.worker("-c", "1").wait_ready()
    project.run("die.delay(0)")
    ems = Ems({"EMS_URL": project.broker.url.removeprefix("ems+")}, project.folder)
    dead = until(
        lambda: ems.ok("dead", "list", "--json").json["dead_letters"], 90, "there is a dead letter", poll_s=0.5
    )
    assert project.count("began")[0] == 3
    assert [(one["task"], one["error"]) for one in dead] == [
        ("tests.celery.projects.tasks.die", "billiard.exceptions.WorkerLostError")
    ]
    project.run("work.delay(1)")
    project.wait_ended(1)


def test_the_redis_beside_which_it_is_measured_is_emptied_for_each_scenario() -> None:
    servers = TestServers()
    try:
        for _ in range(2):
            open_redis(server := servers.redis())
            with redis.Redis(port=server.port) as client:
                assert client.dbsize() == 0 and client.set("left", "behind")
    finally:
        servers.close()
