"""Least privilege: each role does its work, as a user with the grants that ``ems grants`` prints, and no other's."""

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pymysql
import pytest
from click.testing import CliRunner, Result

from docs.hooks import writes_table
from emsworker import Ems as App
from emsworker.admin import Admin
from emsworker.admin.check import Severity, check
from emsworker.admin.dead import DeadFilter
from emsworker.admin.demand import Demands
from emsworker.admin.monitoring import Monitoring
from emsworker.arrow import scan
from emsworker.beat.expiry import sweep_holds
from emsworker.beat.strays import clear_orphans
from emsworker.cli.main import ems as cli
from emsworker.core.codec import Decoder
from emsworker.core.config import Settings
from emsworker.core.errors import AccessDenied, InvalidName
from emsworker.core.extension import extensions
from emsworker.core.ids import new_uid
from emsworker.core.model import Failure, NewMessage, Outcome
from emsworker.core.offsets import OffsetRange
from emsworker.local import LocalDatabase as Server
from emsworker.publish.intake import ingest
from emsworker.spark import staging
from emsworker.store.cluster import clients
from emsworker.store.engine.database import Database
from emsworker.store.engine.grants import Grants
from emsworker.store.engine.rights import VERBS
from emsworker.store.groups import claims, progress
from emsworker.store.stream import orphans
from emsworker.store.topics import create_topic, get_topic, list_groups
from tests.process.stream import Stream, open_stream
from tests.support.roles import MakeUser, users
from tests.support.servers import TestServers, chosen_flavors, connect, fresh_database
from tests.support.streams import open_stream as open_plain_stream
from tests.support.waiting import until
from tests.support.worker import kill
from tests.web.stage import furnish

GRANTS = Grants(extensions().values())
ROLES_APP = "tests.process.apps.roles:app"


@pytest.fixture
def stream(server: Server, tmp_path: Path) -> Iterator[Stream]:
    with open_stream(server, tmp_path) as stream:
        yield stream


@pytest.fixture
def as_role(stream: Stream) -> Iterator[MakeUser]:
    """Makes a user with the grants of a role; gives the address."""
    with users(stream.server, stream.url) as make:
        yield make


@pytest.fixture(scope="module")
def shared(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stream, MakeUser]]:
    """A stream for the tests that each have a topic of their own, and what makes its users."""
    with (
        open_stream(server, tmp_path_factory.mktemp("shared")) as stream,
        users(stream.server, stream.url) as make,
    ):
        yield stream, make


@dataclass(frozen=True)
class Place:
    """A topic with a group ``a`` on the shared stream."""

    topic: str
    stream: Stream
    as_role: MakeUser

    def send(self, count: int) -> None:
        self.stream.app.send_many(self.topic, range(count), partition=0)


@pytest.fixture
def place(shared: tuple[Stream, MakeUser]) -> Place:
    stream, make = shared
    name = f"t-{os.urandom(4).hex()}"
    Admin(stream.app).create_topic(name, partitions=2)
    Admin(stream.app).create_group(name, "a")
    return Place(name, stream, make)


def test_check_finds_all_that_a_role_needs_and_names_what_is_missing(place: Place) -> None:
    as_role = place.as_role
    for role in GRANTS.roles:
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


@pytest.mark.parametrize("role", GRANTS.roles)
def test_check_is_content_with_a_user_of_any_role(place: Place, role: str) -> None:
    found = check(place.as_role(role), None, environ={})
    assert [one for one in found if one.severity is Severity.ERROR] == []
    (rights,) = [one for one in found if one.name == "privileges"]
    enough, _, beyond = rights.value.partition(";")
    assert role in enough and role not in beyond


def test_a_producer_sends_and_asks_for_results(place: Place) -> None:
    app, topic = App("p", url=place.as_role("producer")), place.topic
    sent = [app.send(topic, {"n": 1}, key="k"), *app.send_many(topic, [{"n": n} for n in range(2, 50)])]
    app.send(topic, {"n": 50}, dedup_key="once")
    app.send(topic, {"n": 50}, dedup_key="once")
    app.send(topic, {"n": 51}, countdown=0.1)
    uid = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"
    assert app.send(topic, {"n": 52}, uid=uid).created and not app.send(topic, {"n": 52}, uid=uid).created
    for body in ("first", "second"):  # a repetition leaves the first as it is
        app.send(topic, body, uid=uid.replace("-7c3e-", "-7c3f-"), countdown=60)
    stored = place.stream.rows("SELECT body FROM ems_outbox WHERE body LIKE '%%first%%' OR body LIKE '%%second%%'")
    assert stored == [(b"first",)]
    with app.transaction() as tx:
        app.send(topic, {"n": 53}, transaction=tx)
    assert app.result(sent[0], group="a").status
    with pytest.raises(AccessDenied, match="ems grants"):
        app.send("new-topic", {})
    stored = get_topic(app.stream.database.thread_session(), topic)
    assert stored is not None
    found = place.stream.rows(
        "SELECT COUNT(*) FROM ems_message WHERE topic_id = %s AND `offset` > 0 UNION ALL SELECT COUNT(*) FROM ems_outbox WHERE topic_id = %s",
        stored.id, stored.id,
    )  # fmt: skip
    assert sum(count for (count,) in found) == 54
    app.close()


