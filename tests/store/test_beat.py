"""The beat's services beside one that fails, and what is logged of it."""

import logging

import pytest

from emsworker.beat.leader import Beat
from emsworker.core.config import Settings
from emsworker.core.errors import AccessDenied
from emsworker.core.process import runnable
from emsworker.core.process.runnable import Trouble
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from tests.support.streams import Stream
from tests.support.waiting import until

QUICK = Settings(beat_s=0.05, beat_lease_s=1.0)


def test_a_duty_that_fails_keeps_no_other_from_its_turn(
    stream: Stream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emsworker.beat.leader._LONGEST_PAUSE_S", 0.1)
    turns = {"fails": 0, "works": 0}
    bad = [True]

    def fails(session: Session, settings: Settings) -> float:
        turns["fails"] += 1
        if bad:
            raise ValueError("a row that nobody can read")
        return 0.01

    def works(session: Session, settings: Settings) -> float:
        turns["works"] += 1
        return 0.01

    died: list[str] = []
    beat = Beat(Database(stream.url), QUICK, lambda name, error: died.append(name))
    beat._next = {True: {fails: 0.0, works: 0.0}, False: {}}
    beat._next[False] = {works: 0.0}
    with caplog.at_level(logging.INFO):
        beat.start()
        until(lambda: turns["fails"] > 5 and turns["works"] > 5, 20, "both have their turns")
        bad.clear()
        failed = turns["fails"]
        until(lambda: turns["fails"] > failed + 5, 20, "it works again")
        beat.stop()
        beat.join(10)
    assert not died
    assert caplog.text.count("the beat cannot fails: a row that nobody can read") == 1
    assert caplog.text.count("the beat can fails again") == 1


def test_a_lasting_problem_is_told_once_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(runnable, "ticks", lambda: now[0])
    trouble = Trouble(logging.getLogger("here"))

    def lines(error: BaseException | None, seconds: float) -> list[str]:
        """What is logged while it lasts for so long, tried every half of a second."""
        caplog.clear()
        for _ in range(round(seconds * 2)):
            now[0] += 0.5
            trouble.note("cannot work", error) if error is not None else trouble.over("works")
        return caplog.messages

    assert lines(OSError("away"), 55) == ["cannot work: away"]
    assert lines(AccessDenied("no"), 1) == ["cannot work: no"], "it has changed"
    assert lines(AccessDenied("no"), 4 * 3600) == ["cannot work: no"] * 8, "the more seldom the longer it lasts"
    (over,) = lines(None, 10)
    assert over.startswith("works again, after ")
    assert lines(OSError("away"), 0.5) == ["cannot work: away"]
    assert lines(None, 1) == [], "what has passed at once is not worth another line"
