"""Reading from a replica: what is asked there, how far it is behind, and what `ems check` says of both servers."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from emsworker import Ems
from emsworker.admin.check import Severity, check
from emsworker.admin.monitoring import Monitoring
from emsworker.core.errors import StoreUnavailable
from emsworker.store.engine.database import Database
from emsworker.store.engine.replica import ReplicaDatabase, replica_lag, topology
from tests.support.replication import Replicated, replicating, run
from tests.support.servers import chosen_flavors
from tests.support.several import migrated
from tests.support.waiting import until
from tests.support.worker import ROOT


@pytest.fixture(scope="module", params=chosen_flavors())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    with replicating(request.param, tmp_path_factory.mktemp("replica")) as pair:
        migrated(pair.primary.url)
        app = Ems(url=pair.primary.url)
        app.stream.group(app.stream.topic("orders"), "billing")
        app.send_many("orders", [{"n": n} for n in range(25)])
        app.close()
        until(pair.has_applied_all, 60, "the replica has the tables and all that was sent")
        yield pair


def _ems(pair: Replicated, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    return subprocess.run(
        [sys.executable, "-m", "emsworker", *arguments],
        cwd=ROOT,
        env={**kept, "EMS_URL": pair.primary.url, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_lists_come_from_the_replica_with_its_lag(pair: Replicated) -> None:
    assert Monitoring(Database(pair.replica_url)).lag()[0].lag == 25
    follower = "SLAVE" if pair.primary.flavor == "mariadb" else "REPLICA"
    run(pair.replica, f"STOP {follower} SQL_THREAD")
    try:
        app = Ems(url=pair.primary.url)
        app.send("orders", {"n": 25})
        app.close()
        listed = _ems(pair, "groups", "list", "--json", EMS_READ_URL=pair.replica_url)
        assert listed.stderr.count("Read from") == 1
        assert listed.returncode == 0 and '"lag": 25' in listed.stdout
        port = urlsplit(pair.replica_url).port
        assert f"Read from EMS_READ_URL (127.0.0.1:{port}): lag unknown: " in listed.stderr
        assert "SHOW REPLICA STATUS; grant it REPLICATION CLIENT (MariaDB: SLAVE MONITOR)." in listed.stderr
        assert '"lag": 26' in _ems(pair, "groups", "list", "--json").stdout
    finally:
        run(pair.replica, f"START {follower} SQL_THREAD")
    until(lambda: Monitoring(Database(pair.replica_url)).lag()[0].lag == 26, 20, "the replica follows")


def test_the_lag_is_what_the_server_says(pair: Replicated) -> None:
    admin = pair.replica.admin_url
    until(lambda: Database(admin).call(replica_lag).seconds == 0, 20, "the replica has caught up")
    assert str(Database(admin).call(replica_lag)) == "0 s behind its primary"
    assert Database(pair.primary.admin_url).call(replica_lag).reason == "the server is no replica"
    assert Database(admin).call(topology).name == "replica"
    assert Database(pair.primary.admin_url).call(topology).name == "semi-synchronous"


def test_check_names_the_replica(pair: Replicated) -> None:
    findings = {one.name: one for one in check(pair.replica.admin_url, None, {})}
    assert findings["topology"].value == "replica"
    assert findings["read_only"].severity is Severity.ERROR and "EMS_READ_URL" in findings["read_only"].fix
    assert "behind its primary" in findings["replica lag"].value
    assert findings["privileges"].value == "not tried"
    blind = _ems(pair, "check", EMS_URL=pair.replica_url)  # this user may not read the state of replication
    assert blind.returncode == 1
    unknown = (
        "topology +read-only +read_only set; whether it replicates is not known: the user may not read SHOW REPLICA"
    )
    assert re.search(unknown, blind.stdout), blind.stdout


def test_check_calls_no_primary_a_replica_because_it_is_read_only(pair: Replicated) -> None:
    run(pair.primary, "SET GLOBAL read_only = 1")
    try:
        findings = {one.name: one for one in check(pair.primary.admin_url, None, {})}
    finally:
        run(pair.primary, "SET GLOBAL read_only = 0")
    assert findings["topology"].value == "read-only" and "replica lag" not in findings
    assert findings["topology"].fix == "read_only set; it replicates from no server"
    assert "if it is the primary, set read_only = OFF" in findings["read_only"].fix


def test_the_next_replica_is_asked_if_one_is_away(pair: Replicated) -> None:
    port = pair.replica_url.rsplit(":", 1)[1].partition("/")[0]
    several = pair.replica_url.replace(f":{port}/", f":1,127.0.0.1:{port}/")
    assert Monitoring(ReplicaDatabase(several, 1, 4)).lag()[0].lag >= 25
    told = _ems(pair, "groups", "list", EMS_READ_URL=several).stderr
    assert f"Read from EMS_READ_URL (127.0.0.1:{port}): " in told, "the one that has answered"
    with pytest.raises(StoreUnavailable):
        Monitoring(ReplicaDatabase(pair.replica_url.replace(f":{port}/", ":1/"), 1, 1)).lag()


def test_what_decides_is_never_asked_there(pair: Replicated, tmp_path: Path) -> None:
    app = Ems(url=pair.primary.url, read_url=pair.replica_url.replace("127.0.0.1", "127.0.0.2:1,127.0.0.3"))
    receipt = app.send("orders", {"n": 99}, uid="018f0000-0000-7000-8000-000000000001")
    assert not app.send("orders", {"n": 99}, uid="018f0000-0000-7000-8000-000000000001").created
    assert app.cancel(receipt)
    app.close()