# What is never to be granted, however the grants change.
_CANNOT = {
    "publisher": (
        "SELECT body FROM ems_publish", "DELETE FROM ems_publish", "UPDATE ems_publish SET body = ''", "SELECT name FROM ems_topic",
        "INSERT INTO ems_publish (topic, body, refused_at) VALUES ('t', '1', NULL)", "INSERT INTO ems_message (topic_id) VALUES (1)",
        "INSERT INTO ems_outbox (topic_id) VALUES (1)", "SELECT body FROM ems_message",
    ),
    "producer": (
        "SELECT body FROM ems_message", "SELECT headers FROM ems_message", "SELECT * FROM ems_dead", "SELECT body FROM ems_outbox",
        "DELETE FROM ems_message", "UPDATE ems_message SET body = ''", "UPDATE ems_topic SET rule = 'none'",
        "UPDATE ems_outbox SET body = ''", "UPDATE ems_outbox SET headers = ''", "UPDATE ems_outbox SET due_at = NOW(6)", "REPLACE INTO ems_outbox (uid) VALUES ('x')",
        "DELETE FROM ems_outbox", "UPDATE ems_cursor SET next_offset = 1", "UPDATE ems_claim SET state = 'done'",
        "INSERT INTO ems_claim (group_id) VALUES (1)", "SELECT * FROM ems_schedule", "UPDATE ems_partition SET log_start = 9",
    ),
    "worker": (
        "UPDATE ems_message SET body = ''", "UPDATE ems_dead SET body = ''", "DELETE FROM ems_dead", "DELETE FROM ems_cursor",
        "INSERT INTO ems_topic (name) VALUES ('x')", "UPDATE ems_topic SET rule = 'none'", "DELETE FROM ems_group",
        "UPDATE ems_alarm_rule SET command = 'x'", "DELETE FROM ems_skip", "DELETE FROM ems_schedule", "DELETE FROM ems_message",
        "REPLACE INTO ems_message (topic_id) VALUES (1)", "SELECT webhook FROM ems_alarm_rule", "DELETE FROM ems_audit",
        "UPDATE ems_outbox SET body = ''", "UPDATE ems_partition SET log_start = 9", "SELECT body FROM ems_publish",
    ),
    "beat": (
        "UPDATE ems_message SET body = ''", "UPDATE ems_dead SET body = ''", "DELETE FROM ems_dead", "INSERT INTO ems_topic (name) VALUES ('x')",
        "UPDATE ems_topic SET rule = 'none'", "DELETE FROM ems_group", "UPDATE ems_alarm_rule SET command = 'x'", "UPDATE ems_audit SET actor = 'x'",
        "UPDATE ems_schedule SET body = ''", "UPDATE ems_outbox SET body = ''", "SELECT actor FROM ems_audit",
    ),
    "celery": (
        "UPDATE ems_message SET body = ''", "UPDATE ems_alarm_rule SET command = 'x'", "DELETE FROM ems_alarm_rule", "DELETE FROM ems_schedule",
        "SELECT * FROM ems_audit", "INSERT INTO ems_stage (task_id) VALUES (1)", "DELETE FROM ems_schema_version",
    ),
    "reader": (
        "INSERT INTO ems_claim (group_id) VALUES (1)", "UPDATE ems_message SET tag = ''", "DELETE FROM ems_dead",
        "SELECT webhook FROM ems_alarm_rule", "SELECT * FROM ems_message FOR UPDATE", "SELECT body FROM ems_stage",
    ),
    "viewer": (
        "SELECT * FROM ems_message", "SELECT 1 FROM ems_message WHERE body = ''", "SELECT reason FROM ems_dead", "DELETE FROM ems_dead",
        "SELECT webhook FROM ems_alarm_rule", "UPDATE ems_group SET paused = 1", "INSERT INTO ems_claim (group_id) VALUES (1)",
        "INSERT INTO ems_sample (topic_id) VALUES (1)", "SELECT uid FROM ems_result",
    ),
    "operator": (
        "INSERT INTO ems_topic (name) VALUES ('x')", "UPDATE ems_topic SET rule = 'none'", "DELETE FROM ems_topic", "DELETE FROM ems_group",
        "UPDATE ems_group SET name = 'x'", "UPDATE ems_message SET headers = ''", "DELETE FROM ems_message", "UPDATE ems_dead SET body = ''",
        "INSERT INTO ems_dead (group_id) VALUES (1)", "SELECT webhook FROM ems_alarm_rule", "DELETE FROM ems_alarm_rule", "DELETE FROM ems_skip",
        "UPDATE ems_handler SET max_attempts = 9", "UPDATE ems_partition SET next_offset = 1", "DELETE FROM ems_sample",
        "UPDATE ems_message SET body = ''", "UPDATE ems_message SET size = 0", "UPDATE ems_audit SET changed = 0", "DELETE FROM ems_audit",
        "REPLACE INTO ems_audit (step) VALUES (1)", "SELECT body FROM ems_result",
    ),
    "sink": ("SELECT body FROM ems_message", "DELETE FROM ems_message", "SELECT 1 FROM ems_group", "UPDATE ems_message SET tag = ''"),
    "admin": (),
}  # fmt: skip
_DENIED = (1044, 1142, 1143, 1227, 1370)
_NOBODY = (
    "DROP TABLE ems_once", "TRUNCATE TABLE ems_once", "CREATE USER x", "SELECT * FROM mysql.user", "SHUTDOWN", "LOCK TABLES ems_partition WRITE",
    "CREATE TRIGGER x BEFORE INSERT ON ems_message FOR EACH ROW SET @x = 1", "SELECT body FROM ems_message INTO OUTFILE '/tmp/x'",
)  # fmt: skip
_NOT_AS_ADMIN = ("CREATE TABLE other (x INT)", "ALTER TABLE ems_once COMMENT 'x'", "CREATE INDEX x ON ems_once (token)")
_ALLOWED = [(role, (one,)) for role in GRANTS.roles for one in GRANTS.allowances if role in GRANTS.roles_allowed(one)]


