"""``ems worker`` and ``ems beat`` as real processes."""

import json
import os
import signal
from pathlib import Path

import pytest

from emsworker import Ems as App
from emsworker.admin.monitoring import Monitoring
from tests.cli.test_commands import rows
from tests.support.commands import Ems, wait_for

TASKS = """
    from pathlib import Path
    from emsworker import Ems

    app = Ems("work")
    print("noise while importing")

    @app.task(name="write")
    def write(text):
        with Path("effects.txt").open("a") as file:
            file.write(f"{text} VERSION\\n")
"""


def effects(ems: Ems) -> list[str]:
    path = ems.folder / "effects.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_a_worker_says_that_it_is_ready_works_and_stops(ems: Ems, url: str, app: App) -> None:
    ems.write("work.py", TASKS)
    with ems.running("worker", "-A", "work", "-p", "2", "-t", "2", "--name", "me") as worker:
        worker.wait_ready()
        assert worker.out.read_text().count("Ready: ") == 1
        assert "work with 2 x 2 threads" in worker.out.read_text() and "default/workers" in worker.out.read_text()
        seen = ems.ok("clients", "--json").json
        assert [one["name"] for one in seen["clients"]] == ["me"] * 4
        wait_for(lambda: len(Monitoring(app).leaders()) == 1)
        ems.ok("send", "default", '["a"]', "--task", "write")
        wait_for(lambda: effects(ems) == ["a VERSION"], worker.tell)
        assert worker.stop() == 0
    assert rows(url, "SELECT COUNT(*) FROM ems_client") == [(0,)]
    assert rows(url, "SELECT COUNT(*) FROM ems_leader") == [(0,)]


@pytest.mark.parametrize("name", ["", "x" * 191])
def test_a_name_that_cannot_be_registered_is_wrong_usage(ems: Ems, name: str) -> None:
    ems.write("work.py", TASKS)
    done = ems("worker", "-A", "work", "-n", name)
    assert done.code == 2 and f"{len(name)} characters; write 1 to 190" in done.err


def test_no_beat_leads_nothing_and_beat_alone_leads(ems: Ems, url: str, app: App) -> None:
    ems.write("work.py", TASKS)
    with ems.running("worker", "-A", "work", "-p", "1", "--no-beat") as worker:
        worker.wait_ready()
        assert worker.stop(signal.SIGINT) == 0
    assert rows(url, "SELECT COUNT(*) FROM ems_leader") == [(0,)]
    with ems.running("beat") as beat:
        beat.wait_ready()
        wait_for(lambda: len(Monitoring(app).leaders()) == 1)
        assert beat.stop() == 0
    assert rows(url, "SELECT COUNT(*) FROM ems_leader") == [(0,)]


def test_no_password_on_any_command_line(ems: Ems, url: str) -> None:
    ems.write("work.py", TASKS)
    password = url.split(":")[2].split("@")[0]
    with ems.running("worker", "-A", "work", "-p", "1") as worker:
        worker.wait_ready()
        pid = worker.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert children
        for child in children:
            assert password not in Path(f"/proc/{child}/cmdline").read_text()
        assert password not in worker.tell()
        assert worker.stop() == 0


def test_the_apps_own_settings_count_and_options_win(ems: Ems, url: str, tmp_path: Path) -> None:
    ems.write(
        "own.py",
        f"from emsworker import Ems\napp = Ems('own', url={url!r}, processes=1, threads=3)\n@app.task\ndef f(): pass\n",
    )
    elsewhere = Ems({}, tmp_path)
    with elsewhere.running("worker", "-A", "own") as worker:
        worker.wait_ready()
        assert "own with 1 x 3 threads" in worker.out.read_text()
        assert worker.stop() == 0
    ems.write(
        "lost.py",
        "from emsworker import Ems\napp = Ems('lost', url='mysql://x:y@127.0.0.1:1/z')\n@app.task\ndef f(): pass\n",
    )
    with elsewhere.running("worker", "-A", "lost", "--url", url, "-p", "1") as worker:
        worker.wait_ready()
        assert worker.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["-A", ""], {}, "-A '': names no module"),
        (["-Q", "nix"], {}, "-Q names nix"),
        (["--groups", "nix"], {}, "--groups names nix"),
        ([], {"auto_create": "off"}, "`ems topics create default`"),
        ([], {"accept": "json,foo"}, "accept = 'foo': there is no such serializer here; known are json, msgpack,"),
        ([], {"serializer": "jsno"}, "serializer = 'jsno': there is no such serializer here"),
    ],
)
def test_what_children_refuse_is_told_once(ems: Ems, arguments: list[str], environ: dict[str, str], said: str) -> None:
    ems.write("work.py", TASKS)
    done = ems("worker", "-A", "work", "-p", "3", "--log-level", "error", *arguments, **environ)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1 and said in done.err, done
    assert "Ready" not in done.out


