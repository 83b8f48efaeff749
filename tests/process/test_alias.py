"""PyMySQL under MySQLdb's name: ``pymysql.err`` is another module then, and errors must be understood all the same."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emsworker.store.engine.database import Database
from emsworker.store.inspect.snapshot import kill_connection, list_connections
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import ROOT

_SENDER = Path(__file__).parent / "apps" / "alias_sender.py"


def _sender(stream: Stream, when: str, count: int, start: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(_SENDER), when, str(count), str(start)],
        cwd=ROOT,
        env={
            **os.environ,
            "EMS_URL": stream.url,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_two_processes_send_while_connections_are_killed(stream: Stream, when: str) -> None:
    """Each meets offsets that the other has taken, conflicts, and connections that die."""
    count = 300
    stream.app.send("alias", {"n": -1}, partition=0)
    senders = [_sender(stream, when, count, start) for start in (0, count)]
    try:
        for one in senders:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        for one in senders:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        with Database(stream.url).session() as session:
            for _ in range(10):
                for number in list_connections(session):
                    kill_connection(session, number)
                until(lambda: list_connections(session) or any(one.poll() is not None for one in senders), 20, "back")
        until(lambda: all(one.poll() is not None for one in senders), 60, "they have ended")
    finally:
        for one in senders:
            one.send_signal(signal.SIGKILL)
    assert [one.wait(5) for one in senders] == [0, 0]
    bodies = sorted(row[0] for row in stream.rows("SELECT body FROM ems_message WHERE kind = 'message'"))
    assert bodies == sorted(b'{"n":%d}' % n for n in range(-1, 2 * count))


def test_a_worker_under_the_alias_outlives_killed_connections_and_deadlocks(stream: Stream, tmp_path: Path) -> None:
    (tmp_path / "aliased.py").write_text(
        "import pymysql\npymysql.install_as_MySQLdb()\nimport MySQLdb.converters\n"
        "from tests.process.apps.misbehaving import app\n"
    )
    total = 20
    stream.run("INSERT INTO account VALUES (1, 0), (2, 0)")
    stream.send("swallow", [{"n": n, "more": True} for n in range(total)])
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])}
    worker = stream.worker("aliased:app", topics=["swallow"], threads=2, environ=path)
    children = worker.children()
    with Database(stream.url).session() as session:
        for number in list_connections(session):
            kill_connection(session, number)
    until(lambda: stream.one("SELECT COUNT(*) FROM effect") == total, 60, "all have run")
    stream.wait_settled()
    assert stream.record.events("caught", code=1213), "there were deadlocks"
    assert sorted(row[0] for row in stream.rows("SELECT n FROM effect")) == list(range(total))
    assert worker.children() == children, "no process was lost"
    assert worker.stop() == 0
