"""Least privilege: each role does its work, as a user with the grants that ``ems grants`` prints, and no other's."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emsworker import Ems as App
from emsworker.admin import Admin
from emsworker.checks import Severity, check
from emsworker.cli.main import ems as cli
from emsworker.core.errors import AccessDenied, InvalidName
from emsworker.core.ids import new_uid
from emsworker.core.model import NewMessage, Receipt
from emsworker.local import Database as Server
from emsworker.store import scan, staging
from emsworker.store.database import Database
from emsworker.store.grants import ROLES, statements
from emsworker.store.pending import relay_due
from emsworker.store.topics import get_topic
from tests.process.stream import Stream, open_stream
from tests.support.commands import Ems
from tests.support.roles import MakeUser, users
from tests.support.servers import fresh_database
from tests.support.waiting import until
from tests.support.worker import kill

ROLES_APP = "tests.process.apps.roles:app"


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


def test_check_finds_all_that_a_role_needs_and_names_what_is_missing(stream: Stream, as_role: MakeUser) -> None:
    for role in ROLES:
        found = check(as_role(role), None, environ={}, role=role)
        rights = [one for one in found if one.name.startswith("privilege")]
        assert rights and all(one.severity is Severity.OK for one in rights), role
    for role, have, missing in (
        ("producer", "reader", "INSERT on ems_message is missing"),
        ("worker", "producer", "DELETE on ems_claim is missing"),
        ("sink", "producer", "INSERT on ems_stage is missing"),
        ("admin", "reader", "INSERT is missing"),
    ):
        values = {one.value for one in check(as_role(have), None, environ={}, role=role)}
        assert missing in values or missing.split(" on ")[0] + " is missing" in values, (role, values)


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


_GROUPS = {
    "plain": {"plain": {"ladder": "100ms", "max_attempts": 2}},
    "ordered": {"keyed": {"order": "key"}, "serial": {"order": "partition"}},
    "limited": {"limited": {}},
    "bought": {"bought": {}},
    "ticks": {"ticks": {}},
}


def _declare(admin: Admin) -> None:
    """What an administrator creates before the least privileged may start."""
    for topic, groups in _GROUPS.items():
        admin.create_topic(topic, partitions=2)
        for group, settings in groups.items():
            admin.create_group(topic, group, **settings)
    admin.create_topic("news", kind="broadcast")
    admin.alarms.create("dead", on="dead", within_s=60, command="/bin/true")


def test_a_worker_and_a_beat_do_all_of_their_work(stream: Stream, as_role: MakeUser) -> None:
    """Retries, dead letters, order, limits, broadcasts, results, schedules, transactions, alarms, retention, recovery."""
    _declare(Admin(stream.app))
    database = stream.url.rsplit("/", 1)[1]
    settings = {"url": as_role("worker", [], [f"INSERT ON `{database}`.effect"]), "auto_create": "off"}
    worker = stream.worker(ROLES_APP, settings, threads=3, processes=2, beat=False)
    beat = stream.beat(settings)
    stream.send("plain", [{"n": n} for n in range(20)] + [{"n": 20, "fail": 1}, {"n": 21, "fail": 9}])
    stream.app.send("plain", {"n": 22}, countdown=0.5)
    for n in range(10):
        stream.app.send("ordered", {"n": n, "fail": n % 2}, key=f"k{n % 3}")
    stream.send("news", [{"n": 1}])
    stream.send("bought", [{"n": 100}])
    results = [App("asks", url=as_role("producer")).result(one) for one in _call_limited(stream, 3)]
    assert [one.get(timeout=30) for one in results] == [1, 2, 3]
    stream.wait_ended([*range(21), 22, 100], group="plain")
    for group in ("keyed", "serial"):
        stream.wait_ended(range(10), group=group)
    for event in ("heard", "tick"):
        until(lambda event=event: stream.record.events(event), 20, event)
    until(lambda: stream.rows("SELECT 1 FROM ems_dead") and "alarm" in beat.text(), 20, "the dead letter and its alarm")
    assert stream.rows("SELECT n FROM effect") == [(100,)]
    for child in worker.children():
        kill(child, signal.SIGKILL)  # claims are recovered, their places are taken over
    stream.send("plain", [{"n": 30}])
    stream.wait_ended([30], group="plain")
    Admin(stream.app).change_topic("plain", trim_done=True)
    until(lambda: stream.one("SELECT MAX(floor) FROM ems_partition") > 5, 20, "retention")
    assert worker.stop() == beat.stop() == 0
    for program in (worker, beat):
        assert "denied" not in program.text().lower(), program.text()
    assert stream.rows("SELECT * FROM ems_client") == []


def _call_limited(stream: Stream, count: int) -> list[Receipt]:
    task = App("calls", url=stream.url).task(name="limited", topic="limited", result=True)(print)
    return [task.delay(n) for n in range(count)]


def test_a_worker_without_a_right_says_which_one(stream: Stream, as_role: MakeUser) -> None:
    """It creates nothing, and ends in one line instead of trying for ever; allowed to, it creates what it needs."""
    program = stream.start("worker", {"url": as_role("worker")}, app=ROLES_APP)
    assert program.wait() == 2, program.text()
    told = [line for line in program.text().splitlines() if "Error: " in line]
    assert len(told) == 1 and "command denied" in told[0] and "ems grants" in told[0]
    worker = stream.worker(ROLES_APP, {"url": as_role("worker", ["auto-create"])}, topics=["plain", "ordered", "news"])
    assert worker.stop() == 0


def test_those_who_are_allowed_to_cancel_do(stream: Stream, as_role: MakeUser) -> None:
    for role in ("producer", "worker"):
        app = App(role, url=as_role(role, ["cancel"]))
        for sent in (app.send("acts", {"n": 1}), app.send("acts", {"n": 2}, countdown=60)):
            assert app.cancel(sent, "acts")
        plain = App(role, url=as_role(role))
        with pytest.raises(AccessDenied):
            plain.cancel(plain.send("acts", {"n": 3}), "acts")


def test_a_sink_writes_from_spark(stream: Stream, as_role: MakeUser) -> None:
    session = Database(as_role("sink")).thread_session()
    topic = get_topic(session, "acts")
    assert topic is not None
    token, batch = os.urandom(16), staging.Batch("job", 1)
    rows = [staging.StagedRow(topic.id, 0, NewMessage(new_uid(), None, None, b"{}", b"1")) for _ in range(3)]
    staging.begin_task(session, token)
    staging.stage(session, token, 0, rows)
    assert staging.commit(session, batch, [staging.Staged(token, 1)])
    staging.move(session, batch, "sink")
    staging.tidy(session, "sink", abandoned_s=0, stuck_s=0)
    assert stream.one("SELECT COUNT(*) FROM ems_message") == 3
    with pytest.raises(AccessDenied):
        session.rows("SELECT body FROM ems_message")
    session.close()


_LOOKS = (
    "topics list", "groups list", "clients", "messages list acts", "messages peek acts a", "dead list", "schedules list",
    "readers list", "check --role reader",
)  # fmt: skip
_CHANGES = (
    "topics create more", "topics change more --rule r", "groups create more g", "groups change more g --pause",
    "groups limit more g --rate 5/s", "groups reset acts a --to latest --yes", "groups replay acts a --all --yes",
    "topics purge acts --yes", "alarms create lag --on lag", "alarms delete lag --yes",
    "topics delete more --yes --force", "send acts {}",
)  # fmt: skip


def _ems(url: str, command: str) -> Result:
    return CliRunner().invoke(cli, command.split(), env={"EMS_URL": url})


def test_a_reader_looks_and_an_admin_changes(stream: Stream, as_role: MakeUser) -> None:
    reader, admin = as_role("reader"), as_role("admin")
    stream.send("acts", [{"n": 1}])
    for command in _LOOKS:
        done = _ems(reader, command)
        assert done.exit_code == 0, (command, done.output)
    for command in _CHANGES:
        refused = _ems(reader, command)
        assert refused.exit_code == 1 and "command denied" in refused.output, (command, refused.output)
        done = _ems(admin, command)
        assert done.exit_code == 0, (command, done.output)


def test_an_admin_creates_the_tables(server: Server) -> None:
    with fresh_database(server) as url, users(server, url) as make:
        done = _ems(make("admin"), "migrate")
        assert done.exit_code == 0 and "version" in done.output, done.output
        assert _ems(make("worker"), "topics list").exit_code == 0


def test_a_reader_reads_as_spark_does(stream: Stream, as_role: MakeUser) -> None:
    stream.send("acts", [{"n": n} for n in range(5)], partition=0)
    database = Database(as_role("reader"))
    session = database.thread_session()
    topic = get_topic(session, "acts")
    assert topic is not None
    bounds = scan.list_bounds(session, topic.id)[0]
    piece = scan.Piece(topic.id, topic.id, bounds.partition, bounds.floor, bounds.end)
    parts = [*scan.read(database, scan.Query("messages", ("offset", "value")), piece)]
    fetched = [row for part in parts for row in part.rows]
    assert [row[0] for row in fetched] == [1, 2, 3, 4, 5]
    for statement in (
        "UPDATE ems_message SET tag = ''",
        "DELETE FROM ems_dead",
        "INSERT INTO ems_once SELECT * FROM ems_once",
    ):
        with pytest.raises(AccessDenied):
            session.execute(statement)
    session.close()


def test_the_command_prints_them(tmp_path: Path) -> None:
    ems = Ems({}, tmp_path)
    done = ems.ok("grants", "producer", "--user", "shop@10.0.%", "--database", "my_shop")
    assert "INSERT ON `my_shop`.ems_message TO 'shop'@'10.0.%';" in done.out
    assert "UPDATE ON `my_shop`.ems_topic" not in done.out
    more = ems.ok("grants", "producer", "--user", "s@h", "--database", "my_shop", "--allow", "auto-create").out
    assert "INSERT, UPDATE ON `my_shop`.ems_topic TO 's'@'h';" in more
    assert statements("admin", "my_shop", "s@h")[0].endswith("ON `my\\_shop`.* TO 's'@'h'")
    refused = ems("grants", "reader", "--user", "s@h", "--database", "my_shop", "--allow", "cancel")
    assert refused.code == 2 and "that is for producer, worker" in refused.err


@pytest.mark.parametrize("account", ["shop", "a'@h", "a@h'; DROP USER x", "a@`h`", "a b@h", "a@h\\", "@h", "a@", "é@h"])
def test_names_that_need_quoting_are_refused(account: str) -> None:
    with pytest.raises(InvalidName, match="user@host"):
        statements("worker", "db", account)
    with pytest.raises(InvalidName, match="database"):
        statements("worker", account + "`", "u@h")
