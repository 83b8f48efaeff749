"""The commands on real servers: their effects, their JSON, their errors."""

import errno
import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems as App
from emsworker.admin import Admin
from emsworker.admin.audit import name_of_system_user
from emsworker.core.errors import StoreUnavailable
from emsworker.core.model import HandlerRow
from emsworker.local import LocalDatabase as Server
from emsworker.local.binaries import find_programs
from emsworker.store.engine.database import Database
from emsworker.tasks.periodic import declare_schedules
from tests.support import rows as writing
from tests.support.commands import Ems, environment, wait_for
from tests.support.servers import connect


def rows(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def execute(url: str, *statements: str) -> None:
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


# -- the database ------------------------------------------------------------------------------------------------------


def test_migrate_is_harmless_when_repeated(database: str, tmp_path: Path) -> None:
    ems = Ems({"EMS_URL": database}, tmp_path)
    missing = ems("topics", "list")
    assert (missing.code, len(missing.errors)) == (1, 1)
    assert "`ems migrate`" in missing.err
    assert ems.ok("migrate", "--json").json["applied"][0] == 1
    assert ems.ok("migrate", "--json").json["applied"] == []
    assert "already" in ems.ok("migrate").out
    assert ems.ok("topics", "list", "--json").json == []


def test_a_wrong_url_is_one_line(bare: Ems) -> None:
    urls = ("mysql://u:geheim@127.0.0.1:1/x", "mysql://u:geheim@no-such-host.invalid/x")
    lines = [(*command, "--url", url) for url in urls for command in (["topics", "list"], ["migrate"], ["beat"])]
    with ThreadPoolExecutor(len(lines)) as pool:  # each tries for some seconds
        for done in pool.map(lambda line: bare(*line), lines):
            assert (done.code, len(done.err.splitlines())) == (1, 1), done
            assert "geheim" not in done.err and "--url or EMS_URL" in done.err


def test_a_wrong_password_is_one_line(bare: Ems, server: Server) -> None:
    url = server.url.replace("ems:", "ems:wrong-", 1)
    bare.write("tasks.py", "from emsworker import Ems\napp = Ems('x')\n@app.task\ndef f(): pass\n")
    for command, code in ((["topics", "list"], 1), (["worker", "-A", "tasks"], 2)):
        done = bare(*command, url=url)
        assert (done.code, len(done.err.splitlines())) == (code, 1), done
        assert "MySQL refused" in done.err and "wrong-" not in done.err


def test_a_missing_database_is_wrong_usage(bare: Ems, server: Server) -> None:
    done = bare("topics", "list", url=server.url.removesuffix("/ems") + "/ems_missing")
    assert done.code == 2
    assert "CREATE DATABASE" in done.err


# -- topics and groups -------------------------------------------------------------------------------------------------


def test_topics_live_and_die(ems: Ems, url: str) -> None:
    made = ems.ok("topics", "create", "orders", "--partitions", "3", "--retention", "7d", "--json").json
    assert made == {
        "topic": "orders",
        "kind": "cluster",
        "partitions": 3,
        "rule": "rw",
        "max_message_bytes": 4 << 20,
        "retention_s": 604800,
        "keep_done_s": None,
        "age_wins": False,
        "priorities": 1,
        "archive_first": False,
    }
    again = ems("topics", "create", "orders")
    assert again.code == 1 and "exists already" in again.err
    assert ems.ok("topics", "create", "orders", "--if-missing", "--json").json["partitions"] == 3
    changed = ems.ok("topics", "change", "orders", "--partitions", "5", "--rule", "w", "--keep-forever", "--json").json
    assert (changed["partitions"], changed["rule"], changed["retention_s"]) == (5, "w", None)
    refused = ems("topics", "change", "orders", "--age-wins")
    assert refused.code == 2 and "needs a retention" in refused.err
    assert rows(url, "SELECT COUNT(*) FROM ems_partition") == [(5,)]
    listed = ems.ok("topics", "list", "--json").json
    assert [(one["topic"], one["messages"], one["bytes"]) for one in listed] == [("orders", 0, 0)]
    assert ems.ok("topics", "list").out.split()[:2] == ["TOPIC", "KIND"]
    assert ems("topics", "delete", "orders").code == 2  # nobody to ask
    ems.ok("topics", "delete", "orders", "--yes")
    assert ems.ok("topics", "list", "--json").json == []


def test_wrong_topic_settings_are_refused_all_at_once(ems: Ems, url: str) -> None:
    done = ems("topics", "create", "t", "--partitions", "0", "--max-message-bytes", "0")
    assert done.code == 2 and len(done.errors) == 2, done
    assert ems("topics", "create", "a b").code == 2
    assert ems("topics", "create", "t", "--retention", "soon").code == 2
    assert rows(url, "SELECT * FROM ems_topic") == []
    ems.ok("topics", "create", "t", "--partitions", "2")
    assert "never taken away" in ems("topics", "change", "t", "--partitions", "1").err
    assert ems("topics", "change", "t").code == 2
    assert ems("topics", "change", "nix", "--rule", "r").code == 1


def test_a_groups_filter_is_shown_and_changed(ems: Ems) -> None:
    ems.ok("topics", "create", "sifted")
    options = ("--tag", "b", "--tag", "a", "--header", "region=e=u")
    made = ems.ok("groups", "create", "sifted", "some", *options, "--json").json
    assert made["filter"] == "tag a or b, header region=e=u"
    assert ems.ok("groups", "change", "sifted", "some", "--pause", "--json").json["filter"] == made["filter"]
    assert [one["filter"] for one in ems.ok("groups", "list", "sifted", "--json").json] == [made["filter"]]
    assert ems.ok("groups", "change", "sifted", "some", "--no-filter", "--json").json["filter"] == "all messages"
    for wrong in (("--header", "region"), ("--no-filter", "--tag", "a")):
        refused = ems("groups", "change", "sifted", "some", *wrong)
        assert refused.code == 2 and wrong[0] in refused.err


def test_the_list_of_groups_tells_their_order(ems: Ems) -> None:
    ems.ok("topics", "create", "ordered")
    ems.ok("groups", "create", "ordered", "a", "--order", "key")
    heading, row = (line.split() for line in ems.ok("groups", "list", "ordered").out.splitlines()[:2])
    assert "ORDER" in heading and "key" in row


def test_a_groups_limits_are_shown_and_changed(ems: Ems) -> None:
    ems.ok("topics", "create", "slow")
    ems.ok("groups", "create", "slow", "g")
    limit = ("groups", "limit", "slow", "g")
    assert ems.ok(*limit, "--json").json == {
        "topic": "slow",
        "group": "g",
        "rate": None,
        "max_running": None,
        "max_running_per_key": None,
        "running": 0,
    }
    assert ems.ok(*limit, "--rate", "30/m", "--json").json["rate"] == "30/m"
    both = ems.ok(*limit, "--max-running", "4", "--json").json
    assert (both["rate"], both["max_running"]) == ("30/m", 4), "what is not named stays"
    assert ems.ok(*limit, "--no-rate", "--json").json["rate"] is None
    wrong = ems(*limit, "--rate", "30/d")
    assert wrong.code == 2 and "'30/d' is not a rate; write it like 100/s, 30/m or 5/h" in wrong.err
    assert ems(*limit, "--max-running", "0").code == 2
    each = ems.ok(*limit, "--max-running-per-key", "2", "--json").json
    assert (each["max_running_per_key"], each["max_running"]) == (2, 4)
    assert ems.ok(*limit, "--no-max-running-per-key", "--json").json["max_running_per_key"] is None
    assert ems(*limit, "--rate", "1/s", "--no-rate").code == 2
    assert "no group 'h'" in ems("groups", "limit", "slow", "h").err
    ems.ok("groups", "delete", "slow", "g", "--yes")
    ems.ok("groups", "create", "slow", "g")
    assert ems.ok(*limit, "--json").json["max_running"] is None, "deleted with its group"


def test_errors_name_options_and_not_arguments_of_functions(ems: Ems) -> None:
    wrong = ems("tasks", "list", "--within", "5s")
    assert (wrong.code, wrong.errors) == (2, ["Error: --within = 5s: must lie between 10m and 1d"])


def test_a_call_that_no_worker_knows_is_told(ems: Ems, app: App) -> None:
    app.send("orders", 1)
    group = app.stream.group(app.broker.topic("orders"), "workers")
    app.stream.declare_handlers(group, [HandlerRow("shop.add", "retry", None, None)])
    assert ems.ok("send", "orders", "[1]", "--task", "shop.add").err == ""
    told = ems.ok("send", "orders", "[1]", "--task", "shop.ad").err
    assert told == "No worker of topic 'orders' has started with task 'shop.ad'.\n"
    told = ems.ok("send", "letters", "[1]", "--task", "shop.add").err
    assert told == "No worker of topic 'letters' has started with task 'shop.add'; it is run on topic 'orders'.\n"


def test_groups_live_and_die(ems: Ems, url: str, app: App) -> None:
    app.send_many("orders", range(10))
    made = ems.ok("groups", "create", "orders", "mail", "--ladder", "1s 2s", "--timeout", "5m", "--json").json
    assert (made["ladder"], made["timeout_s"], made["max_attempts"], made["paused"]) == ("1s 2s", 300, 16, False)
    assert "already" in ems("groups", "create", "orders", "mail").err
    ems.ok("groups", "create", "orders", "mail", "--if-missing")
    ems.ok("groups", "create", "orders", "late", "--from", "end", max_attempts="3")
    listed = {one["group"]: one for one in ems.ok("groups", "list", "orders", "--json").json}
    assert (listed["mail"]["lag"], listed["late"]["lag"], listed["late"]["max_attempts"]) == (10, 0, 3)
    assert listed["mail"]["partitions"][0]["last_offset"] == 10
    assert listed["mail"]["oldest_s"] > 0 and listed["late"]["oldest_s"] is None
    assert ems.ok("groups", "change", "orders", "mail", "--pause", "--json").json["paused"] is True
    assert ems.ok("groups", "change", "orders", "mail", "--resume", "--json").json["paused"] is False
    assert ems.ok("groups", "change", "orders", "mail", "--ladder", "7s", "--json").json["ladder"] == "7s"
    assert ems("groups", "change", "orders", "mail", "--ladder", "7 parsecs").code == 2
    assert "LAST OFFSET" in ems.ok("groups", "list", "--partitions").out
    planned = ems.ok("groups", "reset", "orders", "mail", "--to", "-3", "--dry-run", "--json").json
    assert planned == [{"partition": 0, "cursor": 1, "to": 8, "skipped": 7, "again": 0}]
    assert ems("groups", "reset", "orders", "mail", "--to", "-3").code == 2  # nobody to ask
    assert ems.ok("groups", "reset", "orders", "mail", "--to", "-3", "--yes", "--json").json == planned
    assert rows(url, "SELECT next_offset FROM ems_cursor ORDER BY 1") == [(8,), (11,)]
    wrong = ems("groups", "reset", "orders", "mail", "--to", "12", "--yes")
    assert wrong.code == 2 and "has 1 to 11" in wrong.err
    assert ems("groups", "list", "nix").code == 1
    assert ems("groups", "delete", "orders", "nix", "--yes").code == 1
    ems.ok("groups", "delete", "orders", "mail", "--yes")
    assert rows(url, "SELECT name FROM ems_group") == [("late",)]
    assert rows(url, "SELECT COUNT(*) FROM ems_cursor") == [(1,)]


@pytest.mark.parametrize("kind", ["start", "waiting", "retry"])
def test_a_group_in_use_is_deleted_only_by_force(ems: Ems, url: str, app: App, kind: str) -> None:
    app.send("orders", 1)
    ems.ok("groups", "create", "orders", "mail")
    if kind == "retry":
        writing.add_retry(partial(rows, url), 1, 1)
    else:
        writing.add_claim(partial(rows, url), 1, 1, 1, state=kind)
    for arguments in (["groups", "delete", "orders", "mail"], ["topics", "delete", "orders"]):
        done = ems(*arguments, "--yes")
        assert done.code == 1 and "; --force deletes it all the same)" in done.err, done
    assert rows(url, "SELECT (SELECT COUNT(*) FROM ems_group), (SELECT COUNT(*) FROM ems_cursor)") == [(1, 1)]
    ems.ok("topics", "delete", "orders", "--yes", "--force")
    for table in ("topic", "partition", "message", "group", "cursor", "claim", "retry"):
        assert rows(url, f"SELECT COUNT(*) FROM ems_{table}") == [(0,)], table


def test_clients_and_leaders(ems: Ems, stream: Database) -> None:
    from emsworker.store.cluster import clients

    assert ems.ok("clients", "--json").json == {"clients": [], "leaders": []}
    stream.call(lambda s: clients.register(s, ["ip-1-u-1"], "p", "host", 30))
    stream.call(lambda s: clients.register(s, ["ip-1-u-2"], "p", "host", 0))
    stream.call(lambda s: clients.try_to_lead(s, "beat", "me", 30))
    found = ems.ok("clients", "--json").json
    assert [(one["client"], one["lease"], one["claims"]) for one in found["clients"]] == [
        ("ip-1-u-1", "live", 0),
        ("ip-1-u-2", "expired", 0),
    ]
    assert [(one["service"], one["leader"]) for one in found["leaders"]] == [("beat", "me")]
    assert "ip-1-u-1" in ems.ok("clients").out


# -- sending -----------------------------------------------------------------------------------------------------------


def test_send(ems: Ems, url: str, tmp_path: Path) -> None:
    options = ["--key", "k", "--tag", "t", "--header", "a=b=c", "--json"]
    receipt = ems.ok("send", "orders", '{"n": 1}', *options).json
    assert (receipt["topic"], receipt["partition"], receipt["offset"], receipt["created"]) == ("orders", 0, 1, True)
    (tmp_path / "body.json").write_text("[1]")
    ems.ok("send", "orders", "@body.json")
    ems.ok("send", "orders", "-", stdin='"x"')
    ems.ok("send", "orders", "plain words", "--text")
    ems.ok("send", "orders", "[2, 3]", "--task", "shop.add")
    ems.ok("send", "orders", '{"x": 2}', "--task", "shop.add")
    sent = rows(url, "SELECT `key`, tag, headers, body FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")
    assert [row[3] for row in sent] == [b'{"n":1}', b"[1]", b"x", b"plain words", b"[[2,3],{}]", b'[[],{"x":2}]']
    assert sent[0][:2] == (b"k", b"t") and json.loads(bytes(sent[0][2])) == {"a": "b=c"}  # type: ignore[call-overload]
    assert json.loads(bytes(sent[4][2])) == {"ems-task": "shop.add"}  # type: ignore[call-overload]


def test_send_takes_the_options_of_a_message(ems: Ems, url: str) -> None:
    ems.ok("topics", "create", "orders", "--partitions", "3")
    uid = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"
    receipt = ems.ok("send", "orders", "1", "--uid", uid, "--partition", "2", "--json").json
    assert (receipt["id"], receipt["partition"], receipt["created"]) == (uid, 2, True)
    assert "there already" in ems.ok("send", "orders", "1", "--uid", uid).out
    ems.ok("send", "orders", "[]", "--task", "shop.add", "--expires", "1h", "--partition", "0")
    lines = ("--lines", "--task", "shop.add", "--expires", "2033-01-01T12:00", "--partition", "0")
    ems.ok("send", "orders", "-", *lines, stdin="[1]\n[2]\n")
    headers = [json.loads(row[0]) for row in rows(url, "SELECT headers FROM ems_message WHERE `partition` = 0")]
    assert {one["ems-task"] for one in headers} == {"shop.add"} and headers[0]["ems-expires"].endswith("+00:00")
    assert [one["ems-expires"] for one in headers[1:]] == ["2033-01-01T12:00:00+00:00"] * 2
    assert "when it is due" in ems.ok("send", "orders", "1", "--eta", "2033-01-01T13:00+01:00").out
    ems.ok("send", "orders", "1", "--delay", "10m")
    due = rows(
        url, "SELECT due_at, TIMESTAMPDIFF(SECOND, NOW(6), due_at) BETWEEN 500 AND 600 FROM ems_outbox ORDER BY 1 DESC"
    )
    assert str(due[0][0]) == "2033-01-01 12:00:00" and due[1][1] == 1
    first, again = (ems.ok("send", "orders", "1", "--dedup-key", "k", "--json").json for _ in range(2))
    assert (first["created"], again["created"], again["id"]) == (True, False, first["id"])
    for wrong, said in (
        (["--delay", "5m", "--eta", "2033-01-01"], "--delay 5m and --eta 2033-01-01T00:00:00+00:00: give only one"),
        (["--delay", "soon"], "soon"),
        (["--eta", "2033"], "is not a time"),
        (["--expires", "never"], "neither"),
        (["--uid", "x"], "not a message id"),
        (["--partition", "3"], "does not exist"),
        (["--dedup-window", "5m"], "--dedup-key"),
        (["--lines", "--uid", uid], "many"),
    ):
        done = ems("send", "orders", "-", *wrong, stdin="1")
        assert done.code == 2 and said in done.err, done


def test_priorities(ems: Ems) -> None:
    ems.ok("topics", "create", "plain")
    refused = ems("send", "plain", "1", "--priority", "7")
    assert (refused.code, len(refused.err.splitlines())) == (1, 1) and "topics change plain" in refused.err
    assert ems.ok("topics", "change", "plain", "--priorities", "10", "--json").json["priorities"] == 10
    receipt = ems.ok("send", "plain", "1", "--priority", "7", "--json").json
    assert receipt["partition"] == 7000
    assert ems.ok("trace", receipt["id"], "--json").json[0]["priority"] == 7
    (listed,) = ems.ok("messages", "list", "plain", "--json").json["messages"]
    assert (listed["id"], listed["partition"], listed["priority"]) == (receipt["id"], 7000, 7)
    assert ems("send", "plain", "1", "--priority", "10").code == 2
    assert "10 keeps all" in ems("topics", "change", "plain", "--priorities", "2").err


def test_send_lines(ems: Ems, url: str, tmp_path: Path) -> None:
    text = "".join(f'{{"n": {number}}}\n' for number in range(1201))
    (tmp_path / "many.jsonl").write_text(text)
    assert ems.ok("send", "t", "@many.jsonl", "--lines", "--json").json == {"topic": "t", "sent": 1201}
    assert ems.ok("send", "t", "-", "--lines", stdin="1\n\n2").out == "Sent 2 messages to t.\n"
    assert rows(url, "SELECT COUNT(*), COUNT(DISTINCT body) FROM ems_message WHERE `offset` > 0") == [(1203, 1203)]
    bad = ems("send", "t", "-", "--lines", stdin="1\n" * 500 + "{\n")
    assert bad.code == 2 and "Line 501 is not JSON" in bad.err and "500 messages" in bad.err


def test_progress_is_shown_on_a_terminal_only(ems: Ems, tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text("1\n" * 600)
    command = ["send", "t", "@many.jsonl", "--lines", "--json"]
    assert ems.ok(*command).err == ""
    reader, terminal = os.openpty()
    environ = environment(ems.environ)
    done = subprocess.run(
        [sys.executable, "-m", "emsworker", *command],
        env=environ,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    assert json.loads(done.stdout) == {"topic": "t", "sent": 600}  # the bar is on stderr
    assert b"Sending to t" in os.read(reader, 65536)
    os.close(reader)


def test_bad_sends_write_nothing(ems: Ems, url: str) -> None:
    cases = [
        (["t", "no json"], 2, "--text"),
        (["t", "5", "--task", "f"], 2, "not a list of arguments"),
        (["t", "1", "--header", "x"], 2, "NAME=VALUE"),
        (["t", "1", "--header", "ems-task=x"], 2, "reserved"),
        (["t", "@missing"], 2, "cannot be read"),
        (["t", "1", "--lines"], 2, "--lines"),
        (["t", "NaN"], 2, "no number NaN"),
        (["t", "[1e999]"], 2, "no number 1e999"),
        (["t", "[4]", "--task", ""], 2, "names no task"),
        (["t", "4", "--dedup-key", ""], 2, "is no key"),
        (["t", "4", "--eta", "9999-12-31T23:59"], 2, "eta = 9999-12-31T23:59:00+00:00: it lies outside"),
        (["a b", "1"], 2, "valid name"),
    ]
    for arguments, code, said in cases:
        done = ems("send", *arguments)
        assert done.code == code and said in done.err, done
    unknown = ems("send", "nix", "1", auto_create="off")
    assert unknown.code == 1 and "`ems topics create nix`" in unknown.err and len(unknown.errors) == 1
    ems.ok("topics", "create", "small", "--max-message-bytes", "3")
    assert "over the limit" in ems("send", "small", "12345").err
    ems.ok("topics", "change", "small", "--rule", "r")
    assert "rule" in ems("send", "small", "1").err
    assert rows(url, "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == [(0,)]


def test_tables_that_are_missing_or_foreign_are_told_by_name(ems: Ems, url: str) -> None:
    def told() -> list[tuple[str, str]]:
        checked = ems("check", "--json")
        assert checked.code == 1 and "Traceback" not in checked.err
        return [(one["name"], one["value"]) for one in checked.json if one["severity"] == "error"]

    with connect(url, autocommit=True) as sql, sql.cursor() as cursor:
        cursor.execute("DROP TABLE ems_alarm")
        cursor.execute("ALTER TABLE ems_retry DROP COLUMN last_error")
        assert told() == [("table", "ems_alarm is missing"), ("table", "ems_retry")]
        refused = ems("migrate")
        assert refused.code == 1 and len(refused.errors) == 1 and "ems_retry has no column last_error" in refused.err
        cursor.execute("DROP TABLE ems_retry")
        assert "Put back, empty: ems_retry, ems_alarm" in ems.ok("migrate").out
        assert ems.ok("migrate", "--json").json["restored"] == []
        assert ems("check").code == 0
        cursor.execute("DROP TABLE ems_extension_version")
        assert "Put back, empty: ems_extension_version" in ems.ok("migrate").out
        cursor.execute("RENAME TABLE ems_schema_version TO kept")
        cursor.execute("CREATE TABLE ems_schema_version (id INT)")
        assert [name for name, _ in told()] == ["schema version"]
        refused = ems("migrate")
        assert refused.code == 1 and len(refused.errors) == 1 and "ems_schema_version has no columns" in refused.err
        cursor.execute("DROP TABLE ems_schema_version")
        cursor.execute("RENAME TABLE kept TO ems_schema_version")


def test_cancel_and_purge(ems: Ems, url: str) -> None:
    sent = ems.ok("send", "t", "1", "--json").json
    shown = ems.ok("cancel", "t", sent["id"], "--json").json
    assert shown == {"topic": "t", "id": sent["id"], "was": "waiting"}
    told = ems.ok("trace", sent["id"], "--json").json[0]
    actor = name_of_system_user()
    assert (told["kind"], told["cancelled_by"]) == ("cancelled", actor) and "@" in actor
    assert ems.ok("cancel", "t", sent["id"], "--json").json["was"] == "cancelled before"  # changes and records nothing
    later = ems.ok("send", "t", "2", "--delay", "1h", "--json").json["id"]
    assert ems.ok("cancel", "t", later).err == ""
    assert ems.ok("trace", later, "--json").json[0]["cancelled_by"] == actor
    audit = ems.ok("audit", "--json").json
    assert [(one["actor"], one["action"], one["target"], one["changed"]) for one in audit] == [
        (actor, "cancel message", f"t {id_}", 1) for id_ in (later, sent["id"])
    ]
    missing = ems("cancel", "t", "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70")
    assert (missing.code, len(missing.errors)) == (1, 1)
    assert ems("cancel", "t", "x").code == 2
    for _ in range(3):
        ems.ok("send", "t", "1")
    counts = {"topic": "t", "messages": 3, "delayed": 0, "retries": 0}
    assert ems.ok("topics", "purge", "t", "--dry-run", "--json").json == counts | {"dry_run": True}
    assert ems.ok("topics", "purge", "t", "--yes", "--json").json == counts | {"dry_run": False}
    assert rows(url, "SELECT COUNT(*) FROM ems_message WHERE kind = 'message'") == [(0,)]
    assert ems.ok("topics", "stale", "t", "--json").json == []


# -- ems check ---------------------------------------------------------------------------------------------------------


def findings(done: object) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["severity"], one["value"]) for one in done.json}  # type: ignore[attr-defined]


def test_variables_that_are_no_settings_stop_nothing(ems: Ems) -> None:
    services = {"EMS_PORT": "tcp://10.0.0.7:80", "EMS_MONITORING_SERVICE_HOST": "10.0.0.8"}
    bothered = Ems({**ems.environ, **services, "EMS_SERIALISER": "yaml"}, ems.folder)
    sent = bothered.ok("send", "orders", "{}")
    assert "EMS_SERIALISER is ignored" in sent.err and "10.0.0" not in sent.err
    checked = bothered("check", "--json").json
    assert [one["name"] for one in checked if one["name"].startswith("EMS_")] == ["EMS_SERIALISER"]


def test_check_is_content_with_good_surroundings(ems: Ems, redis_url: str) -> None:
    found = findings(ems.ok("check", "--json", redis_url=redis_url))
    assert {severity for severity, _ in found.values()} == {"ok"}, found
    assert {"settings", "connection", "server version", "schema version", "privileges", "clock", "redis"} <= set(found)
    assert "SEVERITY" in ems.ok("check").out


def test_check_names_every_problem_at_once(ems: Ems, url: str, server: Server) -> None:
    execute(url, "UPDATE ems_schema_version SET version = 99, oldest_program = 99 ORDER BY version DESC LIMIT 1")
    execute(url, "INSERT INTO ems_topic (name, max_message_bytes, created_at) VALUES ('huge', 1000000000, NOW(6))")
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        ((packet,),) = cursor.fetchall()
    execute(server.admin_url, "SET GLOBAL innodb_flush_log_at_trx_commit = 2, max_allowed_packet = 4194304")
    try:
        done = ems("check", "--json", threads="0", redis_url="redis://127.0.0.1:1")
    finally:
        execute(server.admin_url, f"SET GLOBAL innodb_flush_log_at_trx_commit = 1, max_allowed_packet = {packet}")
    assert done.code == 1
    errors = {name for name, (severity, _) in findings(done).items() if severity == "error"}
    wanted = {"threads", "innodb_flush_log_at_trx_commit", "schema version", "max_allowed_packet", "redis"}
    assert errors == wanted


def test_check_names_idle_timeouts_that_are_shorter_than_messages_may_run(ems: Ems, server: Server) -> None:
    ems.ok("topics", "create", "slow", "--retention", "7d")
    ems.ok("groups", "create", "slow", "g", "--timeout", "1h")
    ems.ok("groups", "create", "slow", "unlimited", "--timeout", "3650d")  # as those of Celery's queues are
    execute(server.admin_url, "SET GLOBAL wait_timeout = 1800")
    try:
        warned = [one for one in ems.ok("check", "--json").json if one["severity"] == "warning"]
    finally:
        execute(server.admin_url, "SET GLOBAL wait_timeout = 28800")
    assert [(one["name"], one["value"]) for one in warned] == [("wait_timeout", "30m")]
    for part in ("slow/g may run for 1h", "closed", "proxy"):
        assert part in warned[0]["fix"]


def test_check_of_a_server_that_is_away(bare: Ems) -> None:
    done = bare("check", "--json", url="mysql://u:geheim@127.0.0.1:1/x", connect_timeout_s="1")
    assert done.code == 1 and findings(done)["connection"][0] == "error" and "geheim" not in done.out


@pytest.mark.parametrize("migrated", [True, False])
def test_check_finds_missing_privileges(server: Server, database: str, tmp_path: Path, migrated: bool) -> None:
    if migrated:
        Ems({"EMS_URL": database}, tmp_path).ok("migrate")
    name = database.rsplit("/", 1)[1]
    user = f"{name[:20]}_r"
    execute(
        server.admin_url,
        f"CREATE USER '{user}'@'%' IDENTIFIED BY 'Secret-1'",
        f"GRANT SELECT, INSERT, ALTER ON `{name}`.* TO '{user}'@'%'",
        *([f"GRANT UPDATE ON `{name}`.ems_claim TO '{user}'@'%'"] if migrated else []),
    )
    try:
        limited = Ems({"EMS_URL": f"mysql://{user}:Secret-1@127.0.0.1:{server.port}/{name}"}, tmp_path)
        done = limited("check", "--json", "--role", "admin")
        said = {
            (one["severity"], one["value"].removesuffix(" is missing"))
            for one in done.json
            if "missing" in one["value"]
        }
        refused = limited("migrate") if not migrated else limited("send", "t", "1")
    finally:
        execute(server.admin_url, f"DROP USER '{user}'@'%'")
    assert done.code == 1
    assert {("error", "DELETE"), ("warning", "CREATE"), ("warning", "INDEX")} <= said
    assert not any(value.startswith(("SELECT", "INSERT", "ALTER")) for _, value in said), said
    if migrated:
        assert ("error", "UPDATE on ems_message") in said and ("error", "UPDATE on ems_claim") not in said
    else:
        assert ("error", "UPDATE") in said
    assert refused.code == 1 and "denied" in refused.err and len(refused.errors) == 1, refused


def test_whoever_is_refused_is_told_the_grants_of_his_role(ems: Ems, url: str) -> None:
    ems.write("emsapp.py", "from emsworker import Ems\n\napp = Ems()\napp.task(name='f')(print)\n")
    ems.write(
        "sends.py",
        "from emsworker import AccessDenied, Ems\ntry:\n    Ems().send('t', 1)\nexcept AccessDenied as error:\n    open('said', 'w').write(str(error))\n",
    )
    wrong = Ems({"EMS_URL": re.sub("//.*@", "//nobody:wrong@", url)}, ems.folder)
    wrong.python("sends.py")
    assert "`ems grants producer`" in (ems.folder / "said").read_text()
    assert "`ems grants producer`" in wrong("send", "t", "1").err
    assert "`ems grants worker`" in wrong("worker", "-A", "emsapp", "-p", "1").err
    assert "`ems grants beat`" in wrong("beat").err
    assert "`ems grants`" in wrong("topics", "list").err
    for report in ("lag", "latency", "deadletters", "topics"):
        assert "`ems grants reader`" in wrong("pipeline", report).err, report


def test_a_purged_topic_has_no_messages(ems: Ems, app: App) -> None:
    app.send_many("short", range(30))
    app.send_many("long", range(2600))
    told = {one["topic"]: one["messages"] for one in ems.ok("topics", "list", "--json").json}
    assert told == {"short": 30, "long": 2600}
    app.cancel(app.send("short", 1))
    ems.ok("groups", "create", "long", "g")
    assert ems.ok("topics", "purge", "long", "--yes", "--json").json["messages"] == 2600
    told = {one["topic"]: (one["messages"], one["bytes"]) for one in ems.ok("topics", "list", "--json").json}
    assert told["long"] == (0, 0) and told["short"][0] == 30
    app.send_many("long", range(2600))
    told = {one["topic"]: one["messages"] for one in ems.ok("topics", "list", "--json").json}
    assert 2300 < told["long"] < 2900, "estimated from a sample"


def test_claimed_is_what_a_live_client_holds(ems: Ems, app: App, url: str) -> None:
    app.send_many("t", range(100))
    ems.ok("groups", "create", "t", "g")
    client = "INSERT INTO ems_client (client_id, process_id, name, started_at, renewed_at, expires_at)"
    execute(
        url,
        f"{client} VALUES ('alive', 'p', 'n', NOW(6), NOW(6), NOW(6) + INTERVAL 1 HOUR)",
        f"{client} VALUES ('gone', 'p', 'n', NOW(6), NOW(6), NOW(6) - INTERVAL 1 SECOND)",
    )
    run, ((number,),) = partial(rows, url), rows(url, "SELECT id FROM ems_group")
    writing.add_claim(run, number, 1, 20, claim_id=7, acked_to=4, client_id="alive")
    writing.add_claim(run, number, 21, 30, claim_id=8, client_id="gone")
    writing.add_claim(run, number, 31, 33, claim_id=9, client_id="swept")
    writing.add_claim(run, number, 34, 35, claim_id=10, state="waiting")
    writing.set_cursor(run, 36)
    (group,) = ems.ok("groups", "list", "--json").json
    assert [group[name] for name in ("unclaimed", "claimed", "waiting", "lag")] == [65, 16, 15, 96]
    assert [group["partitions"][0][name] for name in ("claimed", "waiting")] == [16, 15]
    title, line = ems.ok("groups", "list").out.splitlines()
    assert dict(zip(title.split(), line.split(), strict=False))["CLAIMED"] == "16"


def test_one_of_something_is_told_as_one(ems: Ems, app: App) -> None:
    app.send("t", 1)
    assert "Looked at 1 offset." in ems.ok("messages", "list", "t").err
    assert "Looked at 0 offsets." in ems.ok("messages", "list", "t", "--from", "9").err
    ems.write("lines.txt", "1\n")
    assert "Sent 1 message to t." in ems.ok("send", "t", "@lines.txt", "--lines").out
    assert "Cancel 2 messages of" in ems("topics", "purge", "t").err
    assert "0 errors, " in ems.ok("check").err
    assert "1 error, " in ems("check", redis_url="redis://127.0.0.1:1").err


def test_probes_change_nothing(ems: Ems, url: str) -> None:
    before = rows(url, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() ORDER BY 1")
    ems.ok("check")
    after = rows(url, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() ORDER BY 1")
    assert before == after


# -- ems local ---------------------------------------------------------------------------------------------------------


def test_local_stream(bare: Ems, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bare("local", "url").code == 1
    assert bare("local", "status").code == 1
    try:
        assert "runs in" in bare.ok("local", "start").out
        assert bare.ok("local", "status", "--json").json["database"]["running"] is True
        assert "***" in bare.ok("local", "status").out
        done = bare.ok("topics", "create", "here", "--json")
        assert done.err == f"Using the local stream in {bare.folder / 'local'} (neither --url nor EMS_URL is set).\n"
        url = bare.ok("local", "url").out.strip()
        assert bare.ok("topics", "list", "--json", url=url).err == ""
        exported = bare.ok("local", "env", "--json").json
        assert exported == {"EMS_URL": url, "EMS_REDIS_URL": bare("local", "url", "--redis").out.strip() or None}
        shown = 'import os; print(os.environ["EMS_URL"], os.environ.get("EMS_REDIS_URL"))'
        script = f"{bare.ok('local', 'env').out}\n{shlex.quote(sys.executable)} -c '{shown}'"
        done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [url, str(exported["EMS_REDIS_URL"])]
        _use_sql(bare)
    finally:
        bare.ok("local", "stop")
    assert "`ems local start`" in bare("topics", "list").err
    monkeypatch.setenv("EMS_LOCAL_DIR", bare.environ["EMS_LOCAL_DIR"])
    with pytest.raises(StoreUnavailable, match="ems local start"):
        _ = App("x").stream.url  # its address is known, but nobody answers there


def _use_sql(bare: Ems) -> None:
    table = "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20)); INSERT INTO t VALUES (1, 'a\\tb'), (2, NULL);"
    assert (
        bare.ok("local", "sql", stdin=f"{table}\nSELECT * FROM t ORDER BY id;\n").out == "id\tname\n1\ta\\tb\n2\tNULL\n"
    )
    assert bare.ok("local", "sql", "-e", "SELECT 'ü' AS a; SELECT 2 AS b;", "--json").json == [
        {"columns": ["a"], "rows": [["ü"]]},
        {"columns": ["b"], "rows": [[2]]},
    ]
    assert bare.ok("local", "sql", "SELECT 3 AS c").out == "c\n3\n"
    assert bare("local", "sql", "SELECT 3", "-e", "SELECT 4").code == 2
    assert bare.ok("local", "sql", stdin="").out == ""
    wrong = bare("local", "sql", "-e", "SELECT 1; SELEC 2; SELECT 3")
    assert (wrong.code, wrong.out, len(wrong.err.splitlines())) == (1, "1\n1\n", 1) and "Error: 1064" in wrong.err
    _use_client(bare, "SELECT id + 40 FROM t WHERE id = 2;\n")


def _use_client(bare: Ems, statement: str) -> None:
    """At a terminal the installed client takes over; without one the error says what to install."""
    command = [sys.executable, "-m", "emsworker", "local", "sql"]
    environ = environment({**bare.environ, "TERM": "dumb"})
    ours, theirs = pty.openpty()
    said = b""

    def says(wanted: bytes) -> bool:
        nonlocal said
        if select.select([ours], [], [], 0)[0]:
            said += os.read(ours, 4096)
        return wanted in said

    client = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=bare.folder, start_new_session=True
    )
    try:
        if next(find_programs(("mariadb", "mysql")), None) is None:
            wait_for(lambda: says(b"apt-get install mariadb-client"), lambda: said)
            assert client.wait(60) == 1
        else:
            wait_for(lambda: says(b"[ems]>") or says(b"mysql>"), lambda: said)
            os.write(ours, statement.encode())
            wait_for(lambda: says(b" 42 |"), lambda: said)
            os.write(ours, b"\\q\n")
            wait_for(lambda: says(b"Bye"), lambda: said)
            assert client.wait(60) == 0
    finally:
        client.kill()
        client.wait()
        os.close(ours)
        os.close(theirs)


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_schedules_are_listed_and_deleted(ems: Ems, app: App) -> None:
    assert ems.ok("schedules", "list", "--json").json == []
    task = app.task(name="report")(print)
    app.periodic("0 9 * * mon-fri", timezone="Europe/Berlin")(task)
    declare_schedules(app.stream, app.settings, app.registry.schedules.values())
    (row,) = ems.ok("schedules", "list", "--json").json
    assert (row["name"], row["spec"], row["timezone"], row["last_at"]) == (
        "report", "0 9 * * mon-fri", "Europe/Berlin", None,
    )  # fmt: skip
    assert "Europe/Berlin" in ems.ok("schedules", "list").out
    assert ems("schedules", "delete", "report").code == 2, "nobody is there to be asked"
    assert ems.ok("schedules", "delete", "report", "--yes", "--json").json == {"deleted": "report"}
    gone = ems("schedules", "delete", "report", "--yes")
    assert gone.code == 1 and "`ems schedules list`" in gone.err


def test_schedules_are_made_at_run_time(ems: Ems, app: App) -> None:
    """By the name of a task that a worker has started with; each change has its row in the audit."""
    admin = Admin(app)
    admin.create_topic("jobs")
    group = admin.create_group("jobs", "workers")
    app.stream.declare_handlers(group, [HandlerRow("report", "retry", None, None)])
    more = ["--timezone", "Europe/Berlin", "--args", "[17]", "--tag", "c17", "--json"]
    row = ems.ok("schedules", "add", "customer-17", "report", "--cron", "0 9 * * *", *more).json
    assert (row["topic"], row["origin"], row["task"], row["paused"]) == ("jobs", "user", "report", False)
    assert (
        ems.ok("schedules", "add", "customer-17", "report", "--cron", "0 9 * * *", *more).json["next_at"]
        == row["next_at"]
    )
    ems.ok("schedules", "add", "customer-2", "report", "--every", "1h", "--kwargs", '{"id": 2}')
    assert ems.ok("schedules", "change", "customer-2", "--every", "2h", "--json").json["spec"] == "every 7200.0"
    assert ems.ok("schedules", "pause", "customer-2", "--json").json["paused"] is True
    assert [one["name"] for one in ems.ok("schedules", "list", "--tag", "c17", "--json").json] == ["customer-17"]
    page = ems.ok("schedules", "list", "--prefix", "customer", "--limit", "1", "--json")
    assert len(page.json) == 1 and "--after customer-17" in page.err
    assert ems.ok("schedules", "list", "--after", "customer-17", "--json").json[0]["paused"] is True
    assert ems.ok("schedules", "resume", "customer-2", "--json").json["paused"] is False
    for wrong in (
        ["add", "s", "reprot", "--every", "1h"], ["add", "s", "report", "--cron", "61 * * * *"], ["add", "s", "report"],
        ["add", "s", "report", "--every", "1h", "--timezone", "Mars/Base"], ["add", "s s", "report", "--every", "1h"],
        ["add", "s", "report", "--every", "1h", "--args", "17"], ["add", "s", "report", "--every", "1h", "--kwargs", "{"],
        ["add", "s", "report", "--every", "1h", "--topic", "other"], ["change", "customer-2"],
        ["change", "customer-2", "--every", "1h", "--cron", "* * * * *"],
    ):  # fmt: skip
        refused = ems("schedules", *wrong)
        assert (refused.code, len(refused.errors)) == (2, 1), (wrong, refused)
    assert ems("schedules", "pause", "gone").code == 1
    ems.ok("schedules", "delete", "customer-2", "--yes")
    actions = [one["action"] for one in ems.ok("audit", "--json").json]
    assert actions == [f"{what} schedule" for what in ("delete", "resume", "pause", "change", "add", "add", "add")]


# -- readers -----------------------------------------------------------------------------------------------------------


def test_readers_that_hold_messages_are_listed_and_released(ems: Ems, app: App) -> None:
    assert ems("readers", "list").err.strip() == "There are no readers."
    admin = Admin(app)
    admin.create_topic("t", partitions=2)
    app.send_many("t", range(5), partition=0)
    admin.readers.hold("t", "nightly", {0: 3, 1: 1}, hold_for_s=60)
    found = ems.ok("readers", "list", "t", "--json").json
    assert [
        (row["reader"], row["kind"], row["partition"], row["held_from"], row["next_offset"], row["lag"], row["state"])
        for row in found
    ] == [("nightly", "hold", 0, 3, 3, 3, "held"), ("nightly", "hold", 1, 1, 1, 0, "held")]
    assert all(0 <= row["age_s"] < 60 and row["expires_at"] for row in found)
    assert "nightly" in ems.ok("readers", "list").out
    execute(app.stream.url, "UPDATE ems_hold SET lost_at = NOW(6) WHERE `partition` = 1")
    assert [row["state"] for row in ems.ok("readers", "list", "--json").json] == ["held", "lost"]
    assert ems("readers", "release", "t", "nightly").code == 2, "nobody is there to be asked"
    done = ems.ok("readers", "release", "t", "nightly", "--yes", "--json").json
    assert done == {"topic": "t", "reader": "nightly", "released_partitions": 2}
    gone = ems("readers", "release", "t", "nightly", "--yes")
    assert gone.code == 1 and "no reader 'nightly' holds messages of topic 't'; `ems readers list`" in gone.err


def test_both_switches_of_a_flag_are_refused(ems: Ems) -> None:
    ems.ok("topics", "create", "t")
    ems.ok("groups", "create", "t", "g")
    for command in (("groups", "change", "t", "g", "--pause", "--resume"), ("topics", "change", "t")):
        switches = command[-2:] if "groups" in command else ("--age-wins", "--no-age-wins")
        done = ems(*command, *switches)
        assert done.code == 2 and f"Error: Give either {switches[0]} or {switches[1]}." in done.err, done
    assert ems.ok("groups", "change", "t", "g", "--pause", "--pause", "--json").json["paused"] is True
    assert ems.ok("groups", "change", "t", "g", "--max-attempts", "3", "--json").json["paused"] is True
    assert ems.ok("groups", "change", "t", "g", "--resume", "--json").json["paused"] is False


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_cannot_be_written_is_told_in_one_line(ems: Ems, buffered: bool) -> None:
    def run(arguments: str, redirection: str) -> tuple[int, str]:
        environ = environment({**ems.environ, **({} if buffered else {"PYTHONUNBUFFERED": "1"})})
        script = f"set -o pipefail; {shlex.quote(sys.executable)} -m emsworker {arguments} {redirection}"
        command = ["bash", "-c", script]
        done = subprocess.run(command, env=environ, cwd=ems.folder, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    for number in range(3):
        ems.ok("topics", "create", f"t{number}")
    full = "Error: the output cannot be written: No space left on device\n"
    for arguments in ("topics list", "grants worker --user ems@%", "--help", "topics --help", "completion bash"):
        assert run(arguments, ">/dev/full") == (1, full), arguments
        assert run(arguments, ">&-") == (0, ""), arguments
        assert run(arguments, "| true") == (0, ""), arguments
    assert run("topics list", "2>&-")[0] == 0
    assert run("messages list gone", "2>&1 >&- | true") in ((0, ""), (1, "")), "it has failed, or could not say so"
    with Path(ems.folder / "not a folder").open("w"):
        done = ems("local", "start", local_dir=str(ems.folder / "not a folder" / "local"))
    assert done.code == 1 and re.fullmatch(
        r"Error: the local stream cannot use the folder .*: .*; EMS_LOCAL_DIR names another one\n", done.err
    ), done


@pytest.mark.parametrize("command", [("topics", "list"), ("--help",)])
def test_ctrl_c_during_the_imports_is_no_traceback(ems: Ems, command: tuple[str, ...]) -> None:
    """The interrupt comes at the import of click, before click could tell it."""
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # also below a shell that ignores it
    ems.write("click.py", f"import os, signal\n\n{heard}\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = {"PYTHONPATH": f"{ems.folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-m", "emsworker", *command],
        env=environment({**ems.environ, **path}),
        cwd=ems.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "\nAborted!\n")


def test_a_connection_that_breaks_is_not_taken_for_the_end_of_a_pipe() -> None:
    from emsworker.cli.main import _output_failure

    assert _output_failure(BrokenPipeError(errno.EPIPE, "Broken pipe")) is None
