"""A DAG of twenty tasks runs by the CeleryExecutor on EMS, also when a worker is killed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.celery.brokers import ems
from tests.support.servers import connect
from verification.airflow.installation import Airflow

COUNT = 20


@pytest.fixture
def airflow(database: str, tmp_path: Path) -> Iterator[Airflow]:
    """All processes but the worker."""
    with Airflow(os.environ["EMS_TEST_AIRFLOW"], tmp_path, f"{ems(database).url}?lease_s=4") as airflow:
        airflow.run("db", "migrate")
        airflow.start("api-server", "--workers", "1")
        airflow.start("scheduler")
        airflow.start("dag-processor")
        yield airflow


def _results(database: str) -> int:
    with connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM ems_celery_result")
        return int(cursor.fetchall()[0][0])


def test_a_dag_of_twenty_tasks_succeeds_also_when_a_worker_is_killed(airflow: Airflow, database: str) -> None:
    worker = airflow.start("celery", "worker", "-H", "w1@%h")
    airflow.wait_known("twenty")
    airflow.run("dags", "trigger", "twenty", "--run-id", "quiet")
    airflow.wait_done("quiet", COUNT, 120)
    assert airflow.total_seen.exists()
    assert _results(database) >= COUNT  # it was EMS that carried them

    airflow.run("dags", "trigger", "twenty", "--run-id", "killed")
    airflow.wait_done("killed", 4, 60)
    airflow.kill(worker)
    assert airflow.states("killed")["success"] < COUNT
    airflow.start("celery", "worker", "-H", "w2@%h")
    airflow.wait_done("killed", COUNT, 180)
