"""Commands on several servers: they ask each, find a topic's own, and say what is where."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from emsworker import Ems
from emsworker.core.ids import new_client_id
from emsworker.local import LocalDatabase
from emsworker.store.cluster import clients
from emsworker.store.engine.session import Session
from emsworker.store.topics import create_topic
from tests.support.servers import TestServers, chosen_flavors, connect, fresh_database
from tests.support.several import Several, several_databases
from tests.support.waiting import until
from tests.support.worker import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def several(servers: TestServers) -> Iterator[Several]:
    server: LocalDatabase = servers.database(chosen_flavors()[0])
    with several_databases(server, "main", "east") as several:
        app = Ems(url=several.url, servers=several.setting(east="orders.*"))
        app.send("orders.new", 1)
        app.send("mail", 2)
        app.streams.kept_by("orders.new").group(app.broker.topic("orders.new"), "billing")
        app.close()
        yield several


@pytest.fixture
def run(several: Several) -> Run:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
        own = {"EMS_URL": several.url, "EMS_SERVERS": several.setting(east="orders.*")}
        return subprocess.run(
            [sys.executable, "-m", "emsworker", *arguments],
            cwd=ROOT,
            env=kept | own | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_lists_ask_every_server(run: Run) -> None:
    listed = run("topics", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert {(one["server"], one["topic"]) for one in json.loads(listed.stdout)} == {
        ("main", "mail"),
        ("east", "orders.new"),
    }
    table = run("groups", "list")
    assert table.stdout.split()[:3] == ["SERVER", "TOPIC", "GROUP"] and "billing" in table.stdout
    only = run("topics", "list", "--json", "--server", "main")
    assert [one["topic"] for one in json.loads(only.stdout)] == ["mail"]
    assert run("topics", "list", "--server", "west").returncode == 2


def test_dead_letters_of_several_servers_are_named_together(run: Run, several: Several) -> None:
    app, ids = Ems(url=several.url, servers=several.setting(east="orders.*")), list[str]()
    for topic, group in (("mail", "senders"), ("orders.new", "billing")):
        with app.consumer(topic, group) as consumer:
            app.send(topic, 3)
            (message,) = consumer.fetch(wait=30)
            consumer.nack(message, dead=True)
            ids.append(message.id)
    app.close()
    nowhere = "00000000-0000-4000-8000-000000000000"
    done = run("dead", "requeue", ids[0], nowhere, ids[1])
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["main: Requeued 1 dead letter.", "east: Requeued 1 dead letter."]
    assert len(done.stderr.splitlines()) == 1 and f"no dead letter of {nowhere}" in done.stderr
    assert run("dead", "requeue", nowhere).returncode == 1


def test_servers_are_listed_with_what_is_on_them(run: Run, several: Several) -> None:
    listed = {one["server"]: one for one in json.loads(run("servers", "list", "--json").stdout)}
    assert [(name, one["topics"], one["groups"], one["lag"]) for name, one in listed.items()] == [
        ("main", 1, 0, 0),
        ("east", 1, 1, 1),
    ]
    assert all(one["reachable"] and one["topology"] == "alone" and not one["beat"] for one in listed.values())
    assert "@" not in listed["east"]["address"] and listed["east"]["address"].startswith("127.0.0.1:")
    only = run("servers", "list", "--server", "east")
    assert only.returncode == 0 and [line.split()[0] for line in only.stdout.splitlines()] == ["SERVER", "east"]
    away = run("servers", "list", EMS_SERVERS=_with_one_away(several), EMS_CONNECT_TIMEOUT_S="1")
    assert away.returncode == 1 and "Error: server west: " in away.stderr
    assert [line.split()[2] for line in away.stdout.splitlines()] == ["REACHABLE", "yes", "yes", "no"]


def test_every_list_says_on_which_server_a_thing_is(run: Run, several: Several) -> None:
    with _client(several, "main", "alpha"), _client(several, "east", "beta"):
        found = json.loads(run("clients", "--json").stdout)
        assert {(one["server"], one["clients"][0]["name"]) for one in found} == {("main", "alpha"), ("east", "beta")}
        table = [line.split() for line in run("clients").stdout.splitlines()]
        assert [row[0] for row in table if "alpha" in row or "beta" in row] == ["main", "east"]
        assert [row[:2] for row in table if "beat" in row] == [["main", "beat"], ["east", "beat"]]
    uid = _send(several, "orders.new")
    (traced,) = json.loads(run("trace", uid, "--json").stdout)
    assert (traced["server"], traced["groups"][0]["group"]) == ("east", "billing")
    assert run("trace", uid).stdout.startswith("server     east\n")
    got = json.loads(run("messages", "get", uid, "--json").stdout)
    assert [(one["server"], one["topic"]) for one in got] == [("east", "orders.new")]
    checked = json.loads(run("check", "--json").stdout)
    assert {one["server"] for one in checked if one["name"] == "connection"} == {"main", "east"}
    migrated = run("migrate")
    assert [line.partition(":")[0] for line in migrated.stdout.splitlines()] == ["main", "east"]


def test_top_shows_the_groups_of_every_server(run: Run, several: Several) -> None:
    app = Ems(url=several.url, servers=several.setting(east="orders.*"))
    app.streams.kept_by("mail").group(app.broker.topic("mail"), "senders")
    app.close()
    table = run("top")
    assert [line.split()[:3] for line in table.stdout.splitlines()] == [
        ["SERVER", "TOPIC", "GROUP"],
        ["main", "mail", "senders"],
        ["east", "orders.new", "billing"],
    ]
    away = run("top", "--json", EMS_SERVERS=_with_one_away(several), EMS_CONNECT_TIMEOUT_S="1")
    assert away.returncode == 1 and "Error: server west: " in away.stderr
    assert {one["server"] for one in json.loads(away.stdout)} == {"main", "east"}


def test_names_are_completed_from_every_server(run: Run, several: Several) -> None:
    def complete(*words: str, **variables: str) -> list[str]:
        line = {
            "COMP_WORDS": " ".join(["ems", *words]),
            "COMP_CWORD": str(len(words)),
            "_EMS_COMPLETE": "bash_complete",
        }
        return [one.partition(",")[2] for one in run(**line, **variables).stdout.splitlines()]

    assert complete("groups", "list", "") == ["mail", "orders.new"]
    assert complete("groups", "list", "--server", "east", "") == ["orders.new"]
    assert complete("groups", "list", "--server", "") == ["east", "main"]
    away = {"EMS_SERVERS": _with_one_away(several)}
    # A shell's Tab waits for 1.2 s at most: on a busy machine not everybody has answered by then.
    until(
        lambda: complete("groups", "list", "", **away) == ["mail", "orders.new"], 20, "the names of those that answer"
    )


def _with_one_away(several: Several) -> str:
    return f"{several.setting(east='orders.*')} west=mysql://nobody@127.0.0.1:1/x west.*"


def _send(several: Several, topic: str) -> str:
    app = Ems(url=several.url, servers=several.setting(east="orders.*"))
    try:
        return app.send(topic, 1).id
    finally:
        app.close()


@contextmanager
def _client(several: Several, server: str, name: str) -> Iterator[None]:
    """A worker's lease on a server, and a leader of its beat."""
    database = several.database(server)
    client = new_client_id("10.0.0.5")
    database.call(lambda session: clients.register(session, [client], "p", name, 300))
    database.call(lambda session: clients.try_to_lead(session, "beat", f"{name}-beat", 300))
    yield
    database.thread_session().close()


