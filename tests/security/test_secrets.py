"""A password is nowhere to be seen: not in output, logs, errors, tracebacks, command lines or representations."""

import os
import re
import signal
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from emsworker import Ems as App
from emsworker.alarms.receivers import DeliveryFailed, deliver
from emsworker.cli.main import ems as cli
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError
from emsworker.core.url import DatabaseUrl, redact, redact_url
from emsworker.store.engine.database import Database
from tests.support.commands import Ems, wait_for
from tests.support.servers import TestServers, chosen_flavors, connect, fresh_database
from tests.support.tables import migrate
from tests.support.webhooks import receiver
from tests.support.worker import children_of

MARK = "S3cr3tMark"
_APP = f"""
from emsworker import Ems
app = Ems("marked")

@app.task(name="fail", max_attempts=1)
def fail():
    local = "{MARK}"
    raise RuntimeError("cannot reach mysql://u:{MARK}@h/d or redis://:{MARK}@h?password={MARK}")
"""


@pytest.fixture
def marked(servers: TestServers) -> Iterator[str]:
    """The URL of a user whose password cannot be overlooked; on one server, because the other would say the same."""
    server = servers.database(chosen_flavors()[0])
    name = f"marked_{os.urandom(4).hex()}"
    with (
        fresh_database(server) as database,
        connect(server.admin_url, autocommit=True) as root,
        root.cursor() as cursor,
    ):
        schema = database.rsplit("/", 1)[1]
        for host in ("localhost", "127.0.0.1"):
            cursor.execute(f"CREATE USER '{name}'@'{host}' IDENTIFIED BY '{MARK}'")
            cursor.execute(f"GRANT ALL ON `{schema}`.* TO '{name}'@'{host}'")
        with Database(database).session() as session:
            migrate(session)
        yield re.sub(r"//.*@", f"//{name}:{MARK}@", database)
        for host in ("localhost", "127.0.0.1"):
            cursor.execute(f"DROP USER '{name}'@'{host}'")


_BAD = [
    f"mysql://u:{MARK}",
    f"mysql://u:{MARK}/db",
    f"mysql:/u:{MARK}@h/db",
    f"u:{MARK}@h/db",
    f"mysql://u:{MARK}@[h/db",
    f"mysql://u:{MARK}@h:port/db",
    f"mysql://u:{MARK}@h",
    f"mysql://u:a/{MARK}@h/db",
    f"mysql://u:a@{MARK}@h:x/db",
    f"mysql://u:a#{MARK}@h:x/db",
    f"mysql://u:a@{MARK}@127.0.0.1:1/db",
    f"mysql://u:a@b/{MARK}@127.0.0.1:1/db",
    f"mysql://u:a@{MARK}/b@127.0.0.1:1/db",
    f"mysql://u:1/{MARK}@127.0.0.1:1/db",
    f"mysql://u:a@b/c?{MARK}@127.0.0.1:1/db",
    f"mysql://u:a@b/c#{MARK}@127.0.0.1:1/db",
    f"redis://:a@{MARK}@127.0.0.1:1/0",
    f"redis://:a@{MARK}/b@127.0.0.1:1/0",
    f"http://u:{MARK}@h/db",
    f"mysql://u@h/?password={MARK}",
]


@pytest.mark.parametrize("url", _BAD)
def test_errors_about_malformed_addresses(url: str) -> None:
    for name in ("url", "redis_url"):
        for load in (
            lambda name=name: Settings.load(environ={f"EMS_{name.upper()}": url}),
            lambda name=name: Settings.load(environ={}, **{name: url}),
            lambda name=name: Settings.load(environ={}, **{f"{name}x": url}),
        ):
            with pytest.raises(ConfigError) as caught:
                load()
            assert MARK not in str(caught.value) + repr(caught.value)
    assert MARK not in redact_url(url)


def test_what_is_no_password_stays_readable() -> None:
    for text in ("mysql://h:3306/db", "mysql://u@h:3306/db", "redis://h:6379", "redis://h:6379?db=1", "orders"):
        assert redact_url(text) == redact(text) == text


def test_representations() -> None:
    url = f"mysql://u:{MARK}@127.0.0.1:1/db"
    app = App("a", url=url, redis_url=f"redis://:{MARK}@h", connect_timeout_s=0.1)
    database = Database(url)
    things = [app, app.settings, DatabaseUrl.parse(url), database, database.session(), app.settings.__class__]
    assert MARK not in "".join(f"{thing!r} {thing!s}" for thing in things)


def test_commands_say_nothing_of_it(marked: str, tmp_path: Path) -> None:
    """Those that work, with a wrong password, an unreachable server, a server that has no such user, and a bad URL."""
    redis = f"redis://:{MARK}@127.0.0.1:1/0"
    ems = Ems({}, tmp_path)
    ems.write("marked.py", _APP)
    wrong, away = marked.replace(MARK, f"{MARK}x"), re.sub(r":\d+/", ":1/", marked)
    commands = [
        (1, ("check", "--url", marked, "--redis-url", redis, "--traceback"), {}),
        (1, ("check", "--url", marked, "--redis-url", redis, "--json"), {}),
        (1, ("topics", "list", "--traceback"), {"url": wrong}),
        (2, ("worker", "-A", "marked", "-p", "1"), {"url": wrong, "connect_timeout_s": "1"}),
        (1, ("topics", "list", "--traceback", "--url", away), {"connect_timeout_s": "1"}),
        (2, ("check", "--traceback", "--url", f"mysql://u:{MARK}"), {}),
        (2, ("worker", "-A", "marked"), {"url": f"mysql:/u:{MARK}@h/d"}),
    ]
    for code, command, changes in commands:
        done = ems(*command, **changes)
        assert done.code in (code, 1), (command, done)
        assert done.out or done.err
        assert MARK not in done.out + done.err, command