def refused(connection: "pymysql.Connection[pymysql.cursors.Cursor]", text: str) -> bool:
    """Whether the server refuses a statement for want of a privilege; any other error comes after that check."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(text)
    except pymysql.err.MySQLError as error:
        return error.args[0] in _DENIED
    finally:
        connection.rollback()
    return False


def test_what_each_role_cannot_do(place: Place) -> None:
    for role in GRANTS.roles:
        with connect(place.as_role(role)) as user:
            for text in (*_CANNOT[role], *_NOBODY, *(() if role == "admin" else _NOT_AS_ADMIN)):
                if "FOR UPDATE" in text and place.stream.server.flavor == "mariadb":
                    continue  # which lets everybody lock what he reads
                assert refused(user, text), (role, text)


def _columns(stream: Stream) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for table, column in stream.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name LIKE 'ems%%'"
    ):
        found[table] = found.get(table, frozenset()) | {column}
    return found


def _tries(
    flavor: str, table: str, columns: frozenset[str], may: dict[str, frozenset[str]]
) -> Iterator[tuple[str, bool]]:
    """Statements on a table, and whether the server must refuse each."""
    forms = {
        "SELECT": f"SELECT `{{}}` FROM {table} LIMIT 0",
        "INSERT": f"INSERT INTO {table} (`{{}}`) VALUES (DEFAULT)",
        "UPDATE": f"UPDATE {table} SET `{{}}` = NULL WHERE 1 = 0",
        "REPLACE": f"REPLACE INTO {table} (`{{}}`) VALUES (DEFAULT)",
    }
    may = may | {"REPLACE": may["INSERT"] if may["DELETE"] else frozenset()}
    for verb, form in forms.items():
        for column in sorted(columns) if may[verb] else sorted(columns)[:1]:
            yield form.format(column), column not in may[verb]
    yield f"DELETE FROM {table} LIMIT 0", not may["DELETE"]
    locks = may["SELECT"] and (flavor == "mariadb" or may["UPDATE"] or may["DELETE"])
    readable = min(may["SELECT"] or columns)
    yield f"SELECT `{readable}` FROM {table} LIMIT 0 FOR UPDATE", not locks


@pytest.mark.parametrize(("role", "allow"), [*((role, ()) for role in GRANTS.roles), *_ALLOWED])
def test_each_statement_on_each_table_is_refused_unless_it_is_granted(
    place: Place, role: str, allow: tuple[str, ...]
) -> None:
    """Every table, column and verb. The one exception: who reads on MariaDB may lock rows, and it has no right for it."""
    tables, granted, tried = _columns(place.stream), GRANTS.privileges(role, allow), 0
    with connect(place.as_role(role, allow)) as user:
        for table, columns in tables.items():
            verbs = {verb: granted.get(table, {}).get(verb, ()) for verb in VERBS}
            may = {verb: columns if named is None else frozenset(named) for verb, named in verbs.items()}
            for text, wanted in _tries(place.stream.server.flavor, table, columns, may):
                assert refused(user, text) is wanted, (role, allow, text)
                tried += 1
    assert tried >= 6 * len(tables)


def test_no_role_names_the_number_of_a_row_that_the_server_numbers(place: Place) -> None:
    """The largest one would be the last: no further row could be written. Who creates topics and groups is the exception."""
    numbered = place.stream.rows(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND extra LIKE '%%auto_increment%%'"
    )
    assert {"ems_flow", "ems_flow_signal", "ems_publish", "ems_alarm_event", "ems_alarm_silence"} < {
        one for one, _ in numbered
    }
    for role, allow in [*((role, ()) for role in GRANTS.roles if role != "admin"), *_ALLOWED]:
        granted = GRANTS.privileges(role, allow)
        for table, column in numbered:
            if table in ("ems_topic", "ems_group") and (role == "celery" or "auto-create" in allow):
                continue
            for verb in ("INSERT", "UPDATE"):
                columns = granted.get(table, {}).get(verb, ())
                assert columns is not None and column not in columns, (role, allow, table, verb)


def test_the_page_on_security_tells_all_that_each_role_may_write() -> None:
    """Its table is made from the grants; what is said here of the most exposed roles is not."""
    table = writes_table()
    for row in (
        "| `publisher` | `ems_publish` (topic, body, key, tag, headers, task, priority, delay_s, uid) | nothing | nothing |",
        "| `producer` | `ems_body_chunk`, `ems_dedup`, `ems_flow` (key, name, version, topic_id, state, owner, level, headers, args, waits, "
        "started_at, changed_at, begins_at, deadline_at), `ems_flow_attribute`, `ems_flow_debounce`, `ems_flow_signal` "
        "(flow_id, uid, name, value, sent_at), `ems_large_body`, `ems_message`, `ems_outbox` | `ems_dedup`, `ems_flow` (state, owner, waits, changed_at, args, version, "
        "begins_at), `ems_flow_debounce`, `ems_large_body` (created_at), `ems_outbox` (created_at), `ems_partition` (next_offset) | nothing |",
        "| `viewer` | nothing | nothing | nothing |",
        "| `reader` | nothing | nothing | nothing |",
        "| `reader` with `--allow hold`, besides | `ems_hold` | `ems_hold` | nothing |",
    ):
        assert row in table.splitlines()
    assert all(f"| `{role}` |" in table for role in GRANTS.roles)
    assert all(f"| `{role}` with `--allow {one}`, besides |" in table for role, (one,) in _ALLOWED)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "security.md").read_text()
    assert "<!-- generated: rights -->" in page


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
    worker = stream.worker(ROLES_APP, settings, threads=3, beat=False)
    beat = stream.beat({"url": as_role("beat")})
    stream.send("plain", [{"n": n} for n in range(20)] + [{"n": 20, "fail": 1}, {"n": 21, "fail": 9}])
    stream.app.send("plain", {"n": 22}, countdown=0.5)
    for n in range(10):
        stream.app.send("ordered", {"n": n, "fail": n % 2}, key=f"k{n % 3}")
    stream.send("news", [{"n": 1}])
    stream.send("bought", [{"n": 100}])
    asks = App("asks", url=as_role("producer"))
    call = asks.task(name="limited", topic="limited", result=True)(print)
    assert [asks.result(sent).get(timeout=30) for sent in [call.delay(n) for n in range(3)]] == [1, 2, 3]
    asks.close()
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
    Admin(stream.app).change_topic("plain", keep_done_s=0)
    until(lambda: stream.one("SELECT MAX(log_start) FROM ems_partition") > 5, 20, "retention")
    assert worker.stop() == beat.stop() == 0
    for program in (worker, beat):
        assert "denied" not in program.text().lower(), program.text()
    assert stream.rows("SELECT * FROM ems_client") == []


def test_a_worker_without_a_right_says_which_one(servers: TestServers, tmp_path: Path) -> None:
    """It creates nothing, and ends in one line instead of trying for ever; allowed to, it creates what it needs."""
    server = servers.database(chosen_flavors()[0])
    with open_stream(server, tmp_path) as stream, users(server, stream.url) as as_role:
        _try_to_start(stream, as_role)


def _try_to_start(stream: Stream, as_role: MakeUser) -> None:
    program = stream.start("worker", {"url": as_role("worker")}, app=ROLES_APP, beat=False)
    assert program.wait() == 2, program.text()
    told = [line for line in program.text().splitlines() if "Error: " in line]
    assert len(told) == 1 and "INSERT on ems_topic" in told[0] and "ems grants" in told[0]
    topics = ["plain", "ordered", "news"]
    worker = stream.worker(ROLES_APP, {"url": as_role("worker", ["auto-create"])}, topics=topics, beat=False)
    assert worker.stop() == 0


def test_those_who_are_allowed_to_cancel_do(place: Place) -> None:
    topic = place.topic
    for role in ("producer", "worker"):
        app, plain = App(role, url=place.as_role(role, ["cancel"])), App(role, url=place.as_role(role))
        for sent in (app.send(topic, {"n": 1}), app.send(topic, {"n": 2}, countdown=60)):
            assert app.cancel(sent, topic)
        with pytest.raises(AccessDenied):
            plain.cancel(plain.send(topic, {"n": 3}), topic)
        app.close()
        plain.close()


def test_those_who_are_allowed_to_schedule_do(place: Place) -> None:
    for role in ("producer", "worker"):
        app = App(role, url=place.as_role(role, ["schedule"]))
        plain = App(role, url=place.as_role(role))
        for one in (app, plain):
            one.task(name="report", topic=place.topic)(print)
        app.schedules.add(f"of-{role}", "report", every=60.0)
        with pytest.raises(AccessDenied, match="ems_schedule"):
            plain.schedules.delete(f"of-{role}")
        app.schedules.change(f"of-{role}", every=90.0)
        app.schedules.pause(f"of-{role}")
        app.schedules.resume(f"of-{role}")
        app.schedules.delete(f"of-{role}")
        assert app.schedules.list(prefix="of-") == []
        app.close()
        plain.close()


def test_a_cancelling_command_is_recorded_by_those_who_may_write_the_audit(place: Place) -> None:
    told = {}
    for role, allow in (("operator", []), ("producer", ["cancel"])):
        sent = App(url=place.stream.url).send(place.topic, {"n": 1})
        done = CliRunner().invoke(
            cli, ["cancel", place.topic, sent.id, "--json"], env={"EMS_URL": place.as_role(role, allow)}
        )
        assert (done.exit_code, json.loads(done.stdout)["was"]) == (0, "waiting"), done.output
        told[role] = done.stderr
        rows = place.stream.rows("SELECT changed FROM ems_audit WHERE target LIKE %s", f"% {sent.id}")
        assert rows == ([(1,)] if role == "operator" else [])
    assert told["operator"] == "" and "Not recorded in the audit" in told["producer"]
    again = CliRunner().invoke(
        cli, ["cancel", place.topic, sent.id, "--json"], env={"EMS_URL": place.as_role("producer", ["cancel"])}
    )
    assert "Not recorded" not in again.stderr, "nothing was changed any more"


def test_those_who_are_allowed_to_create_do(place: Place) -> None:
    for role in ("producer", "worker"):
        app = App(role, url=place.as_role(role, ["auto-create"]))
        assert app.send(f"{place.topic}-{role}", {}).created
        app.close()
    with Database(place.as_role("sink", ["auto-create"])).session() as session:
        assert create_topic(session, f"{place.topic}-sink").partitions == 1


def test_those_who_may_not_create_are_told_first_what_is_missing(place: Place) -> None:
    mistyped = f"{place.topic}x"
    app = App("producer", url=place.as_role("producer"))
    with pytest.raises(
        AccessDenied, match=f"^there is no topic '{mistyped}' and this user may not create it; create it"
    ):
        app.send(mistyped, 1)
    app.close()
    worker = App("worker", url=place.as_role("worker"))
    with pytest.raises(AccessDenied, match=f"^topic '{place.topic}' has no group 'ax' and this user may not create it"):
        worker.consumer(place.topic, "ax").__enter__()
    worker.close()


def test_a_sink_writes_from_spark(place: Place) -> None:
    session = Database(place.as_role("sink")).thread_session()
    topic = get_topic(session, place.topic)
    assert topic is not None
    token, batch = os.urandom(16), staging.SinkBatch("job", 1)
    rows = [staging.StagedRow(topic.id, 0, NewMessage(new_uid(), None, None, b"{}", b"1")) for _ in range(3)]
    staging.begin_task(session, token)
    staging.stage(session, token, 0, rows)
    assert staging.commit(session, batch, [staging.Staged(token, 1)])
    staging.move(session, batch, "sink")
    staging.tidy(session, "sink", abandoned_s=0, stuck_s=0)
    assert place.stream.one("SELECT COUNT(*) FROM ems_message WHERE topic_id = %s AND `offset` > 0", topic.id) == 3
    session.close()


_LOOKS = (
    "topics list", "topics stale TOPIC", "groups list", "groups list TOPIC", "groups limit TOPIC a", "clients", "messages list TOPIC",
    "messages peek TOPIC a", "messages get MESSAGE", "messages contains TOPIC MESSAGE", "trace MESSAGE", "dead list", "dead list --topic TOPIC",
    "dead show DEAD", "schedules list", "readers list", "check --role reader",
)  # fmt: skip
_CHANGES = (
    "dead requeue DEAD --yes", "topics create more", "topics change more --rule r", "groups create more g", "groups change more g --pause",
    "groups limit more g --rate 5/s", "groups reset TOPIC a --to latest --yes", "groups replay TOPIC a --all --yes",
    "topics purge TOPIC --yes", "alarms create lag --on lag", "alarms delete lag --yes",
    "topics delete more --yes --force", "send TOPIC {}",
)  # fmt: skip


def _ems(url: str, command: str) -> Result:
    return CliRunner().invoke(cli, command.split(), env={"EMS_URL": url})


def _filled(command: str, names: dict[str, str]) -> str:
    return " ".join(names.get(word, word) for word in command.split())


def _bury(place: Place) -> str:
    """The id of a message that is a dead letter of the group."""
    app = place.stream.app
    session = app.stream.database.thread_session()
    topic = get_topic(session, place.topic)
    assert topic is not None
    group = next(one for one in list_groups(session) if one.topic_id == topic.id)
    clients.register(session, ["c"], "p", "c", 60.0)
    sent = app.send(place.topic, "dead", partition=0)
    claim = claims.take_range(session, claims.Claimant(topic, group, "c", 10, 1 << 20, Decoder()), 0)
    assert claim
    dead = Failure(claim.hi, 1, Outcome.FAILED, "ValueError: x", None, "attempts", 0.1, error_type="ValueError")
    progress.flush(session, progress.Flush(claim, topic.id, claim.hi, 30.0, finished=True, failures=[dead]))
    clients.deregister(session, ["c"])
    return sent.id


def test_a_reader_looks_and_an_admin_changes(place: Place) -> None:
    reader, admin = place.as_role("reader"), place.as_role("admin")
    names = {
        "TOPIC": place.topic,
        "DEAD": _bury(place),
        "MESSAGE": place.stream.app.send(place.topic, 1, partition=0).id,
    }
    assert _ems(admin, f"topics change {place.topic} --max-message-bytes 200000").exit_code == 0  # as any server takes
    looks, changes = ([_filled(command, names) for command in all_] for all_ in (_LOOKS, _CHANGES))
    for command in looks:
        done = _ems(reader, command)
        assert done.exit_code == 0, (command, done.output)
    for command in changes:
        refused = _ems(reader, command)
        assert refused.exit_code == 1 and "command denied" in refused.output, (command, refused.output)
        done = _ems(admin, command)
        assert done.exit_code == 0, (command, done.output)


def test_a_viewer_sees_numbers_and_names_and_no_content(place: Place) -> None:
    """Every list works without bodies, headers and errors; whatever asks for them is refused by the server."""
    sent, dead = place.stream.app.send(place.topic, 1, partition=0), _bury(place)
    place.stream.app.send(place.topic, 2, countdown=3600)
    Admin(place.stream.app).alarms.create(place.topic, on="lag", webhook="https://example.org/secret")
    url = place.as_role("viewer")
    database = Database(url)
    admin, monitoring = Admin(database), Monitoring(database)
    assert [one.id for one in admin.dead.page(DeadFilter(place.topic)).rows] == [dead]
    assert [one.error_type for one in admin.dead.classes(DeadFilter(place.topic))] == ["ValueError"]
    assert sent.id in [one.id for one in admin.lists.messages(place.topic).rows]
    assert len(admin.lists.delayed(place.topic).rows) == 1
    (trace,) = monitoring.trace(dead, place.topic, details=False)
    (history,) = [one.history for one in trace.groups]
    assert history.dead is not None and (history.dead.error, [one.error for one in history.attempts]) == ("", [None])
    shown = _ems(url, f"trace {dead} --json")
    assert shown.exit_code == 0 and {"headers", "priority"}.isdisjoint(json.loads(shown.stdout)[0])
    assert place.topic in {one.topic.name for one in monitoring.lag(most=100)}
    for look in (admin.lists.retries, admin.lists.running, admin.schedules.list, admin.readers.list, monitoring.clients,
                 monitoring.leaders, monitoring.ranking, monitoring.series, monitoring.lag, admin.alarms.silences, Demands(database).list, lambda: admin.limits.get(place.topic, "a")):  # fmt: skip
        look()
    assert [one.rule.webhook for one in admin.alarms.list(addresses=False) if one.rule.name == place.topic] == [None]
    denied: list[Callable[[], object]] = [
        lambda: admin.dead.page(details=True), lambda: admin.lists.retries(place.topic, details=True), lambda: admin.lists.delayed(place.topic, details=True),
        lambda: monitoring.trace(dead), lambda: admin.messages.get(sent.id), lambda: admin.alarms.list(),
        lambda: admin.dead.requeue_all(place.topic), lambda: admin.change_group(place.topic, "a", paused=True),
    ]  # fmt: skip
    for call in denied:
        with pytest.raises(AccessDenied):
            call()
    database.thread_session().close()
    columns = place.stream.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE()"
    )
    content = [
        one
        for one in columns
        if one[1] in ("body", "headers", "error", "last_error", "traceback", "webhook", "command")
    ]
    assert len(content) > 12
    with connect(url) as user:
        for table, column in content:
            assert refused(user, f"SELECT `{column}` FROM {table}"), (table, column)


_OPERATES = (
    "dead list", "trace MESSAGE", "messages list TOPIC", "groups change TOPIC a --pause", "groups change TOPIC a --resume",
    "groups limit TOPIC a --rate 5/s", "groups skip TOPIC a --keep 0 --yes", "dead requeue DEAD --yes", "groups reset TOPIC a --to earliest --yes",
    "groups replay TOPIC a --all --yes", "groups reset TOPIC a --to latest --yes", "topics purge TOPIC --yes", "check --role operator",
    "alarms silence --for 1h --yes", "alarms silences",
)  # fmt: skip
_NOT_AN_OPERATORS = (
    "topics create more", "topics change TOPIC --rule r", "topics delete TOPIC --yes --force", "groups create TOPIC g", "groups delete TOPIC a --yes --force",
    "alarms create lag --on lag",
)  # fmt: skip


def test_an_operator_puts_things_right_and_makes_no_tables(place: Place) -> None:
    operator = place.as_role("operator")
    _bury(place)
    admin = Admin(Database(operator))
    assert admin.dead.delete_all(place.topic) == 1
    names = {"TOPIC": place.topic, "DEAD": _bury(place)}
    deleted = _bury(place)
    place.stream.rows("DELETE FROM ems_message WHERE uid = %s", uuid.UUID(deleted).bytes)
    assert admin.dead.requeue(admin.dead.find(deleted)) == 1, "its message is back in the stream"
    names["MESSAGE"] = place.stream.app.send(place.topic, 1, partition=0).id
    assert admin.cancel(place.topic, place.stream.app.send(place.topic, 2, countdown=3600).id)
    assert admin.cancel(place.topic, place.stream.app.send(place.topic, 2, partition=1).id)
    for command in _OPERATES:
        done = _ems(operator, _filled(command, names))
        assert done.exit_code == 0, (command, done.output)
    for command in _NOT_AN_OPERATORS:
        done = _ems(operator, _filled(command, names))
        assert done.exit_code != 0 and "denied" in done.output, (command, done.output)


def test_an_admin_creates_the_tables(server: Server) -> None:
    with fresh_database(server) as url, users(server, url) as make:
        done = _ems(make("admin"), "migrate")
        assert done.exit_code == 0 and "version" in done.output, done.output
        assert _ems(make("worker"), "topics list").exit_code == 0


def test_a_reader_may_be_allowed_to_hold_messages_and_nothing_else(
    place: Place,
) -> None:
    as_role = place.as_role
    place.send(3)
    with pytest.raises(AccessDenied):
        Admin(Database(as_role("reader"))).readers.hold(place.topic, "nightly", {0: 1})
    url = as_role("reader", ("hold",))
    reader = Admin(Database(url))
    reader.readers.hold(place.topic, "nightly", {0: 1})
    reader.readers.hold(place.topic, "nightly", {0: 2})
    assert [one.lags for one in reader.readers.holds(place.topic)] == [[2]]
    with pytest.raises(AccessDenied):
        reader.readers.release(place.topic, "nightly")
    with connect(url) as user:
        for table in ("ems_message", "ems_partition", "ems_topic", "ems_group", "ems_cursor"):
            assert refused(user, f"DELETE FROM {table} WHERE 1 = 0"), table
            assert refused(user, f"UPDATE {table} SET topic_id = 1 WHERE 1 = 0"), table
        assert refused(user, "DELETE FROM ems_hold WHERE 1 = 0")
    assert [one.name for one in Admin(Database(as_role("viewer"))).readers.holds(place.topic)] == ["nightly"]
    with pytest.raises(AccessDenied):
        Admin(Database(as_role("worker"))).readers.hold(place.topic, "nightly", {0: 1})
    assert Admin(Database(as_role("operator"))).readers.release(place.topic, "nightly") == 1


def test_a_beat_lets_retention_go_on_without_a_lost_hold(place: Place) -> None:
    place.send(3)
    Admin(place.stream.app).readers.hold(place.topic, "nightly", {0: 1}, hold_for_s=60)
    place.stream.rows("UPDATE ems_hold SET expires_at = NOW(6)")
    beat = Database(place.as_role("beat"))
    sweep_holds(beat.thread_session(), Settings())
    assert [one.lost for one in Admin(place.stream.app).readers.holds(place.topic)] == [True]
    beat.thread_session().close()


def test_a_beat_sets_rows_aside_that_a_producer_wrote_for_no_topic_or_partition(place: Place) -> None:
    topic_id = Admin(place.stream.app).topic(place.topic).id
    uid = "UNHEX(REPLACE(UUID(), '-', ''))"
    with connect(place.as_role("producer"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO ems_outbox VALUES (4000000000, NOW(6), 0, {uid}, NULL, NULL, '', '1', '', NOW(6), 0, DEFAULT)"
        )
        for topic, partition in ((4_000_000_000, 0), (topic_id, 99)):
            cursor.execute(
                "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, born_at) "
                f"VALUES (%s, %s, 1, {uid}, '', '1', NOW(6))",
                (topic, partition),
            )
    beat = Database(place.as_role("beat"))
    while clear_orphans(beat.thread_session(), Settings()) == 0.0:
        pass
    refused = Admin(place.stream.app).refused.list()
    assert sorted(one.topic for one in refused) == sorted(["(topic_id 4000000000)"] * 2 + [place.topic])
    assert orphans.find(beat.thread_session()).orphans == []
    beat.thread_session().close()
    Admin(place.stream.app).refused.delete()


def test_a_reader_reads_as_spark_does(place: Place) -> None:
    place.send(5)
    database = Database(place.as_role("reader"))
    session = database.thread_session()
    topic = get_topic(session, place.topic)
    assert topic is not None
    bounds = scan.list_bounds(session, topic.id)[0]
    offsets = OffsetRange(topic.id, bounds.partition, bounds.log_start, bounds.end)
    query = scan.Query("messages", ("offset", "value"))
    assert scan.fetch_rows(session, query, offsets).rows == tuple((n + 1, str(n).encode()) for n in range(5))
    assert scan.fetch_packed(session, query, offsets).texts == {"value": b"01234"}
    session.close()


def test_the_command_prints_them() -> None:
    def grants(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["grants", *arguments, "--database", "my_shop"], env={"EMS_URL": None})

    printed = grants("producer", "--user", "shop@10.0.%").output
    assert "INSERT ON `my_shop`.ems_message TO 'shop'@'10.0.%';" in printed
    assert "UPDATE ON `my_shop`.ems_topic" not in printed
    more = grants("producer", "--user", "s@h", "--allow", "auto-create").output
    assert "INSERT, UPDATE ON `my_shop`.ems_topic TO 's'@'h';" in more
    assert grants("admin", "--user", "s@h").output.endswith("ON `my\\_shop`.* TO 's'@'h';\n")
    assert json.loads(grants("admin", "--user", "s@h", "--json").output) == GRANTS.statements("admin", "my_shop", "s@h")
    wrong = grants("reader", "--user", "s@h", "--allow", "cancel")
    assert wrong.exit_code == 2 and "that is for producer, worker" in wrong.output


@pytest.mark.parametrize("account", ["shop", "a'@h", "a@h'; DROP USER x", "a@`h`", "a b@h", "a@h\\", "@h", "a@", "é@h"])
def test_names_that_need_quoting_are_refused(account: str) -> None:
    with pytest.raises(InvalidName, match="user@host"):
        GRANTS.statements("worker", "db", account)
    with pytest.raises(InvalidName, match="database"):
        GRANTS.statements("worker", account + "`", "u@h")


_WATCHERS = {"worker", "viewer", "reader", "operator", "admin"}
# Who must be able to run each command that only reads; whoever else is told which roles can.
_READS = {
    **dict.fromkeys(
        (
            *(
                "topics list",
                "groups list",
                "tasks list",
                "clients",
                "trace orders/0/1",
                "dead list",
                "dead list --by error",
                "top",
            ),
            *("servers list", "refused list", "schedules list", "readers list", "alarms list", "alarms silences"),
            *("flows list", "flows list --by name"),
        ),
        _WATCHERS,
    ),
    **dict.fromkeys(
        ("messages list orders", "messages peek orders workers", "messages get orders/0/20", "dead show orders/0/1"),
        _WATCHERS - {"viewer"},
    ),
    "audit": _WATCHERS - {"worker"},
}


def _lists(group: click.Group, before: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _lists(command, f"{before}{name} ")
        elif name == "list":
            yield before + name


def test_each_list_works_for_whoever_may_read_it_and_others_are_told_who_may(stream: Stream, as_role: MakeUser) -> None:
    assert {command.split()[0] for command in _lists(cli) if command != "pipeline list"} <= {
        command.split()[0] for command in _READS
    }
    with open_plain_stream(stream.url) as made:
        furnish(made)
        made.rows("INSERT INTO ems_publish (topic, body) VALUES ('ordres', '1')")
        ingest(made.session, Settings(), 10)
    for role in GRANTS.roles:
        url = as_role(role)
        for command, roles in _READS.items():
            done = CliRunner().invoke(cli, command.split(), env={"EMS_URL": url})
            said = (role, command, done.output, done.stderr)
            if role in roles:
                assert done.exit_code == 0 and done.output, said
            elif done.exit_code:
                assert done.exit_code == 1 and "Traceback" not in done.stderr, said
                _, named, those = done.stderr.partition("the roles that have this privilege: ")
                assert named and roles <= set(those.strip().split(", ")), said
    for command, left_out in (
        ("trace orders/0/1", "headers and errors"),
        ("tasks list", "headers and errors"),
        ("refused list", "errors"),
        ("alarms list", "receivers"),
    ):
        done = CliRunner().invoke(cli, command.split(), env={"EMS_URL": as_role("viewer")})
        assert f"Left out: {left_out}, which this database user may not read" in done.stderr
        full = CliRunner().invoke(cli, command.split(), env={"EMS_URL": as_role("admin")})
        assert "Left out" not in full.stderr and full.exit_code == 0