def test_a_server_that_is_away_hides_no_other(run: Run, several: Several) -> None:
    away = _with_one_away(several)
    listed = run("topics", "list", "--json", EMS_SERVERS=away, EMS_CONNECT_TIMEOUT_S="1")
    assert listed.returncode == 1 and "Error: server west: " in listed.stderr
    assert {one["topic"] for one in json.loads(listed.stdout)} == {"mail", "orders.new"}


def test_a_command_finds_the_server_of_its_topic(run: Run) -> None:
    assert run("groups", "create", "orders.new", "audit").returncode == 0
    found = run("topics", "change", "orders.new", "--retention", "1d", "--json")
    assert found.returncode == 0 and json.loads(found.stdout)["retention_s"] == 86400
    assert run("topics", "delete", "nowhere", "--yes").returncode == 1
    assert run("send", "orders.new", "3").returncode == 0
    assert run("top").returncode == 0


def test_a_topic_is_moved(run: Run, several: Several) -> None:
    moved = run("topics", "move", "mail", "--to", "east", "--json")
    assert moved.returncode == 0 and json.loads(moved.stdout) == {
        "topic": "mail",
        "from": ["main"],
        "to": "east",
        "groups": 0,
    }
    assert run("send", "mail", "4").returncode == 0
    listed = json.loads(run("topics", "list", "--json").stdout)
    assert {(one["server"], one["messages"]) for one in listed if one["topic"] == "mail"} == {("main", 1), ("east", 1)}
    assert run("topics", "move", "mail", "--to", "east").returncode == 0, "again: it goes on where it stopped"
    late = run("topics", "move", "orders.new", "--to", "main", "--timeout", "1s")
    assert late.returncode == 1 and "groups have messages left on 'east': billing 1" in late.stderr
    assert run("topics", "move", "mail", "--to", "nowhere").returncode == 2


def test_a_server_without_tables_is_reachable(run: Run, several: Several, servers: TestServers) -> None:
    with fresh_database(servers.database(chosen_flavors()[0])) as empty:
        listed = run("servers", "list", "--json", EMS_SERVERS=f"east={empty}")
    rows = {row["server"]: row for row in json.loads(listed.stdout)}
    assert listed.returncode == 1 and rows["east"]["reachable"] and rows["east"]["topics"] is None
    assert "no tables of EMS; run `ems migrate --server east`" in listed.stderr


