"""Records a database of this version: its tables, and messages in every state, after real programs have been killed.

``python -m verification.upgrade.recording`` writes ``recorded/v1-FLAVOR.sql.gz`` for each server. After a release its file
stays as it is: what is recorded is what users have.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from emsworker.admin import Admin
from emsworker.core.extension import extensions
from emsworker.local import LocalDatabase
from emsworker.local.engines import Flavor
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.support.servers import ALL_FLAVORS, TestServers, connect, fresh_database
from tests.support.waiting import until
from verification.upgrade.app import add, app, break_down, check_out, pay, scan, shake, share, ship
from verification.upgrade.dump import write_dump
from verification.upgrade.programs import TABLES, Site

FOLDER = Path(__file__).parent / "recorded"
_PICTURE = 5_000_000


def recorded(flavor: Flavor) -> Path:
    """Return the recorded database of version 1 on a kind of server."""
    return FOLDER / f"v1-{flavor}.sql.gz"


def record(server: LocalDatabase, folder: Path, path: Path) -> None:
    """Play all that is recorded, and write it down."""
    with fresh_database(server) as url, ExitStack() as end:
        Database(url).call(lambda session: migrate(session, extensions().values()))
        with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in TABLES:
                cursor.execute(statement)
        app.reconfigure(url=url)
        end.callback(app.close)
        site = Site(url, folder)
        end.callback(site.close)
        Admin(app).create_topic("scans", max_message_bytes=20_000_000)
        _send_and_run(site)
        _run_celery(site)
        _leave_undone(site)
        write_dump(url, path)


def _send_and_run(site: Site) -> None:
    """Messages that are done, that wait for a retry, that are dead, and flows that sleep."""
    beat, worker = site.program("beat"), site.program("worker").wait_ready()
    for n in range(20):
        pay.delay(n)
    site.expect("pay", *range(20), 100, 101)
    receipts = {n: add.delay(n, n) for n in range(3)}
    for n in range(4):
        shake.delay(n)
        break_down.delay(n)
    site.expect("shake", *range(4))
    site.expect("break_down", *range(4))
    for n in (100, 101):
        check_out.start(n)
    site.expect("book", 100, 101)
    site.expect("close", 100, 101)
    until(lambda: site.count("pay") == 22, 30, "the payments")
    for n, receipt in receipts.items():
        assert app.result(receipt.id).get(timeout=30) == 2 * n
        site.looker.rows("INSERT INTO result VALUES (%s, %s)", receipt.id, 2 * n)
    rows = site.looker.rows
    until(
        lambda: len(rows("SELECT 1 FROM ems_retry")) >= 4 and len(rows("SELECT 1 FROM ems_dead")) == 4, 60, "failures"
    )
    until(lambda: len(rows("SELECT 1 FROM ems_flow_step WHERE kind = 'sleep'")) == 2, 60, "flows that sleep")
    assert worker.stop() == 0
    beat.send(signal.SIGKILL)
    beat.wait()


def _run_celery(site: Site) -> None:
    """A result of Celery's, and tasks that wait."""
    os.environ["EMS_URL"] = site.url
    try:
        from verification.upgrade import celery_app  # it reads the address when it is loaded

        celery_app.app.conf.update(broker_url=f"ems+{site.url}", result_backend=f"ems+{site.url}")
        worker = site.celery(site.folder / "celery.log")
        try:
            first = celery_app.deliver.delay(0)
            until(lambda: site.count("deliver") == 1 and first.ready(), 90, "Celery has run a task")
        finally:
            worker.terminate()
            worker.wait(60)
        for n in range(1, 6):
            celery_app.deliver.delay(n)
        site.expect("deliver", *range(6))
    finally:
        del os.environ["EMS_URL"]


def _leave_undone(site: Site) -> None:
    """Claims of a worker that is killed, lanes, blocked messages, and messages that nobody has taken."""
    worker = site.program("worker").wait_ready()
    rows = site.looker.rows

    def claims_of(groups: int) -> None:
        """Wait, so that no group takes all threads before another has claimed something."""
        until(
            lambda: len(rows("SELECT DISTINCT group_id FROM ems_claim WHERE state = 'start'")) >= groups, 20, "claims"
        )

    for n in range(9):
        ship.using(key=f"k{n % 3}").delay(n, seconds=100)
    claims_of(1)
    for n in range(200, 208):
        pay.delay(n, seconds=100)
    claims_of(2)
    for n in range(40):
        share.using(headers={"tenant": "ab"[n % 2]}).delay(n, "ab"[n % 2], seconds=100)
    claims_of(3)
    site.expect("pay", *range(200, 208), *range(300, 305), *range(400, 450))
    site.expect("share", *range(40))
    site.expect("ship", *range(9))
    worker.kill_all()
    for n in range(300, 305):
        pay.using(countdown=8).delay(n)
    for n in range(400, 450):
        pay.delay(n)
    app.cancel(pay.delay(999).id)
    for n in (1, 2):
        scan.delay(n, "x" * _PICTURE)
        site.expect("scan", n + _PICTURE)


def main() -> None:
    """Record on each server, or on the one that is named; each in a process of its own, with apps that are new."""
    if not sys.argv[1:]:
        for flavor in ALL_FLAVORS:
            subprocess.run([sys.executable, "-m", "verification.upgrade.recording", flavor], check=True)
        return
    (flavor,) = [one for one in ALL_FLAVORS if one == sys.argv[1]]
    FOLDER.mkdir(exist_ok=True)
    servers = TestServers()
    try:
        record(servers.database(flavor), servers.folder, recorded(flavor))
    finally:
        servers.close()
    print(f"recorded {recorded(flavor).name}: {recorded(flavor).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