def _looks(pid: int) -> str:
    parts = [f"/proc/{one}/{name}" for one in (pid, *children_of(pid)) for name in ("cmdline", "comm")]
    return "\n".join(Path(part).read_bytes().decode(errors="replace") for part in parts)


def test_a_worker_and_its_dead_letters_say_nothing_of_it(marked: str, tmp_path: Path) -> None:
    """Nor their command lines, even where the address was given on one, nor what is kept of a handler's error."""
    ems = Ems({"EMS_URL": marked.replace(MARK, "unused")}, tmp_path)
    ems.write("marked.py", _APP)
    away = f"redis://:{MARK}@127.0.0.1:1/0"
    command = (
        "worker",
        "-A",
        "marked",
        "-p",
        "1",
        "-t",
        "1",
        "--log-level",
        "debug",
        "--url",
        marked,
        "--redis-url",
        away,
    )
    with ems.running(*command) as worker:
        worker.wait_ready()
        assert "--url" in _looks(worker.process.pid), "these are the command lines"
        assert MARK not in _looks(worker.process.pid)
        wait_for(lambda: "Redis is unavailable" in worker.tell(), worker.tell)
        ems.ok("send", "--task", "fail", "default", "[]", "--url", marked)
        found = wait_for(lambda: ems.ok("dead", "list", "--json", "--url", marked).json["dead_letters"], worker.tell)
        place = f"{found[0]['topic']}/{found[0]['partition']}/{found[0]['offset']}"
        shown = ems.ok("dead", "show", place, "--url", marked)
        assert "cannot reach" in shown.out and MARK not in shown.out + shown.err + str(found)
        assert worker.stop(signal.SIGTERM) == 0
        assert MARK not in worker.tell()
    with connect(marked) as sql, sql.cursor() as cursor:
        cursor.execute("SELECT error FROM ems_dead UNION SELECT error FROM ems_attempt")
        assert MARK not in str(cursor.fetchall())


def test_a_beat_says_nothing_of_it(marked: str, tmp_path: Path) -> None:
    ems = Ems({}, tmp_path)
    with ems.running("beat", "--log-level", "debug", "--url", marked) as beat:
        wait_for(lambda: "leads" in beat.tell(), beat.tell)
        assert "--url" in _looks(beat.process.pid) and MARK not in _looks(beat.process.pid)
        assert beat.stop(signal.SIGTERM) == 0
        assert MARK not in beat.tell()


def test_alarms_say_nothing_of_where_they_go(marked: str) -> None:
    """A webhook's address may hold a password, which its receiver gets as it should be given; nobody else sees it."""

    def ems(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["alarms", *arguments], env={"EMS_URL": marked})

    with receiver() as web:
        address = web.url.replace("//", f"//u:{MARK}@").rstrip("/") + f"/hook?token={MARK}"
        assert ems("create", "secret", "--on", "lag", "--webhook", address).exit_code == 0
        for command in (("list",), ("list", "--json"), ("test", "secret"), ("test", "secret", "--json")):
            done = ems(*command)
            assert done.exit_code == 0 and MARK not in done.output, command
        assert web.events == [("secret", "test")] * 2
        assert web.authorizations == ["Basic " + b64encode(f"u:{MARK}".encode()).decode()] * 2
        web.answers += [500] * 9
        refused = ems("test", "secret")
        assert refused.exit_code == 1 and "500" in refused.output and MARK not in refused.output
    gone = ems("test", "secret", "--json")
    assert gone.exit_code == 1 and "could not be reached" in gone.output and MARK not in gone.output
    for wrong in (f"http://u:{MARK}@[h", f"http://u:{MARK}@h:port/", f"ftp://u:{MARK}@h"):
        refused = ems("create", "wrong", "--on", "lag", "--webhook", wrong)
        assert refused.exit_code == 2 and "webhook" in refused.output and MARK not in refused.output


def test_what_a_program_of_an_alarm_says_is_redacted(tmp_path: Path) -> None:
    program = tmp_path / "tell"
    program.write_text(f"#!/bin/sh\necho cannot reach mysql://u:{MARK}@h/d >&2; exit 3\n")
    program.chmod(0o700)
    with pytest.raises(DeliveryFailed, match=r"ended with 3: cannot reach mysql://u:\*\*\*@h/d"):
        deliver("command", str(program), "{}", {str(program)})


def test_a_message_about_a_url_is_not_hidden_with_its_password() -> None:
    for url in ("mysql://", "mysql://h", f"mysql://u:{MARK}@", f"mysql://u:{MARK}@/"):
        with pytest.raises(ConfigError) as refused:
            Settings.load(environ={"EMS_URL": url})
        said = redact(redact(str(refused.value)))  # of a process, and of what starts it
        assert "names no database" in said and MARK not in said, said
    for open_ in (f"'mysql://u:{MARK}@h': gone", f"mysql://u:***@h mysql://u:{MARK}@h", f"\"mysql://'u':{MARK}@h\""):
        assert MARK not in redact(open_), open_
