"""Commands on several servers: they ask each, find a topic's own, and say what is where."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from emsworker import Ems
from emsworker.local import LocalDatabase
from tests.support.servers import TestServers, chosen_flavors
from tests.support.several import Several, several_databases
from tests.support.worker import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def several(servers: TestServers) -> Iterator[Several]:
    server: LocalDatabase = servers.database(chosen_flavors()[0])
    with several_databases(server, "main", "east") as several:
        app = Ems(url=several.url, servers=several.setting(east="orders.*"))
        app.send("orders.new", 1)
        app.send("mail", 2)
        app.stream_of("orders.new").group(app.broker.topic("orders.new"), "billing")
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


def test_a_server_that_is_away_hides_no_other(run: Run, several: Several) -> None:
    away = f"{several.setting(east='orders.*')} west=mysql://nobody@127.0.0.1:1/x west.*"
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
