"""A soak: measure the capacity, keep 70% of it as the load, break something now and then, check, and look what grew."""

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from emsworker import Ems
from emsworker.chaos import CheckWindow, Recorder
from emsworker.local import LocalDatabase as Server
from emsworker.local import Redis
from tests.support.waiting import until
from verification.chaos import sites
from verification.chaos.arena import Arena, opened
from verification.chaos.breaks import database, processes, redis_server, work
from verification.chaos.names import KEYS, TOPIC
from verification.chaos.throughput import Feeder
from verification.soak.arena import Latency, SoakArena, window
from verification.soak.load import body
from verification.soak.sampling import Sampler
from verification.soak.series import Series
from verification.soak.trend import Trend

_WARM, _DRAIN_S = 20, 120
_MOST_WRONG = 50
_PASSED = (
    "SELECT COALESCE(MIN(w.passed), 0) FROM (SELECT SUM(next_offset) AS passed FROM ems_cursor GROUP BY group_id) w"
)

FAULTS: tuple[Callable[[Arena], None], ...] = (
    partial(processes.kill_children, times=1),
    processes.kill_a_worker,
    processes.kill_a_supervisor,
    partial(processes.pause_a_child, times=1),
    partial(processes.kill_producers, times=1),
    partial(database.kill_the_server, times=1),
    database.restart_the_server,
    database.read_only,
    database.too_many_connections,
    database.hostile_locks,
    database.kill_connections,
    work.retry_storm,
)
REDIS_FAULTS: tuple[Callable[[Arena], None], ...] = (
    redis_server.kill_redis,
    redis_server.flush_redis,
    redis_server.slow_redis,
    redis_server.roll_redis_back,
)


@dataclass(frozen=True)
class Plan:
    """How to soak.

    Args:
        for_s: of load, after the capacity is known; capacity_s: for so long it is measured.
        backlog: while it is measured, so that nobody is idle.
        warm_s: what is not judged in the beginning.
        fault_every_s: from the end of one fault to the next on average.
        sample_s: from one sample to the next.
        retention_s: of the topic; linger_s: of the checker.
        share: of the capacity.
    """

    for_s: float
    capacity_s: float = 20.0
    backlog: int = 1000
    warm_s: float = 60.0
    fault_every_s: float = 45.0
    sample_s: float = 2.0
    retention_s: int = 20
    linger_s: float = 30.0
    share: float = 0.7
    body_bytes: int = 500
    faults: Sequence[Callable[[Arena], None]] = FAULTS
    redis_faults: Sequence[Callable[[Arena], None]] = REDIS_FAULTS
    leaks: str = ""

    @classmethod
    def of_hours(cls, hours: float, **more: Any) -> "Plan":
        """The usual plan for so many hours."""
        for_s = hours * 3600
        return cls(for_s, warm_s=min(1800.0, for_s / 5), sample_s=min(30.0, max(0.5, for_s / 600)), **more)


@dataclass
class Soaked:
    """What came of it.

    Attributes:
        series: everything that was sampled; trends: of those that have to be flat.
        wrong: what the checker found, and what did not recover.
    """

    server: str
    allocator: str
    took_s: float = 0.0
    capacity: float = 0.0
    rate: float = 0.0
    asked: int = 0
    confirmed: int = 0
    runs: int = 0
    repeated: int = 0
    missed: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    began: float = 0.0
    warm_s: float = 0.0
    series: dict[str, Series] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)

    @property
    def rising(self) -> dict[str, Trend]:
        """What is not flat."""
        return {name: trend for name, trend in self.trends.items() if not trend.flat}

    @property
    def good(self) -> bool:
        """Whether all is as it must be."""
        return not (self.wrong or self.rising)


