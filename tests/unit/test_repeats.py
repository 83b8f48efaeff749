"""Warnings and errors that repeat are counted, and nothing else is left out."""

import io
import json
import logging
import threading
from typing import Any

import pytest

from emsworker.observe import repeats
from emsworker.observe.logs import JsonFormatter, TextFormatter
from emsworker.observe.repeats import RepeatHandler


class _Log:
    """A logger of EMS with the handler, and a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, formatter: logging.Formatter) -> None:
        self.now, self.out = 1000.0, io.StringIO()
        monkeypatch.setattr(repeats, "ticks", lambda: self.now)
        self.handler = RepeatHandler(self.out, most)
        self.handler.setFormatter(formatter)

    def __call__(
        self, template: str, *args: Any, level: int = logging.WARNING, name: str = "emsworker.x", **extra: Any
    ) -> None:
        record = logging.getLogger(name).makeRecord(name, level, __file__, 1, template, args, None, extra=extra)
        self.handler.handle(record)

    @property
    def lines(self) -> list[str]:
        found = self.out.getvalue().splitlines()
        self.out.seek(0), self.out.truncate()
        return found


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> _Log:
    return _Log(monkeypatch, 3, TextFormatter())


def test_the_first_are_written_and_the_others_are_counted(log: _Log) -> None:
    for number in range(1000):
        log("attempt of %d failed\nTraceback", number, task="charge", error="ValueError: no")
    assert [line.rpartition(": ")[2] for line in log.lines if "Traceback" not in line] == [
        f"attempt of {number} failed" for number in range(3)
    ]
    log.now += 61
    log("another")
    summary, another = log.lines
    assert summary.endswith("997 more like this within 60 s; the last: attempt of 999 failed") and "another" in another
    log("attempt of %d failed", 1, task="charge", error="ValueError: no")
    assert len(log.lines) == 1, "a new minute has begun"
    log.now += 61
    log("another")
    assert len(log.lines) == 1, "nothing was left out in it"


def test_what_differs_is_of_another_kind(log: _Log) -> None:
    for _ in range(10):
        for change in ({}, {"task": "a"}, {"topic": "t"}, {"error": "KeyError: 1"}, {"level": logging.ERROR}):
            log("it failed", **change)
        log("it failed", name="emsworker.y"), log("it died"), log("%s", ValueError("1")), log("%s", KeyError("1"))
    assert len(log.lines) == 9 * 3
    for _ in range(10):
        log("done", level=logging.INFO), log("it failed", name="shop")
    assert len(log.lines) == 20, "neither what is no warning, nor the program's own lines"


def test_all_are_written_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch, 0, TextFormatter())
    for _ in range(100):
        log("it failed")
    assert len(log.lines) == 100


def test_json_has_the_number_as_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _Log(monkeypatch, 1, JsonFormatter())
    for number in range(5):
        log("%d failed", number, task="charge", group="g", offset=number)
    log.handler.close()
    first, last = map(json.loads, log.lines)
    assert "repeated" not in first and (last["repeated"], last["task"], last["group"]) == (4, "charge", "g")
    assert "offset" not in last and last["level"] == "warning" and last["logger"] == "emsworker.x"


def test_invented_names_take_no_memory_and_few_lines(log: _Log) -> None:
    """Whoever sends chooses the names of tasks, and not how much is written."""
    for number in range(20_000):
        log("it failed", task=f"task-{number}")
    assert len(log.handler._kinds) <= repeats._MOST_KINDS + 1
    assert len(log.lines) <= 110


def test_they_are_told_without_another_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0  # the period ends when all have come, however slow the machine is
    monkeypatch.setattr(repeats, "PERIOD_S", 0.05)
    monkeypatch.setattr(repeats, "ticks", lambda: now)
    told = threading.Event()

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if "2 more like this" in text:
                told.set()
            return written

    handler = RepeatHandler(Out(), 1)
    for _ in range(3):
        handler.handle(logging.makeLogRecord({"name": "emsworker.x", "levelno": logging.ERROR, "msg": "no"}))
    now += repeats.PERIOD_S
    assert told.wait(20)