def test_a_missing_schema_ends_the_worker_before_children_start(database: str, tmp_path: Path) -> None:
    ems = Ems({"EMS_URL": database}, tmp_path)
    ems.write("work.py", TASKS)
    for command in (["worker", "-A", "work"], ["beat"]):
        done = ems(*command)
        assert (done.code, len(done.err.splitlines())) == (1, 1), done
        assert "`ems migrate`" in done.err


def test_a_side_thread_that_dies_stops_its_process(ems: Ems, redis_url: str) -> None:
    """It listens for wake-ups, and is no Runnable: it died with a traceback, and the process went on without it."""
    ems.write("deaf.py", f"    import sys\n    sys.modules['redis'] = None\n{TASKS}")
    with ems.running("--redis-url", redis_url, "worker", "-A", "deaf", "-p", "1", "-t", "1") as worker:
        wait_for(
            lambda: worker.err.read_text().count("thread ems-wakeups died") >= 2, worker.tell
        )  # the next one's too
        assert worker.stop() == 0, worker.tell()


def test_reload_runs_the_new_code_and_survives_a_syntax_error(ems: Ems, app: App) -> None:
    ems.write("work.py", TASKS)
    with ems.running("worker", "-A", "work", "-p", "1", "-t", "1", "--reload") as worker:
        worker.wait_ready()
        ems.ok("send", "default", '["a"]', "--task", "write")
        wait_for(lambda: effects(ems) == ["a VERSION"], worker.tell)

        ems.write("work.py", TASKS + "\n    def (:\n")
        wait_for(lambda: "Error: -A work" in worker.err.read_text(), worker.tell)
        assert worker.err.read_text().count("Error: -A work") == 1
        assert worker.process.poll() is None

        ems.write("work.py", TASKS.replace("VERSION", "NOISREV"))  # of the same size
        worker.wait_ready(times=2)
        ems.ok("send", "default", '["b"]', "--task", "write")
        wait_for(lambda: effects(ems) == ["a VERSION", "b NOISREV"], worker.tell)
        assert worker.stop() == 0


def test_sighup_restarts_the_children(ems: Ems) -> None:
    ems.write("work.py", TASKS)
    with ems.running("worker", "-A", "work", "-p", "2", "-t", "1") as worker:
        worker.wait_ready()
        before = worker.out.read_text()
        os.kill(worker.process.pid, signal.SIGHUP)
        worker.wait_ready(times=2)
        first, second = [line.split("processes ")[1] for line in worker.out.read_text().splitlines() if "Ready" in line]
        assert before and set(first.split(")")[0].split(", ")).isdisjoint(second.split(")")[0].split(", "))
        assert worker.stop() == 0


def test_json_is_json(ems: Ems) -> None:
    for command in (["topics", "list"], ["groups", "list"], ["clients"], ["dead", "list"], ["check"], ["migrate"]):
        json.loads(ems.ok(*command, "--json").out)


def test_what_a_handler_leaves_behind_does_not_hold_the_worker_up(ems: Ems) -> None:
    """A forked process keeps the pipes of the child that made it."""
    ems.write(
        "forks.py",
        """
        import os, signal, time
        from pathlib import Path
        from emsworker import Ems

        app = Ems("forks")

        @app.task(name="leave")
        def leave():
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            Path("pid.txt").write_text(str(pid))
        """,
    )
    with ems.running("worker", "-A", "forks", "-p", "1", "-t", "1") as worker:
        worker.wait_ready()
        ems.ok("send", "default", "[]", "--task", "leave")
        left = ems.folder / "pid.txt"
        wait_for(lambda: left.exists() and left.read_text(), worker.tell)
        try:
            assert worker.stop() == 0
            os.kill(int(left.read_text()), 0)  # it was there all the time
        finally:
            os.kill(int(left.read_text()), signal.SIGKILL)