def soak(
    server: Server, redis: Redis | None, folder: Path, seed: int, plan: Plan, say: Callable[[str], None]
) -> Soaked:
    """Run a plan.

    Args:
        say: is told how it goes.
    """
    chance = random.Random(f"{seed} {server.flavor} soak")
    done = Soaked(server.flavor, "redis" if redis else "mysql", warm_s=plan.warm_s)
    options: dict[str, Any] = {"kind": SoakArena, "allocator": done.allocator, "chance": chance}
    options |= {"topic": {"retention_s": plan.retention_s}}
    if plan.leaks:
        options |= {"app": "verification.soak.leaky:app", "environ": {"EMS_TEST_LEAKS": plan.leaks}}
    with opened(sites.alone, server, redis, folder, **options) as arena:
        arena.body_bytes = plan.body_bytes
        arena.start_workers()
        done.capacity = _capacity(arena, plan)
        done.rate = arena.rate = plan.share * done.capacity
        say(f"capacity {done.capacity:,.0f} messages/s, each run by 4 groups; load {done.rate:,.0f}/s")
        for _ in range(2):
            arena.start_producer()
        arena.goes_on(20)
        latency = Latency(max(1.0, plan.sample_s))
        checker = window(arena, latency, plan.linger_s)
        done.began = time.monotonic()
        with Sampler(arena, plan.sample_s, lambda: len(checker)) as sampler:
            try:
                _go_through(arena, plan, done, checker, latency, say)
            except AssertionError as error:
                done.wrong.append(f"it did not recover: {error}")
            except KeyboardInterrupt:  # what there is by then is reported as well
                done.wrong.append("it was interrupted before its end")
        _judge(done, sampler, latency)
    done.took_s = time.monotonic() - done.began
    return done


def _capacity(arena: SoakArena, plan: Plan) -> float:
    """Messages in a second that every group gets through, with the same handlers and messages."""
    recorder = Recorder(arena.folder / "history", sync=False, roll_bytes=4 << 20)
    settings = {"redis_url": arena.redis.url, "allocator": arena.allocator} if arena.redis else {}

    def passed() -> int:
        return int(arena.looker.rows(_PASSED)[0][0])

    with contextlib.closing(Ems("filler", url=arena.url, middleware=[recorder], **settings)) as app:

        def send(count: int) -> int:
            bodies = [body(arena.chance, plan.body_bytes) for _ in range(min(count, plan.backlog // 10))]
            return len(app.send_many(TOPIC, bodies, key=arena.chance.choice(KEYS)))

        with Feeder(send, passed, plan.backlog) as feeder:
            until(lambda: passed() > _WARM, 120, f"it runs; logs:\n{arena.tail()}")
            rate = feeder.rate(plan.capacity_s)
    until(lambda: not arena.left(), _DRAIN_S, "the backlog of the measurement is done", 0.1)
    return rate


def _go_through(
    arena: SoakArena, plan: Plan, done: Soaked, checker: CheckWindow, latency: Latency, say: Callable[[str], None]
) -> None:
    faults = [*plan.faults, *(plan.redis_faults if arena.redis else ())]
    deadline, order = done.began + plan.for_s, list[Callable[[Arena], None]]()
    while (left := deadline - time.monotonic()) > 0 and len(done.wrong) < _MOST_WRONG:
        time.sleep(min(left, plan.fault_every_s * arena.chance.uniform(0.5, 1.5)))
        if faults and time.monotonic() < deadline:
            order = order or arena.chance.sample(faults, len(faults))  # each in its turn, in another order each time
            _break(arena, order.pop(), done, say)
        _look(arena, done, checker, latency, say)
    arena.finish()
    _look(arena, done, checker, latency, say, settled=True)


def _break(arena: SoakArena, fault: Callable[[Arena], None], done: Soaked, say: Callable[[str], None]) -> None:
    name = getattr(fault, "func", fault).__name__
    began = time.monotonic()
    fault(arena)
    arena.fix()
    done.faults[name] = done.faults.get(name, 0) + 1
    say(f"{began - done.began:7.0f} s  {name.replace('_', ' ')}: whole after {time.monotonic() - began:.1f} s")


def _look(
    arena: SoakArena,
    done: Soaked,
    checker: CheckWindow,
    latency: Latency,
    say: Callable[[str], None],
    settled: bool = False,
) -> None:
    arena.note_lost_leases()
    report = checker.look(settled)
    latency.close()
    done.asked, done.confirmed, done.runs, done.repeated = report.asked, report.confirmed, report.runs, report.repeated
    for finding in report.findings:
        done.wrong.append(str(finding))
        say(f"WRONG  {finding}")


def _judge(done: Soaked, sampler: Sampler, latency: Latency) -> None:
    if sampler.error is not None:
        raise sampler.error
    done.missed = sampler.missed
    done.series = sampler.series | latency.series
    after = done.began + done.warm_s
    done.trends = {name: one.trend(after) for name, one in sorted(done.series.items()) if one.judged}
