"""The probes of ``ems worker --http``: what hangs, what has died and a server that is away are told apart."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import Program, kill

APP = "tests.process.apps.probed:app"


def ask(worker: Program, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{worker.http}/{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def wait_for(worker: Program, path: str, status: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = [{}]

    def answers() -> bool:
        code, found[0] = ask(worker, path)
        return code == status

    try:
        until(answers, 40, f"/{path} answers {status}")
    except AssertionError:
        raise AssertionError(f"/{path} does not answer {status} but {found[0]}; log:\n{worker.text()}") from None
    return found[0]


def health(worker: Program, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "emsworker", "health", *arguments, worker.http]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_probes_tell_what_hangs_what_died_and_a_server_that_is_away_apart(one_stream: Stream, tmp_path: Path) -> None:
    sender = Ems("caller", url=one_stream.url)
    one_stream.app = sender
    hold, hang = sender.task(name="hold", topic="holds")(print), sender.task(name="hang", topic="hangs")(print)
    worker = one_stream.worker(APP, threads=2, http="0", settings={"auto_create": 1})
    wait_for(worker, "startupz", 200)
    wait_for(worker, "readyz", 200)
    assert ask(worker, "livez")[0] == 200

    # The server does not answer: nothing that a restart of the worker would help.
    pid = one_stream.server.pid
    kill(pid, signal.SIGSTOP)
    try:
        (child,) = wait_for(worker, "readyz", 503)["children"]
        assert child["state"] == "away" and child["reason"]
        assert ask(worker, "livez")[0] == 200
        assert health(worker).stdout == "ok\n" and health(worker, "--ready").returncode == 1
    finally:
        kill(pid, signal.SIGCONT)
    wait_for(worker, "readyz", 200)

    # A handler hangs past its limit while another one lets the process not end yet.
    hold.delay()
    until(lambda: one_stream.record.events("holds"), 20, "it holds")
    hang.delay()
    (child,) = wait_for(worker, "livez", 503)["children"]
    assert child["state"] == "stalled" and "over its limit of 0.3 s" in child["reason"]
    (tmp_path / "let-go").touch()
    wait_for(worker, "livez", 200)
    wait_for(worker, "readyz", 200)

    # The only child dies, and no other can start.
    (tmp_path / "broken").touch()
    (child,) = ask(worker, "livez")[1]["children"]
    kill(child["pid"], signal.SIGKILL)
    until(lambda: "ended with exit code 2" in ask(worker, "livez")[1]["reason"], 40, "it cannot start")
    (child,) = wait_for(worker, "livez", 503)["children"]
    assert child["state"] == "crashed" and ask(worker, "readyz")[0] == 503
    done = health(worker)
    assert done.returncode == 1 and done.stderr.startswith("Error: http://127.0.0.1:") and "crashed" in done.stderr
    assert ask(worker, "startupz")[0] == 200, "it has started once"
    assert ask(worker, "scale/holds/workers")[1]["workers"] == 0
    assert worker.stop() == 0


_SILENT = r"the server 127\.0\.0\.1:\d+ has not answered for \d+ s, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.mark.slow
def test_a_server_that_hangs_is_logged_once_and_once_again_when_it_answers(one_stream: Stream) -> None:
    worker = one_stream.worker(processes=2, http="0", settings={"auto_create": 1})
    beat = one_stream.beat(http="0")
    wait_for(beat, "startupz", 200)
    wait_for(beat, "readyz", 200)
    kill(one_stream.server.pid, signal.SIGSTOP)
    try:
        for program in (worker, beat):
            until(lambda program=program: re.search(_SILENT, program.text()), 40, "it says that the server hangs")
        assert ask(beat, "readyz")[0] == 503 and "has not answered for" in ask(beat, "readyz")[1]["reason"]
        assert ask(beat, "livez")[0] == 200, "a restart would not help"
    finally:
        kill(one_stream.server.pid, signal.SIGCONT)
    for program in (worker, beat):
        until(lambda program=program: "answers again, after" in program.text(), 40, "it says that it answers again")
        assert len(re.findall(_SILENT, program.text())) == program.text().count("answers again, after") == 1
    wait_for(beat, "readyz", 200)
    assert health(beat, "--ready").stdout == "ok\n" and beat.stop() == 0 and worker.stop() == 0


def test_a_beat_counts_what_it_does(one_stream: Stream) -> None:
    beat = one_stream.beat(http="0")
    wait_for(beat, "readyz", 200)
    until(lambda: ask(beat, "readyz")[1]["leading"], 20, "it leads")
    one_stream.run("ALTER TABLE ems_schedule RENAME TO ems_schedule_away")
    try:

        def failures() -> float:
            return _metric(beat, 'ems_beat_failures_total{service="fire schedules"}')

        until(lambda: failures() > 0, 20, "the failures of a service are counted")
        until(
            lambda: "ems_schedule" in ask(beat, "readyz")[1]["failing"].get("fire schedules", ""), 20, "it says which"
        )
    finally:
        one_stream.run("ALTER TABLE ems_schedule_away RENAME TO ems_schedule")
    runs = _metric(beat, 'ems_beat_runs_total{service="recover claims"}')
    until(lambda: _metric(beat, 'ems_beat_runs_total{service="recover claims"}') > runs, 20, "the others go on")
    assert _metric(beat, "ems_beat_leading") == 1
    worker = one_stream.worker(http="0", settings={"auto_create": 1})
    assert _metric(worker, "ems_beat_leading") == 0, "the other one leads"
    assert ask(worker, "readyz")[1]["beat"] == {"ok": True, "reason": "", "leading": False, "failing": {}}
    assert _metric(worker, 'ems_worker_children{state="working"}') == 1


def _metric(program: Program, name: str) -> float:
    with urllib.request.urlopen(f"{program.http}/metrics", timeout=10) as answer:
        (line,) = [line for line in answer.read().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.rpartition(" ")[2])
