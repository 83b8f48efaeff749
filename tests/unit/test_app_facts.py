"""The process that reads the facts of an app: its answer may be long, and what it has forked may outlive it."""

import os
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


def test_a_process_that_the_app_has_forked_delays_nothing(environ: dict[str, str]) -> None:
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
