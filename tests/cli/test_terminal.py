"""The commands on a terminal: tables that fit, colors, and completion in the shell."""

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from emsworker.console.terminal import make_table
from emsworker.core.ids import new_client_id, short_client
from emsworker.local import LocalDatabase
from emsworker.spark import commands
from emsworker.spark.jobs.report import JobReport
from emsworker.spark.jobs.report import Table as ReportTable
from tests.support.commands import Ems, environment
from tests.support.machine import machine_s
from tests.support.roles import users
from tests.support.terminal import Terminal, terminal

TEXT = "the bank is away, and so is everybody who works there"


def drawn(width: int, row: dict[str, Any], *spare: str) -> list[str]:
    table, _ = make_table([row], list(row), spare, width)
    return printed(table, width)


def printed(what: RenderableType, width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(what)
    return text.getvalue().splitlines()


def test_a_table_folds_text_and_leaves_out_what_is_spare() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    row = {"client": new_client_id("10.0.0.5"), "error": f"\x1b[31m{TEXT}", "renewed_at": at, "lag": 1}
    wide, narrow = drawn(140, row), drawn(60, row, "renewed_at")
    assert len(wide) == 2 and "2026-01-31 12:00:00Z" in wide[1] and short_client(row["client"]) in wide[1]
    assert "\\x1b[31m" in wide[1], "a message cannot paint the terminal"
    assert "RENEWED" not in narrow[0] and max(map(len, narrow)) <= 60
    assert "".join(line[line.find("  ") :].strip() for line in narrow[1:]).count("bank") == 1 and len(narrow) > 2
    assert "".join(narrow).count(short_client(row["client"])) == 1, "what one copies is not broken"


def test_numbers_and_ids_are_whole_or_left_out_by_name() -> None:
    group = {"topic": "orders", "group": "mail", "lag": 4711, "dead": 13, "oldest_s": 1006.0, "paused": False}
    message = {"offset": 10**18, "id": "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70", "key": TEXT, "size": 12}
    texts = {"lag": "4711", "dead": "13", "oldest_s": "1006s", "id": message["id"], "offset": str(10**18), "size": "12"}
    for row in (group, message):
        for width in range(10, 120):
            _, hidden = make_table([row], list(row), [], width)
            lines = drawn(width, row)
            assert max(map(len, lines)) <= width
            for name in {*row} & {*texts} - {*hidden}:
                assert texts[name] in lines[1].split() or (name == "id" and width < 36), (width, lines)
            assert "id" not in hidden


def test_reports_of_the_pipeline_fit_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = JobReport("Dead", (ReportTable("errors", "Errors", ("error", "count", "share"), [(TEXT, 7, 0.12345)]),))
    monkeypatch.setattr("emsworker.spark.commands.draws_tables", lambda: True)
    monkeypatch.setattr("emsworker.console.output.draws_tables", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    commands._print_report(report)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Errors" and lines[2].endswith("7  0.123") and max(map(len, lines)) <= 40 < len(TEXT)


def test_tables_fit_the_terminal(ems: Ems, busy: str) -> None:
    with terminal(ems, "clients", columns=80) as screen:
        assert screen.end() == 0
        assert short_client(busy) in screen.text and busy not in screen.text
        assert max(map(len, screen.text.splitlines())) <= 80
        assert b"\x1b[32mlive" in screen.raw
    with terminal(ems, "clients", "--wide", columns=80, NO_COLOR="1") as screen:
        assert screen.end() == 0 and busy in screen.text and b"\x1b" not in screen.raw
    with terminal(ems, "groups", "list", "--no-color", columns=80) as screen:
        assert screen.end() == 0 and b"\x1b" not in screen.raw
        assert "--wide shows everything" in screen.text and "TIMEOUT" not in screen.text
    shown = ems.ok("clients").out
    assert busy in shown and "orders/mail" in shown, "a pipe gets everything"
    assert [one["groups"] for one in ems.ok("clients", "--json").json["clients"] if one["client"] == busy] == [
        ["orders/mail"]
    ]


def test_a_narrow_terminal_still_tells_what_is_the_matter(ems: Ems, busy: str) -> None:
    with terminal(ems, "check", columns=40) as screen:
        screen.end()
        lines = screen.text.splitlines()
        assert {"severity", "name", "value", "fix"} <= {line.split(" ")[0] for line in lines}
        assert max(map(len, lines)) <= 40 and "Left out" not in screen.text
        shown = " ".join(screen.text.split())
        for one in ems("check", "--json").json:
            assert one["name"] in shown
    with terminal(ems, "dead", "list", columns=40) as screen:
        assert screen.end() == 0
        assert "shop.add" in screen.text and "ValueError" in screen.text and "orders" in screen.text
    with terminal(ems, "groups", "list", columns=40) as screen:
        assert screen.end() == 0
        assert max(map(len, screen.text.splitlines())) <= 40 and "Left out for want of width" in screen.text


def test_without_rich_tables_are_plain(ems: Ems, busy: str) -> None:
    ems.write("sitecustomize.py", "import sys\nsys.modules['rich'] = None\n")
    path = {"PYTHONPATH": str(ems.folder)}
    with terminal(ems, "clients", columns=60, **path) as screen:
        assert screen.end() == 0 and busy in screen.text and b"\x1b" not in screen.raw


def test_a_viewer_sees_dead_letters_without_their_contents(
    ems: Ems, busy: str, server: LocalDatabase, url: str
) -> None:
    with users(server, url) as make:
        viewer = {"url": make("viewer")}
        (letter,) = ems.ok("dead", "list", "--json", **viewer).json["dead_letters"]
        assert (letter["task"], letter["error"], letter["reason"]) == ("shop.add", "ValueError", None)
        assert ems.ok("dead", "list", "--by", "task", "--json", **viewer).json[0]["count"] == 1


def completed(ems: Ems, words: str, **changes: str) -> list[str]:
    environ = environment({**ems.environ, "_EMS_COMPLETE": "bash_complete", "COMP_WORDS": words, **changes})
    code = "from emsworker.cli.main import main; main()"
    environ["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=ems.folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    return [line.removeprefix("plain,") for line in done.stdout.split()]


def at_first_unless_busy(completes: Callable[[], bool]) -> None:
    """The first Tab has the names. Those that take longer than a second are left out, as they may be on a busy machine."""
    for _ in range(10):
        began, machine_began = time.monotonic(), machine_s()
        if completes():
            return
        share = (machine_s() - machine_began) / (time.monotonic() - began)
        assert share < 0.8, f"the machine was not busy: a task had {share:.0%} of a processor"
    raise AssertionError("the names never came")


def _is_completed(ems: Ems, words: str, names: list[str]) -> bool:
    return completed(ems, words, EMS_APP="shop") == names


def test_names_are_completed_and_errors_are_silent(ems: Ems, busy: str) -> None:
    ems.write("shop.py", "from emsworker import Ems\nprint('noise')\napp = Ems()\napp.task(name='shop.add')(print)\n")
    for words, names in (
        ("ems topics purge o", ["orders"]),
        ("ems groups reset orders ", ["mail", "stats"]),
        ("ems dead list --group m", ["mail"]),
        ("ems worker -Q orders,o", ["orders,orders"]),
        ("ems dead list --error Va", ["ValueError"]),
        ("ems send orders 1 --task s", ["shop.add"]),
    ):
        at_first_unless_busy(partial(_is_completed, ems, words, names))
    assert completed(ems, "ems topics purge o", EMS_URL="mysql://u:p@127.0.0.1:1/x") == []


def _shell(name: str) -> str:
    """Return the path of a shell; skips the test without it, but not in CI."""
    program = shutil.which(name)
    if program is None:
        assert not os.environ.get("CI"), f"{name} is not installed; `./dev setup` does that"
        pytest.skip(f"{name} is not installed")
    return program


_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
_LOAD = {
    "bash": ("--norc", "--noprofile", 'eval "$(ems completion bash)"'),
    "zsh": ("-f", "-i", 'autoload -U compinit; compinit -u -d dump; eval "$(ems completion zsh)"'),
}


@pytest.mark.parametrize("shell", _LOAD)
def test_a_real_shell_completes_names(ems: Ems, busy: str, shell: str) -> None:
    *options, load = _LOAD[shell]
    program = [_shell(shell), *options]
    with terminal(ems, program=program, PATH=_PATH, HOME=str(ems.folder), columns=200) as screen:
        screen.press(f'{load}; echo load""ed\r')
        screen.wait("loaded")
        _press_tab(screen, "ems topics purge o", "orders")
        _press_tab(screen, "ems groups reset orders s", "stats")


def _press_tab(screen: Terminal, line: str, name: str) -> None:
    screen.press(f"\x15{line}")
    rest = name.removeprefix(line[-1])  # which the shell adds

    def completes() -> bool:
        screen.press("\t")
        until = time.monotonic() + 3
        while rest not in screen.text and time.monotonic() < until:
            time.sleep(0.02)
        return rest in screen.text

    at_first_unless_busy(completes)


def test_fish_completes_names(ems: Ems, busy: str) -> None:
    """By its own command for what the Tab key would offer."""
    script = 'ems completion fish | source; complete -C "ems topics purge o"; complete -C "ems groups reset orders "'
    environ = environment({**ems.environ, "PATH": _PATH, "HOME": str(ems.folder)})
    command = [_shell("fish"), "--no-config", "-c", script]

    def completes() -> bool:
        done = subprocess.run(command, env=environ, cwd=ems.folder, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split() == ["orders", "mail", "stats"]

    at_first_unless_busy(completes)
