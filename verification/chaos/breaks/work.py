"""Clocks are wrong, messages are poison, everything fails."""

import contextlib
import json
import time
from pathlib import Path

from emsworker import Ems
from emsworker.chaos import Recorder
from tests.support.waiting import until
from verification.chaos.arena import Arena
from verification.chaos.breaks.processes import BEYOND_LEASE_S

CLOCK = Path(__file__).parents[1] / "clock"


def jump_clock(arena: Arena) -> str:
    """The date of one worker's and one producer's machine jumps by an hour, first ahead and then back."""
    ahead = arena.folder / "ahead"
    _set_clock(ahead, 0)
    arena.environ = {"PYTHONPATH": str(CLOCK), "EMS_TEST_CLOCK": str(ahead)}
    worker, producer = arena.start_worker().wait_ready(), arena.start_producer()
    arena.environ = {}
    history = arena.folder / "history"
    until(lambda: list(history.glob(f"{producer.pid}-*.jsonl")), 60, "the producer sends")
    for jump in (3600, -3600, 0):
        _set_clock(ahead, jump)
        arena.goes_on(20)
        time.sleep(BEYOND_LEASE_S)
    assert "ran out" not in worker.text(), "no lease was lost"
    producer.terminate()
    assert producer.wait(60) == 0, arena.tail()
    for event, name in (("begin", "run"), ("send", "uid")):
        assert {1, -1} <= _hours_ahead(history, event, name), f"the clock was wrong at each {event}"
    return "no lease lost"


def _set_clock(file: Path, ahead_s: int) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(str(ahead_s))
    partial.replace(file)


def _hours_ahead(folder: Path, kind: str, name: str) -> set[int]:
    """By how many hours the clocks of those who ran or sent messages were wrong: the ids that they gave tell."""
    events = (json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().split("\n")[:-1])
    dates = [int(event[name].replace("-", "")[:12], 16) / 1000 for event in events if event["event"] == kind]
    return {round((date - time.time()) / 3600) for date in dates}


def poison(arena: Arena) -> str:
    """Each kills or blocks the process that runs it, twice, and is a dead letter then; large ones among them are not."""
    began = time.monotonic()
    recorder = Recorder(arena.folder / "history", sync=False)
    with contextlib.closing(Ems("poisoner", url=arena.url, middleware=[recorder])) as app:
        for deed in ("exit", "segfault", "bomb", "loop"):
            app.send("acts", {"work_s": 0, "do": deed})
        for _ in range(3):
            app.send("acts", {"work_s": 0, "fill": "x" * ((4 << 20) - 100)})
    until(
        lambda: arena.looker.rows("SELECT COUNT(*) FROM ems_dead")[0][0] == 4,
        120,
        f"four are dead:\n{arena.tail()}",
        0.1,
    )
    fault = arena.note("poison", began)
    arena.goes_on()
    return f"{fault.until - fault.at:.1f} s until 4 were dead letters"


def retry_storm(arena: Arena, for_s: float = 4.0) -> None:
    """Every handler fails, at every message."""
    storm = arena.folder / "storm"
    with arena.fault("storm"):
        storm.touch()
        time.sleep(for_s)
        storm.unlink()
    arena.goes_on()


def minute_of_retries(arena: Arena) -> None:
    """A minute of it, as long as many an outage of what handlers need."""
    retry_storm(arena, 60)
