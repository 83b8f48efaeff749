"""Every command is started by its command line, on real data; those of ``ems pipeline`` in ``tests/spark``."""

import signal

import click
import pytest

from emsworker import Ems as App
from emsworker.cli.main import ems as root
from tests.cli.test_bounds import commands
from tests.support import rows as writing
from tests.support.commands import Ems
from tests.support.servers import connect

# In this order; what is in braces is the id of the first message.
STARTS = """
migrate
check
grants reader --user x@%
topics create fresh --partitions 2 --retention 7d --if-missing
topics list --exact
topics change fresh --rule r
topics stale t --limit 5
topics move t --to main
groups create t late --from end --max-attempts 3
groups change t late --pause
groups limit t late --rate 5/s
groups list t --partitions --exact
groups replay t late --from 1 --to 2 --yes
groups reset t late --to -1 --yes
groups skip t late --keep 1 --yes
groups delete t late --force --yes
tasks list t --within 10m
servers list
clients
top --once
messages list t --from 1 --newest --limit 2
messages get {}
messages peek t g --limit 1
messages contains t {}
trace {}
cancel t {}
dead list --topic t --by error
dead show t/0/2 --group g
dead requeue t/0/2 --yes
dead delete --all --topic t --yes
refused list --limit 3
refused retry --all
refused delete --all --yes
schedules list
readers list t
topics create news --kind broadcast
readers forget news --idle 1d --yes
alarms create slow --on lag --above 5 --topic t
alarms list
alarms test slow
alarms silence slow --for 1h
alarms silences
alarms unsilence 1
alarms delete slow --yes
monitoring export board
web password ada --access reader --password secret-secret
http token shop --role producer
http client js
audit --limit 3
send t 1 --key k --tag x --delay 1h
completion bash
topics purge t --yes
topics delete fresh --yes
local status
local env
local url
local stop
""".strip().splitlines()
NO_SERVER = {"local status", "local env", "local url"}
"""Those that fail where no local server runs."""
RUNNING = {"beat": (), "monitoring serve": ("0",)}
ELSEWHERE = {
    "worker": "test_worker.py", "health": "test_monitoring.py", "chaos break": "test_chaos.py",
    "chaos check": "test_chaos.py", "readers release": "test_commands.py",
    **{f"schedules {name}": "test_commands.py" for name in ("add", "change", "pause", "resume", "delete")},
    "tasks pause": "../store", "tasks resume": "../store",
    "local start": "../local", "local sql": "../local", "servers retire": "test_servers.py",
    **{f"flows {name}": "../flows" for name in ("list", "show", "cancel", "retry", "signal", "delete")},
}  # fmt: skip
"""Commands that need more than a stream, and the tests of their own, which start them."""


def test_every_command_is_started() -> None:
    """A command that nobody starts is an error."""
    found = {name for name, _ in commands(root) if not name.startswith("pipeline")}
    begun = {name for name in found for line in STARTS if f"{line} ".startswith(f"{name} ")} | {*RUNNING}
    assert found - begun == {*ELSEWHERE} | {"http", "web"} & found
    assert isinstance(root.get_command(click.Context(root), "pipeline"), click.Group)


def test_commands_start_and_come_to_their_end(ems: Ems, app: App, url: str) -> None:
    app.send_many("t", range(3))
    ems.ok("groups", "create", "t", "g")

    def run(statement: str, *values: object) -> None:
        with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)

    writing.add_dead(run, 1, 2)
    first = ems.ok("messages", "list", "t", "--json").json["messages"][0]["id"]
    wrong = {}
    for line in STARTS:
        done = ems(*line.format(first).split())
        if done.code != int(line in NO_SERVER) or "Traceback" in done.err:
            wrong[line] = done
    assert not wrong, "\n".join(f"{line} -> {done.code} {done.err}" for line, done in wrong.items())


@pytest.mark.parametrize("name", RUNNING)
def test_a_command_that_serves_starts_and_stops(ems: Ems, name: str) -> None:
    with ems.running(*name.split(), *RUNNING[name]) as command:
        command.wait_ready()
        assert command.stop(signal.SIGTERM) == 0, command.tell()