def test_errors_about_another_server_name_it(run: Run, several: Several) -> None:
    url = urlsplit(several.urls["east"])
    wrong = f"mysql://{url.username}:wrong@{url.hostname}:{url.port}{url.path}"
    for command in ("topics", "list"), ("servers", "list"):
        found = run(*command, EMS_SERVERS=f"east={wrong}")
        assert found.returncode == 1 and "server 'east' in EMS_SERVERS" in found.stderr, found.stderr
        assert "of EMS_URL" not in found.stderr
    away = run("topics", "list", "--server", "east", EMS_SERVERS="east=mysql://127.0.0.1:1/ems")
    assert "(server 'east' in EMS_SERVERS)" in away.stderr and "EMS_URL" not in away.stderr


def test_one_stream_under_two_names_is_refused_before_anything_is_moved(run: Run, several: Several) -> None:
    again = {"EMS_SERVERS": f"east={several.url.replace('127.0.0.1', 'localhost')} orders.*"}
    uid = _send(several, "mail")
    wrong = "leads to the same stream as 'main'"
    for command in (
        ("topics", "move", "mail", "--to", "east"),
        ("beat",),
        ("worker", "-A", "tests.process.apps.quick:app", "--processes", "1"),
    ):
        done = run(*command, **again)
        assert done.returncode == 2 and wrong in done.stderr and "Traceback" not in done.stderr, done.stderr
    plain = {"EMS_SERVERS": again["EMS_SERVERS"].removesuffix(" orders.*")}
    done = run("servers", "retire", "east", **plain)
    assert done.returncode == 2 and wrong in done.stderr, done.stderr
    checked = run("check", "--server", "main", "--json", **again)
    found = [(row["name"], row["value"]) for row in json.loads(checked.stdout) if row["severity"] == "error"]
    assert checked.returncode == 1 and found == [("servers", "'east'")]
    assert run("trace", uid, EMS_SERVERS="").returncode == 0, "nothing was moved"


def test_the_check_names_pointers_without_a_server_and_tables_without_transactions(run: Run, several: Several) -> None:
    several.database("main").call(lambda session: create_topic(session, "lost", server="west"))
    with connect(several.url) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ems_leader ENGINE = MyISAM")
    checked = run("check", "--server", "main", "--json")
    found = {row["name"]: row for row in json.loads(checked.stdout) if row["severity"] == "error"}
    assert checked.returncode == 1 and set(found) == {"EMS_SERVERS", "engine"}, found
    assert found["EMS_SERVERS"]["value"] == "does not name 'west'" and "'lost'" in found["EMS_SERVERS"]["fix"]
    assert found["engine"]["value"] == "ems_leader is in MyISAM"


def test_a_move_names_the_servers_that_it_could_not_tell(run: Run, several: Several) -> None:
    moved = run("topics", "move", "mail", "--to", "east", EMS_SERVERS=_with_one_away(several))
    assert moved.returncode == 0 and "Away, and not told: west." in moved.stderr, moved.stderr


def test_a_server_is_retired(run: Run, several: Several) -> None:
    refused = run("servers", "retire", "east")
    assert refused.returncode == 2 and "topics are still created on 'east' by these patterns" in refused.stderr
    setting = {"EMS_SERVERS": several.setting()}
    planned = run("servers", "retire", "east", "--dry-run", **setting)
    assert planned.returncode == 0 and planned.stdout.splitlines()[1].split() == ["orders.new", "main"]
    late = run("servers", "retire", "east", "--timeout", "0s", **setting)
    assert late.returncode == 1, late.stdout
    assert late.stderr.splitlines()[-1] == (
        "Error: server east is not retired: group 'billing' of topic 'orders.new' has 1 message left on 'east'"
    )
    assert (
        run("groups", "reset", "orders.new", "billing", "--to", "latest", "--server", "east", "--yes").returncode == 0
    )
    with _client(several, "main", "alpha"):
        several.database("main").call(_know_east)
        known = run("servers", "retire", "east", "--json", **setting)
        assert known.returncode == 1 and "1 live process has 'east' in EMS_SERVERS: alpha (p)" in known.stderr
        assert json.loads(known.stdout)["topics"] == []
    several.database("main").call(lambda session: clients.delete_process(session, "p"))
    done = run("servers", "retire", "east", **setting)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Server east is retired: take it out of EMS_SERVERS, and switch it off.\n"
    assert run("send", "orders.new", "3", EMS_SERVERS="").returncode == 0
    assert {one["messages"] for one in json.loads(run("topics", "list", "--json", EMS_SERVERS="").stdout)} == {1}


def _know_east(session: Session) -> None:
    clients.register(session, [new_client_id("10.0.0.6")], "p", "alpha", 300, ["main", "east"])
