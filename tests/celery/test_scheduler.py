"""The scheduler of `celery beat` on a stream: several run, one leads, each slot is published once."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule

from emsworker.core.errors import ConfigError
from emsworker.integrations.celery import Scheduler
from emsworker.integrations.celery import scheduler as module
from emsworker.integrations.celery.store import schedules
from emsworker.store.engine.database import Database
from tests.celery.programs import Programs, take_all
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.waiting import until

WAIT_S = 60


@pytest.fixture
def stream_url(database: str) -> str:
    with Database(database).session() as session:
        migrate(session)
    return f"ems+{database}"


@pytest.fixture
def make(stream_url: str, redis_url: str) -> Iterator[Callable[..., Scheduler]]:
    made: list[Scheduler] = []

    def make(**entries: Any) -> Scheduler:
        app = Celery("project", broker=redis_url, backend=stream_url, set_as_current=False)
        app.conf.beat_schedule = {
            name: {"task": "t", "schedule": when, "args": (name,)} for name, when in entries.items()
        }
        made.append(Scheduler(app, Producer=None, max_interval=5))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _sent(redis_url: str) -> int:
    with redis.Redis.from_url(redis_url) as client:
        return int(client.llen("celery"))


def _ticks(schedulers: list[Scheduler], look: Callable[[], object], what: str) -> None:
    """Let schedulers work, as `celery beat` does, until something is true."""

    def ticked() -> object:
        for one in schedulers:
            one.tick()
        return look()

    until(ticked, WAIT_S, what)


def _runs(stream_url: str) -> dict[str, int]:
    with Database(stream_url.removeprefix("ems+")).session() as session:
        return {name: run.runs for name, run in schedules.list_runs(session, "project").items()}


def test_one_of_several_leads_and_each_slot_is_sent_once(make: Any, stream_url: str, redis_url: str) -> None:
    began = time.monotonic()
    schedulers = [make(fast=schedule(timedelta(seconds=0.5))) for _ in range(3)]
    _ticks(schedulers, lambda: _runs(stream_url)["fast"] >= 4, "four slots")
    assert [one._leads for one in schedulers] == [True, False, False]
    assert _runs(stream_url)["fast"] <= (time.monotonic() - began) / 0.5
    assert _sent(redis_url) == _runs(stream_url)["fast"]


def test_a_leader_that_goes_on_after_it_was_replaced_sends_nothing_twice(
    make: Any, stream_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    old, new = (make(fast=schedule(timedelta(seconds=0.5))) for _ in range(2))
    monkeypatch.setattr(module, "_LEASE_S", 0.3)
    old.tick()
    old._next_claim = time.monotonic() + 1e6  # as if it had been stopped with the lease in its hand
    _ticks([new], lambda: new._leads, "its lease is over")
    assert old._leads
    runs = _runs(stream_url)["fast"]
    _ticks([old, new], lambda: _runs(stream_url)["fast"] >= runs + 4, "four slots")
    assert _sent(redis_url) == _runs(stream_url)["fast"] <= (time.monotonic() - began) / 0.5
    # On a busy machine the lease may be over again between two ticks: who has lost it knows that at its next claim.
    _ticks([old, new], lambda: [old._leads, new._leads].count(True) == 1, "one of them leads")


def test_a_closed_leader_is_followed_at_once_where_it_stopped(make: Any, stream_url: str) -> None:
    first = make(daily=crontab(minute="0", hour="4"), fast=schedule(timedelta(seconds=0.3)))
    _ticks([first], lambda: _runs(stream_url)["fast"] >= 2, "two slots")
    runs = _runs(stream_url)["fast"]
    first.close()
    second = make(daily=crontab(minute="0", hour="4"), fast=schedule(timedelta(seconds=0.3)))
    second.tick()
    assert second._leads
    assert second.schedule["fast"].total_run_count >= runs
    assert second.schedule["daily"].total_run_count == 0


def test_entries_follow_the_code(make: Any, stream_url: str) -> None:
    first = make(a=schedule(3600), b=schedule(3600))
    first.tick()
    first.close()
    second = make(b=schedule(0.2), c=schedule(3600))
    _ticks([second], lambda: _runs(stream_url)["b"] >= 2, "two slots")
    assert set(_runs(stream_url)) == {"b", "c", "celery.backend_cleanup"}


def test_an_entry_that_cannot_be_sent_stops_no_other(make: Any, stream_url: str, redis_url: str) -> None:
    one = make(good=schedule(0.4), bad=schedule(0.4))
    one.schedule["bad"].args = (object(),)
    each = ("good", "bad")  # a slot of the second one fails, and is left out
    _ticks([one], lambda: min(_runs(stream_url)[name] for name in each) >= 3, "three slots of each")
    assert _sent(redis_url) == _runs(stream_url)["good"]


def test_it_needs_a_stream(redis_url: str) -> None:
    app = Celery("project", broker=redis_url, set_as_current=False)
    with pytest.raises(ConfigError, match="set broker_url or result_backend to ems\\+mysql"):
        Scheduler(app)


# -- processes, with the broker on the stream --------------------------------------------------------------------------

_APP = """
import os
from celery import Celery
app = Celery("project", broker=os.environ["STREAM"], backend=os.environ["STREAM"])
app.conf.beat_schedule = {
    f"entry {number}": {"task": "t", "schedule": 0.3 + number / 10, "args": (number,)} for number in range(4)
}
"""


@pytest.fixture
def beats(stream_url: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts processes of `celery beat`."""
    with Programs(tmp_path, "beaten", _APP, stream_url) as programs:
        yield partial(programs.start, "beat", "-l", "INFO", "--pidfile", "{number}.pid")


def _received(stream_url: str) -> Counter[str]:
    """The entries whose tasks are in the queue, with how many times."""
    app = Celery("reader", broker=stream_url, set_as_current=False)
    return Counter(f"entry {arguments[0]}" for arguments, _, _ in take_all(app, "celery"))


def _published(stream_url: str) -> int:
    connection = connect(stream_url.removeprefix("ems+"))
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0")
            return int(cursor.fetchall()[0][0])
    finally:
        connection.close()


def _until_run(stream_url: str, more: int) -> None:
    """Wait until entries have run so many times more."""
    runs = sum(_runs(stream_url).values())
    until(lambda: sum(_runs(stream_url).values()) >= runs + more, WAIT_S, f"{more} more runs")


@pytest.mark.slow
@pytest.mark.chaos
def test_leaders_that_are_killed_at_random_lose_and_repeat_nothing(beats: Callable[..., Any], stream_url: str) -> None:
    running = [beats("-S", "ems") for _ in range(2)]
    until(lambda: sum(_runs(stream_url).values()) >= 4, WAIT_S, "the first entries have run")
    dice = random.Random(16)
    for _ in range(4):
        _until_run(stream_url, dice.randint(1, 12))  # so that the kill comes at another place of the schedule each time
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()
        running = [beats("-S", "ems") for _ in range(2)]
    _until_run(stream_url, 1)
    for process in running:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    runs_of_entries = {name: runs for name, runs in _runs(stream_url).items() if name.startswith("entry")}
    assert _received(stream_url) == runs_of_entries


@pytest.mark.slow
def test_celerys_own_scheduler_works_unchanged(beats: Callable[..., Any], stream_url: str, tmp_path: Path) -> None:
    process = beats("-s", str(tmp_path / "schedule"))
    until(lambda: _published(stream_url) >= 4, WAIT_S, "its tasks are published")
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    assert sum(_received(stream_url).values()) >= 4
