"""django-celery-beat and django-celery-results, untouched, with the broker on a stream."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from emsworker.store.engine.database import Database
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.waiting import until
from tests.support.worker import ROOT

WAIT_S = 90

_SETUP = """
    import tests.celery.shop
    import django
    django.setup()
    from django.core.management import call_command
    call_command("migrate", run_syncdb=True, verbosity=0)
    from django_celery_beat.models import IntervalSchedule, PeriodicTask
    every, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.create(interval=every, name="bills", task="tests.celery.shop.tasks.bill", args="[7]")
"""


@contextmanager
def _celery(env: dict[str, str], log: Path, *arguments: str) -> Iterator[Any]:
    command = [sys.executable, "-m", "celery", "-A", "tests.celery.shop", *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _results(database: str) -> list[tuple[str, str]]:
    connection = connect(database)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT status, result FROM django_celery_results_taskresult")
            return list(cursor.fetchall())
    finally:
        connection.close()


@pytest.mark.slow
def test_their_schedule_is_followed_and_their_results_are_kept(database: str, tmp_path: Path) -> None:
    with Database(database).session() as session:
        migrate(session)
    env = os.environ | {"PYTHONPATH": str(ROOT), "SHOP_DATABASE": database, "SHOP_BROKER": f"ems+{database}"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(_SETUP)], env=env, check=True, timeout=120)
    beat = ("beat", "-S", "django", "--pidfile", str(tmp_path / "beat.pid"), "-l", "INFO")
    with ExitStack() as stack:
        stack.enter_context(_celery(env, tmp_path / "worker.log", "worker", "-c", "1", "-l", "INFO"))
        stack.enter_context(_celery(env, tmp_path / "beat.log", *beat))
        until(lambda: len(_results(database)) >= 3, WAIT_S, "three runs have their results")
    assert set(_results(database)) <= {("SUCCESS", "7")} | {("STARTED", "null")}
