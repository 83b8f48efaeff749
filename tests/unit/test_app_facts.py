"""The process that reads the facts of an app: its answer may be long, and what it has forked may outlive it.

It is a fork, or a new Python; the app sees no difference.
"""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from emsworker.core.errors import AppNotFound
from emsworker.worker import app_inspection
from emsworker.worker.app_inspection import describe_app

MANY = """
from emsworker import Ems
app = Ems("many")
for number in range(1000):
    @app.subscribe(f"a.topic.with.a.long.name.{number}", f"and.a.group.{number}")
    def handle(message):
        pass
"""
FORKS = (
    MANY
    + """
import os, signal
pid = os.fork()
if pid == 0:
    signal.pause()
open("forked", "w").write(str(pid))
"""
)
SLOW = (
    MANY
    + """
import emsworker.core.codec
emsworker.core.codec.check_serializers = lambda *_: __import__("signal").pause()
"""
)

SEEN = """
import json, os, signal, sys, threading
from emsworker import Ems
app = Ems("seen")
others = [number for number in map(int, os.listdir("/proc/self/fd")) if number > 2]
seen = {
    "environment": {name: value for name, value in os.environ.items() if name not in ("LC_CTYPE", "_")},
    "folder": os.getcwd(),
    "first in the path": sys.path[0],
    "handlers": [str(type(signal.getsignal(number))) + str(signal.getsignal(number))[:8] for number in (1, 2, 3, 15)],
    "blocked": [str(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "files": [os.readlink(f"/proc/self/fd/{number}").split()[0] for number in (0, 1, 2)],
    "other files": sum(os.path.exists(f"/proc/self/fd/{number}") for number in others),
    "writes bytecode": not sys.dont_write_bytecode,
    "threads": threading.active_count(),
}
open("seen.json", "w").write(json.dumps(seen))
"""
Way = Callable[[bool], None]


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Way:
    """Choose whether the process is a fork."""
    return lambda fork: monkeypatch.setattr(app_inspection, "_can_fork", lambda path: fork)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app_inspection, "_TIMEOUT_S", 60)
    return {key: value for key, value in os.environ.items() if not key.startswith("EMS_")} | {
        "XDG_DATA_HOME": str(tmp_path)
    }


def _describe(text: str, environ: dict[str, str]) -> app_inspection.AppInspection:
    Path("many_app.py").write_text(text)
    return describe_app("many_app:app", environ)


def test_a_thousand_subscriptions_are_more_than_a_pipe_holds(environ: dict[str, str]) -> None:
    assert len(_describe(MANY, environ).handlers) == 1000


@pytest.mark.parametrize("fork", [True, False])
def test_a_process_that_the_app_has_forked_delays_nothing(environ: dict[str, str], way: Way, fork: bool) -> None:
    way(fork)
    try:
        assert len(_describe(FORKS, environ).handlers) == 1000
    finally:
        os.kill(int(Path("forked").read_text()), 9)


def test_the_step_that_took_too_long_is_named(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_inspection, "_TIMEOUT_S", 10)
    with pytest.raises(AppNotFound, match=r"imported in .* s, but checking its 1000 groups against the stream takes"):
        _describe(SLOW, environ)


def test_thousands_of_topics_are_more_than_an_argument_holds(environ: dict[str, str]) -> None:
    topics = [f"a.topic.with.a.long.name.{number}" for number in range(5000)]
    Path("many_app.py").write_text(MANY)
    facts = describe_app("many_app:app", environ, "mysql://nobody@127.0.0.1:1/none", topics)
    assert len(facts.handlers) == 1000 and facts.refusal is not None


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc")
def test_a_fork_is_like_a_new_process_to_the_app(environ: dict[str, str], way: Way) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)  # as a shell hands on a pipe of its own
    seen = []
    try:
        for fork in (True, False):
            way(fork)
            _describe(SEEN, environ | {"PYTHONDONTWRITEBYTECODE": "1", "EMS_TEST_SEEN": "1"})
            seen.append(json.loads(Path("seen.json").read_text()))
    finally:
        os.close(reader)
        os.close(writer)
    forked, new = seen
    assert forked == new
    assert forked["environment"]["EMS_TEST_SEEN"] == "1" and not forked["writes bytecode"]
    assert forked["other files"] == 1, "that of the answer"


@pytest.mark.parametrize(
    "end", ["raise SystemExit('gone')", "raise SystemExit(4)", "import os; os._exit(3)", "import os; os.abort()"]
)
def test_an_app_that_ends_the_process_is_told_by_its_code_and_last_words(
    environ: dict[str, str], way: Way, end: str
) -> None:
    told = []
    for fork in (True, False):
        way(fork)
        with pytest.raises(AppNotFound, match="ended the process") as error:
            _describe(f"import sys\nprint('the last words', file=sys.stderr, flush=True)\n{end}\n", environ)
        told.append(str(error.value))
    assert told[0] == told[1]


def test_a_process_with_threads_or_with_the_app_in_it_does_not_fork() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        assert not app_inspection._can_fork("nowhere:app")
    finally:
        go.set()
        thread.join()
    assert app_inspection._can_fork("nowhere:app") == (threading.active_count() == 1)
    assert not app_inspection._can_fork("json.decoder:app")
