"""What needs no server: help, versions, wrong usage."""

import re
import resource
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from emsworker import __version__
from emsworker.cli.main import _COMMANDS, ems
from emsworker.core.extension import extensions
from emsworker.spark.jobs import JOBS
from tests.support.commands import Ems, environment


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk(child, (*path, name))


ALL = dict(walk(ems))


def test_every_command_of_the_contract_is_there() -> None:
    wanted = """worker beat migrate check grants servers servers.list servers.retire clients top trace send completion topics topics.list topics.create topics.change topics.move
    topics.delete topics.purge topics.stale cancel groups groups.list groups.create groups.change groups.delete
    groups.reset groups.limit groups.replay groups.skip messages messages.list messages.peek messages.get
    messages.contains dead
    dead.list dead.show dead.requeue dead.delete schedules schedules.list schedules.add
    schedules.change schedules.pause schedules.resume schedules.delete alarms alarms.list
    alarms.create alarms.delete alarms.test alarms.silence alarms.silences alarms.unsilence monitoring
    monitoring.serve monitoring.export health readers readers.list readers.forget readers.release refused refused.list
    refused.retry refused.delete local local.start local.stop
    local.status local.url local.env local.sql pipeline chaos chaos.break chaos.check
    http http.token http.client web web.password audit flows flows.list flows.show flows.cancel flows.retry flows.signal flows.delete
    tasks tasks.list tasks.pause tasks.resume"""
    jobs = {f"pipeline.{name}" for name in JOBS}
    assert {".".join(path) for path in ALL if path} == set(wanted.split()) | jobs


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_and_option_has_help(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help and len(command.help) > 20
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.name}"
    assert "Show this message" in command.get_help(click.Context(command, info_name="ems"))


def test_the_list_of_commands_tells_what_they_tell_themselves() -> None:
    theirs = {name: one for extension in extensions().values() for name, one in extension.commands.items()}
    assert {"chaos", "flows", "local", "pipeline", "web"} <= theirs.keys()
    for name, declared in {**_COMMANDS, **theirs}.items():
        command = ALL[name,]
        assert command.help is not None
        assert re.split(r"\n\n", command.help)[0].replace("\n", " ") == declared.help


def test_everything_that_prints_knows_json() -> None:
    silent = {
        (),
        ("worker",),
        ("beat",),
        ("completion",),
        ("servers",),
        ("topics",),
        ("groups",),
        ("tasks",),
        ("messages",),
        ("dead",),
        ("schedules",),
        ("readers",),
        ("refused",),
        ("alarms",),
        ("monitoring",),
        ("monitoring", "serve"),
        ("pipeline",),
        ("chaos",),
        ("flows",),
        ("local",),
        ("http",),
        ("http", "client"),
        ("http", "token"),
        ("web",),
        ("web", "password"),
    }
    for path, command in ALL.items():
        knows = any("--json" in parameter.opts for parameter in command.params)
        assert knows is (path not in silent), path


def _childrens_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    def measure() -> float:
        began = _childrens_cpu_s()
        subprocess.run([sys.executable, "-m", "emsworker", "--help"], check=True, capture_output=True)
        return _childrens_cpu_s() - began

    assert min(measure() for _ in range(5)) < 0.4  # of the processor's time, which others do not take: about 0.1
    code = "import emsworker.cli.main, sys; print([n for n in ('kombu', 'pymysql', 'redis') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"[]\n"


_HEAVY = (
    "asyncio",
    "cryptography",
    "emsworker.app",
    "emsworker.worker",
    "kombu",
    "pymysql",
    "redis",
    "rich",
    "ssl",
    "tenacity",
)
_UNUSED = (
    "click",
    "emsworker.cli",
    "emsworker.spark.jobs",
    "kombu",
    "prometheus_client",
    "pyspark",
    "redis",
    "unittest",
    "yaml",
)


# A worker without coroutines, alarms, --http and a lost connection needs none of these.
_SELDOM = ("asyncio", "emsworker.testing", "http.client", "http.server", "tenacity", "urllib.request")


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("emsworker.cli.main", (*_HEAVY, "emsworker.console.cells")),
        ("emsworker.worker.child", (*_UNUSED, *_SELDOM)),
        ("emsworker.worker.supervisor", _SELDOM),
        ("emsworker.app", _SELDOM),
        ("emsworker", _HEAVY),
    ],
)
def test_nothing_is_imported_before_it_is_needed(module: str, unwanted: tuple[str, ...]) -> None:
    """Each of these takes tens of milliseconds and some MiB, in every process of a worker."""
    code = f"import {module}, sys; print(*(name for name in {unwanted!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_version(bare: Ems) -> None:
    assert __version__ in bare.ok("--version").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(bare: Ems, shell: str) -> None:
    assert "_EMS_COMPLETE" in bare.ok("completion", shell).out


def test_completion_completes(bare: Ems) -> None:
    environ = environment({"_EMS_COMPLETE": "bash_complete", "COMP_WORDS": "ems topics c", "COMP_CWORD": "2"})
    code = "from emsworker.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == ["plain,change", "plain,create"]


def test_without_a_stream_the_error_names_the_way_to_one(bare: Ems) -> None:
    done = bare("topics", "list")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "EMS_URL" in done.err and "`ems local start`" in done.err


def test_every_wrong_setting_is_a_line_of_its_own_without_passwords(bare: Ems) -> None:
    done = bare("topics", "list", url="http://u:geheim@h/x", threads="0", batch="many")
    assert done.code == 2
    assert len(done.errors) == 3 == len(done.err.splitlines())
    assert "geheim" not in done.err


def test_wrong_usage_is_exit_code_2(bare: Ems) -> None:
    for arguments in (["nonsense"], ["topics", "create"], ["send", "t"], ["dead", "requeue", "--limit"]):
        assert bare(*arguments).code == 2


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("no_such_module", "there is no module 'no_such_module'"),
        ("plain", "plain has no Ems"),
        ("plain:thing", "plain has no Ems named 'thing'"),
        ("broken", "SyntaxError"),
        ("crash", "ended the process (exit code 7)"),
        ("wrong", "there is no such setting"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_one_line_and_exit_code_2(bare: Ems, app: str, said: str) -> None:
    bare.write("plain.py", "thing = 1\nprint('noise')\n")
    bare.write("broken.py", "def f(:\n")
    bare.write("crash.py", "import os\nos._exit(7)\n")
    bare.write("wrong.py", "from emsworker import Ems\napp = Ems('x', nonsense=1)\n")
    done = bare("worker", "-A", app)
    assert done.code == 2, done
    assert len(done.err.splitlines()) == 1, done.err
    assert said in done.err
    assert done.out == ""


def test_traceback_on_request(bare: Ems) -> None:
    assert "Traceback" not in bare("topics", "list").err
    assert "Traceback" in bare("topics", "list", "--traceback").err
    assert "Traceback" in bare("--traceback", "topics", "list").err
