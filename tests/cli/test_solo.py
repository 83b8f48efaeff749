"""``ems worker --solo``: handlers in the main thread of one process, on a terminal, with a debugger."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import rows
from tests.support.commands import Ems, wait_for
from tests.support.terminal import terminal

TASKS = """
    import asyncio
    import threading
    from pathlib import Path
    from emsworker import Ems

    app = Ems("work", lease_s=2, lease_margin_s=0.5, renew_s=0.5, timeout_s=1, beat_s=0.2)

    def note(text):
        with Path("effects.txt").open("a") as file:
            file.write(f"{text} {threading.current_thread().name}\\n")

    @app.task(name="look", soft_time_limit_s=0.3, hard_time_limit_s=0.5)
    def look(number):
        breakpoint()
        note(number)

    @app.task(name="wait")
    async def wait(number):
        await asyncio.sleep(0.01)
        note(number)

    @app.task(name="keyed", topic="in-order", order="key")
    def keyed(number):
        note(number)
"""
# A process with a terminal of its own gets SIGINT for Ctrl-C.
CONTROL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "emsworker", *sys.argv[1:]])
"""
PROGRAM = (sys.executable, "-c", CONTROL)


def effects(ems: Ems) -> list[str]:
    path = ems.folder / "effects.txt"
    return path.read_text().splitlines() if path.exists() else []


def renewed_at(url: str) -> list[tuple[object, ...]]:
    return rows(url, "SELECT client_id, renewed_at FROM ems_client")


def age_s(url: str) -> float:
    """For how many seconds the claim of the message in the debugger has been there, by the server's clock."""
    sql = "SELECT TIMESTAMPDIFF(MICROSECOND, claimed_at, NOW(6)) / 1e6 FROM ems_claim WHERE state = 'start'"
    return float(next(iter(rows(url, sql)), [0.0])[0])


def test_a_message_is_looked_at_for_as_long_as_it_takes(ems: Ems, url: str) -> None:
    """Also while all threads are stopped, as by a debugger, and a beat looks for lost claims."""
    ems.write("work.py", TASKS)
    with ems.running("beat") as beat, terminal(ems, "worker", "-A", "work", "--solo", program=PROGRAM) as solo:
        beat.wait_ready()
        solo.wait("Ready: work alone in process")
        ems.ok("send", "default", "[1]", "--task", "look")
        solo.wait("(Pdb)")
        solo.press("number\n")
        solo.wait("1", "(Pdb)")
        os.kill(solo.process.pid, signal.SIGSTOP)
        wait_for(lambda: age_s(url) > 5, lambda: renewed_at(url))  # longer than a lease, and than all limits
        os.kill(solo.process.pid, signal.SIGCONT)
        solo.press("c\n")
        wait_for(lambda: effects(ems) == ["1 MainThread"], lambda: solo.text)
        wait_for(lambda: age_s(url) == 0.0, lambda: solo.text)
        assert rows(url, "SELECT COUNT(*) FROM ems_attempt") == [(0,)]
        assert "run elsewhere" not in solo.text and "recovered a claim" not in beat.tell()
        solo.process.terminate()
        assert solo.end() == 0
    assert renewed_at(url) == []


def test_ctrl_c_in_a_debugger_gives_the_message_back_and_kill_9_does_too(ems: Ems, url: str) -> None:
    ems.write("work.py", TASKS)
    with terminal(ems, "worker", "-A", "work", "--solo", program=PROGRAM) as solo:
        before = solo.mode()
        solo.wait("Ready: ")
        ems.ok("send", "default", "[1]", "--task", "look")
        solo.wait("(Pdb)")
        solo.press("\x03")
        assert solo.end() == 0, solo.text
        assert solo.mode() == before
    assert renewed_at(url) == [] and rows(url, "SELECT COUNT(*) FROM ems_leader") == [(0,)]
    with terminal(ems, "worker", "-A", "work", "--solo", program=PROGRAM) as solo:
        solo.wait("(Pdb)")
        solo.process.kill()
        wait_for(lambda: renewed_at(url) == [], lambda: renewed_at(url))  # the renewer ends the lease
    with terminal(ems, "worker", "-A", "work", "--solo", program=PROGRAM, PYTHONBREAKPOINT="0") as solo:
        wait_for(lambda: effects(ems) == ["1 MainThread"], lambda: solo.text)
        solo.press("\x03")  # nothing runs
        assert solo.end() == 0, solo.text
    assert rows(url, "SELECT COUNT(*) FROM ems_attempt WHERE outcome <> 'orphaned'") == [(0,)]


def test_every_kind_of_handler_runs_in_the_main_thread(ems: Ems) -> None:
    ems.write("work.py", TASKS)
    with ems.running("worker", "-A", "work", "--solo") as solo:
        solo.wait_ready()
        for number in (1, 2):
            ems.ok("send", "default", f"[{number}]", "--task", "wait")
            ems.ok("send", "in-order", f"[{number + 2}]", "--task", "keyed", "--key", "a")
        wait_for(lambda: sorted(effects(ems)) == [f"{n} MainThread" for n in (1, 2, 3, 4)], solo.tell)
        assert solo.stop(signal.SIGINT) == 0


def test_a_change_starts_it_anew_in_the_same_process(ems: Ems) -> None:
    ems.write("work.py", TASKS)
    with ems.running("worker", "-A", "work", "--solo", "--reload") as solo:
        solo.wait_ready()
        ems.write("work.py", "def (")
        wait_for(lambda: "Waiting for the next change." in solo.err.read_text(), solo.tell)
        ems.write("work.py", TASKS.replace("note(number)", "note(f'new {number}')"))
        solo.wait_ready(2)
        ready = [line for line in solo.out.read_text().splitlines() if line.startswith("Ready: ")]
        assert all(f"in process {solo.process.pid} " in line for line in ready), ready
        ems.ok("send", "default", "[1]", "--task", "wait")
        wait_for(lambda: effects(ems) == ["new 1 MainThread"], solo.tell)
        assert renewers_of(solo.process.pid) == 1
        assert solo.stop() == 0


def renewers_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum("emsworker.worker.renewer" in Path(f"/proc/{child}/cmdline").read_text() for child in children)


@pytest.mark.parametrize("option", ["--processes", "--threads", "--max-tasks-per-child"])
def test_what_means_nothing_with_it_is_refused(bare: Ems, option: str) -> None:
    done = bare("worker", "-A", "work", "--solo", option, "2")
    assert done.code == 2 and f"{option} means nothing with --solo" in done.err
