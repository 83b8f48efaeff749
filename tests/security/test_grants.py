"""Least privilege: each role can do its work with the grants that ``ems grants`` prints, and nothing more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems as App
from emsworker.admin import Admin
from emsworker.checks import Severity, check
from emsworker.core.errors import AccessDenied, InvalidName
from emsworker.local import Database as Server
from emsworker.monitoring import Monitoring
from emsworker.store.database import Database
from emsworker.store.grants import ROLES, statements
from emsworker.store.pending import relay_due
from emsworker.store.schema import migrate
from tests.process.stream import Stream, open_stream
from tests.support.commands import Ems
from tests.support.roles import MakeUser, users
from tests.support.waiting import until
from tests.support.worker import Program


@pytest.fixture
def stream(server: Server, tmp_path: Path) -> Iterator[Stream]:
    with open_stream(server, tmp_path) as stream:
        Admin(stream.app).create_topic("acts", partitions=2)
        Admin(stream.app).create_group("acts", "a", ladder="200ms", max_attempts=2)
        yield stream


@pytest.fixture
def as_role(stream: Stream) -> Iterator[MakeUser]:
    """Makes a user with the grants of a role; gives the address."""
    with users(stream.server, stream.url) as make:
        yield make


@pytest.mark.parametrize("role", ROLES)
def test_check_finds_all_that_a_role_needs_and_names_what_is_missing(
    stream: Stream, as_role: MakeUser, role: str
) -> None:
    url = as_role(role)
    findings = check(url, None, environ={}, role=role)
    assert not [one for one in findings if one.name.startswith("privilege") and one.severity is not Severity.OK]
    if role != "reader":
        less = "reader" if role == "admin" else "producer" if role == "worker" else "reader"
        missing = {one.value for one in check(as_role(less), None, environ={}, role=role)}
        assert {"INSERT on ems_message is missing", "INSERT is missing"} & missing or "DELETE is missing" in missing


def test_a_producer_sends_and_reads_no_bodies(stream: Stream, as_role: MakeUser) -> None:
    app = App("p", url=as_role("producer"))
    sent = [app.send("acts", {"n": 1}, key="k"), *app.send_many("acts", [{"n": n} for n in range(2, 50)])]
    app.send("acts", {"n": 50}, dedup_key="once")
    app.send("acts", {"n": 50}, dedup_key="once")
    app.send("acts", {"n": 51}, countdown=0.1)
    uid = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"
    assert app.send("acts", {"n": 52}, uid=uid).created and not app.send("acts", {"n": 52}, uid=uid).created
    with app.transaction() as tx:
        app.send("acts", {"n": 53}, transaction=tx)
    assert app.result(sent[0], group="a").status
    with pytest.raises(AccessDenied, match="ems check"):
        app.send("new-topic", {})
    for statement in (
        "SELECT body FROM ems_message", "SELECT * FROM ems_dead", "SELECT body FROM ems_pending",
        "DELETE FROM ems_message", "UPDATE ems_message SET body = ''", "UPDATE ems_topic SET rule = 'none'",
        "DELETE FROM ems_pending", "UPDATE ems_cursor SET next_offset = 1", "SELECT * FROM ems_schedule",
    ):  # fmt: skip
        with pytest.raises(AccessDenied):
            app.database.call(lambda session, text=statement: session.execute(text))
    stream.app.database.call(lambda session: relay_due(session, 100))
    found = stream.rows("SELECT COUNT(*) FROM ems_message") + stream.rows("SELECT COUNT(*) FROM ems_pending")
    assert sum(count for (count,) in found) == 53
    app.close()


def test_a_worker_runs_retries_buries_and_keeps_house(stream: Stream, as_role: MakeUser) -> None:
    stream.send("acts", [{"n": n} for n in range(20)])
    stream.send("acts", [{"n": 20, "do": "fail"}, {"n": 21, "do": "fail", "until": 1}])
    stream.app.send("acts", {"n": 22}, countdown=0.5)
    worker = _start(stream, as_role("worker"))
    stream.wait_ended([*range(20), 21, 22], group="a")
    until(lambda: stream.rows("SELECT 1 FROM ems_dead"), 20, "the dead letter")
    Admin(stream.app).change_topic("acts", trim_done=True)
    until(lambda: not stream.rows("SELECT 1 FROM ems_message"), 20, "retention")
    assert worker.stop() == 0
    assert "denied" not in worker.text().lower(), worker.text()
    assert stream.rows("SELECT * FROM ems_client") == []


def _start(stream: Stream, url: str) -> Program:
    return stream.worker(topics=["acts"], groups=["a"], threads=2, settings={"url": url})


def test_a_reader_looks_and_an_admin_changes(stream: Stream, as_role: MakeUser) -> None:
    stream.send("acts", [{"n": 1}])
    reader = Database(as_role("reader"))
    assert sum(lag.lag for lag in Monitoring(reader).lag()) == 1
    with pytest.raises(AccessDenied):
        Admin(reader).change_topic("acts", rule="none")
    with pytest.raises(AccessDenied):
        App("r", url=as_role("reader")).send("acts", {})
    admin = Database(as_role("admin"))
    assert admin.call(migrate) == []
    made: list[Any] = [Admin(admin).create_topic("more"), Admin(admin).create_group("more", "g")]
    assert made[0] and Admin(admin).change_group("more", "g", paused=True).paused
    Admin(admin).delete_topic("more", force=True)
    for database in (reader, admin):
        database.thread_session().close()


def test_the_command_prints_them(tmp_path: Path) -> None:
    ems = Ems({}, tmp_path)
    done = ems.ok("grants", "producer", "--user", "shop@10.0.%", "--database", "my_shop")
    assert "INSERT ON `my_shop`.ems_message TO 'shop'@'10.0.%';" in done.out
    assert statements("reader", "my_shop", "s@h") == ["GRANT SELECT ON `my\\_shop`.* TO 's'@'h'"]


@pytest.mark.parametrize("account", ["shop", "a'@h", "a@h'; DROP USER x", "a@`h`", "a b@h", "a@h\\", "@h", "a@", "é@h"])
def test_names_that_need_quoting_are_refused(account: str) -> None:
    with pytest.raises(InvalidName, match="user@host"):
        statements("worker", "db", account)
    with pytest.raises(InvalidName, match="database"):
        statements("worker", account + "`", "u@h")
