"""Every option that takes a number, a span or a time, with what nobody means: a clear line, never a traceback."""

import traceback
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from emsworker import Ems as App
from emsworker.cli.main import ems as root

NASTY = [
    "9999-12-31T23:59:59-14:00",
    "0001-01-01T00:00:00+14:00",
    "0",
    "-1",
    str(10**30),
    "9" * 5000,
    "1e400",
    "nan",
    "x",
    "",
    "1.5",
    "-",
    "0x10",
]
# What else the command needs to be complete.
ARGUMENTS = {
    "topics list": [], "groups list": [], "tasks list": [], "clients": [], "schedules list": [], "schedules add": ["s", "no.such"],
    "schedules change": ["s"], "readers list": [], "alarms list": [],
    "alarms silences": [], "topics change": ["t"], "topics create": ["new", "--if-missing"], "topics stale": ["t"],
    "topics move": ["t", "--to", "main"],
    "servers retire": ["main"],
    "groups change": ["t", "g"], "groups create": ["t", "new"], "groups limit": ["t", "g"],
    "groups replay": ["t", "g", "--dry-run"], "groups reset": ["t", "g", "--dry-run"],
    "groups skip": ["t", "g", "--dry-run"],
    "messages list": ["t"], "messages peek": ["t", "g"], "dead list": [], "refused list": [], "readers forget": ["b", "--yes"],
    "alarms create": ["a", "--on", "lag", "--replace"], "alarms silence": [], "health": [], "send": ["p", "1"],
    "chaos break": ["{tmp}"], "chaos check": ["{tmp}"], "local start": [], "local stop": [],
    "worker": ["-A", "nowhere"], "top": ["--json"], "audit": [], "beat": [],
    "dead requeue": ["--all", "--yes"], "dead delete": ["--all", "--yes"],
    "flows list": [], "flows cancel": ["--all", "--yes"], "flows retry": ["--all", "--yes"], "flows delete": ["--all", "--yes"],
}  # fmt: skip
WORDS = {"--to", "--from"}  # places in a stream, which click knows as text
# A server that is started or stopped, a worker, or a second's wait is more than this test wants where the number is a good one.
GOOD = {"schedules change", "local start", "local stop", "worker", "beat", "chaos break", "top", "health"}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def is_place(option: click.Option) -> bool:
    return bool(WORDS & {*option.opts}) and option.metavar == "PLACE"


def is_numeric(option: click.Parameter) -> bool:
    if not isinstance(option, click.Option) or option.is_flag or isinstance(option.type, click.Choice):
        return False
    reads = getattr(option.callback, "__name__", "")
    is_number = isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType))
    read = ("read_duration", "read_after", "read_time", "read_moment", "_read_above", "callback")
    return is_number or reads in read or is_place(option)


OPTIONS = [
    (name, option.opts[-1] if option.opts[-1].startswith("--") else option.opts[0])
    for name, command in commands(root)
    for option in command.params
    if is_numeric(option) and getattr(option.callback, "__qualname__", "").partition(".")[0] != "_remember"
]


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(root, arguments, env={"EMS_URL": url, "EMS_LOCAL_DIR": "/nonexistent/ems"})


def test_no_option_is_left_out() -> None:
    assert len(OPTIONS) > 60
    assert {name for name, _ in OPTIONS if not name.startswith("pipeline")} == {*ARGUMENTS}


def test_a_number_that_makes_no_sense_is_refused_in_one_line(url: str, app: App, tmp_path: Any) -> None:
    app.send_many("t", range(3))
    assert run(url, "groups", "create", "t", "g").exit_code == 0
    assert run(url, "topics", "create", "b", "--kind", "broadcast").exit_code == 0
    assert run(url, "topics", "create", "p", "--priorities", "10").exit_code == 0
    wrong = []
    for name, option in OPTIONS:
        if name.startswith("pipeline"):
            continue
        for value in NASTY:
            if name in GOOD and value in ("0", "1.5"):
                continue
            given = [one.replace("{tmp}", str(tmp_path)) for one in ARGUMENTS[name]]
            done = run(url, *name.split(), *given, f"{option}={value}")
            if complaint := _complaint(done):
                wrong.append(f"{name} {option}={value[:40]}: {complaint}")
    assert not wrong, "\n".join(wrong)


def _complaint(done: Result) -> str:
    """What is wrong with the way a command ended."""
    text = done.output[-300:]
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return "".join(traceback.format_exception_only(done.exception))
    if done.exit_code not in (0, 2):
        return f"exit code {done.exit_code}: {text}"
    if "Traceback" in done.output or "--traceback" in done.output:
        return text
    if done.exit_code == 2 and "Error" not in done.output:
        return f"no line says why: {text}"
    return ""


def test_a_pipeline_job_reads_its_options_before_it_needs_anything(url: str, tmp_path: Any) -> None:
    wrong = []
    for name, command in commands(root):
        if not name.startswith("pipeline"):
            continue
        for option in command.params:
            if not is_numeric(option) or getattr(option.callback, "__qualname__", "").startswith("_remember"):
                continue
            for value in NASTY:
                try:
                    option.type_cast_value(click.Context(command), value)
                    if option.callback is not None:
                        option.callback(click.Context(command), option, value)
                except click.BadParameter:
                    continue
                if value not in ("0", "1.5", "-1") or (value == "-1" and "partition" in option.opts[0]):
                    wrong.append(f"{name} {option.opts[0]}={value[:20]} is accepted")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        ["messages", "list", "t", "--limit", "999999999999999999999"],
        ["messages", "list", "t", "--partition", "-1"],
        ["messages", "list", "t", "--from", "9" * 25],
        ["worker", "-A", "nowhere", "-p", "99999999"],
        ["worker", "-A", "nowhere", "-t", "99999999"],
        ["dead", "list", "--after", "x"],
        ["local", "start", "--timeout", "nan"],
        ["local", "start", "--timeout", "0"],
        ["local", "stop", "--timeout", "0"],
        ["--url", "", "topics", "list"],
        ["messages", "get", "t/99999/1"],
        ["messages", "get", "t/x/1"],
    ],
)  # fmt: skip
def test_what_was_seen_is_refused(url: str, app: App, arguments: list[str]) -> None:
    app.send("t", 1)
    done = run(url, *arguments)
    assert (done.exit_code, "Error" in done.output) == (2 if "99999/1" not in arguments[-1] else 1, True), done.output
