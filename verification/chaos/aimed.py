"""Faults aimed at the moment in which a spoiled protocol shows: what seeds hit by chance now and then is hit each time.

The code as it is survives them all, which is seen by running them with it, too.
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from emsworker import Ems
from emsworker.chaos import HandlerRun, Recorder, read_history
from tests.support.waiting import until
from tests.support.worker import children_of, kill
from verification.chaos.arena import LEASE_S, Arena
from verification.chaos.breaks.database import variable
from verification.chaos.names import KEYS, TOPIC
from verification.chaos.network import Network

_BEYOND_LEASE_S = LEASE_S + 1.5
_AIM_S = 30.0
_BETWEEN_S = 15.0
_ON_ITS_WAY_S = 0.02


def backlog(arena: Arena, count: int = 60, work_s: float = 0.03) -> None:
    """More than one owner could do, so that claims are long and everybody wants the same partitions."""
    send(arena, count, work_s)
    arena.goes_on(count)


def pause_in_hand(arena: Arena, group: str, times: int = 2) -> None:
    """Pause a child in the middle of a message, until another has done it; then it goes on."""
    for _ in range(times):
        send(arena, 6, 0.5)
        began = time.monotonic()
        pid = _stopped_in(arena, group, 0.0)
        time.sleep(_BEYOND_LEASE_S)
        kill(pid, signal.SIGCONT)
        arena.note("pause", began, pid)
        arena.goes_on()


def kill_in_hand(arena: Arena, group: str, times: int = 3) -> None:
    """Kill a child in the middle of a message, when its acked offset has long been written."""
    for _ in range(times):
        send(arena, 6, 0.5)
        pid = _stopped_in(arena, group, 0.3)
        arena.kill([pid])
        arena.goes_on()
        for worker in arena.living():
            worker.wait_ready()


def kill_between_commits(arena: Arena, times: int = 3) -> None:
    """Kill a child whose effect is committed while its acked offset is not, if there is such a moment."""
    deadline = time.monotonic() + _BETWEEN_S
    killed = 0
    while killed < times and time.monotonic() < deadline:
        pid = arena.chance.choice(_children(arena))
        with _stopped(pid):
            # Twice, because what it has sent before it was stopped may just be carried out.
            if all(_is_between_commits(arena, pid) for _ in _spread(2, _ON_ITS_WAY_S)):
                arena.kill([pid])
                killed += 1
        time.sleep(arena.chance.uniform(0, 0.01))
    arena.goes_on()


def _spread(count: int, apart_s: float) -> Iterator[int]:
    for number in range(count):
        if number:
            time.sleep(apart_s)
        yield number


def _is_between_commits(arena: Arena, pid: int) -> bool:
    found = arena.looker.rows(
        "SELECT 1 FROM cash x JOIN ems_message m ON m.uid = UNHEX(REPLACE(x.uid, '-', '')) "
        "JOIN ems_group g ON g.name = 'cash' AND g.topic_id = m.topic_id "
        "JOIN ems_claim c ON c.group_id = g.id AND c.`partition` = m.`partition` AND m.`offset` BETWEEN c.lo AND c.hi "
        "WHERE c.state = 'start' AND c.source = 'stream' AND c.acked_to < m.`offset` AND c.client_id LIKE %s LIMIT 1",
        f"%-{pid}-%",
    )
    return bool(found)


def distant_producers(arena: Arena) -> None:
    """Some producers are far away: between the offset that Redis gives them and their row others' rows arrive."""
    network = Network(arena.url)
    network.delay_s = 0.2
    near, arena.looker.url = arena.looker.url, network.url
    try:
        with arena.fault("network"):
            distant = [arena.start_producer() for _ in range(2)]
            _wait_for_sends(arena, {one.pid for one in distant}, 12)
            for one in distant:
                one.terminate()
                one.wait(60)
    finally:
        arena.looker.url = near
        network.close()
    arena.goes_on()


def _wait_for_sends(arena: Arena, pids: set[int], count: int) -> None:
    """Until each of some producers has got so many sends confirmed."""

    def sent() -> bool:
        files = {pid: list((arena.folder / "history").glob(f"{pid}-*.jsonl")) for pid in pids}
        return all(sum(file.read_text().count('"sent"') for file in of) >= count for of in files.values())

    until(sent, 3 * _AIM_S, f"the producers send; logs:\n{arena.tail()}", 0.1)


def roll_redis_below_the_log_start(arena: Arena) -> None:
    """Redis is as it was when what has been done and deleted since was yet to be sent."""
    import redis

    assert arena.redis
    with contextlib.closing(redis.Redis.from_url(arena.redis.url)) as client:
        old: dict[Any, Any] = {key: client.dump(key) for key in client.scan_iter()}
        before = _trimmed(arena)
        until(lambda: _all_further(_trimmed(arena), before, 10), 60, f"retention deletes; logs:\n{arena.tail()}", 0.1)
        with arena.fault("redis"):
            for key, value in old.items():
                client.restore(key, 0, value, replace=True)
    arena.goes_on()


def _trimmed(arena: Arena) -> list[int]:
    return [row[0] for row in arena.looker.rows("SELECT trimmed FROM ems_partition ORDER BY topic_id, `partition`")]


def _all_further(now: list[int], before: list[int], by: int) -> bool:
    return all(one >= other + by for one, other in zip(now, before, strict=True))


def kill_a_worker_for_good(arena: Arena, grace_s: float) -> None:
    """Supervisor and children at once, and wait until nothing should be left of their leases."""
    victim = arena.chance.choice(arena.living())
    arena.kill([victim.pid, *children_of(victim.pid)])
    victim.process.wait()
    arena.start_worker().wait_ready()

    def over() -> bool:
        seconds = "TIMESTAMPDIFF(MICROSECOND, expires_at, UTC_TIMESTAMP(6)) / 1000000"
        rows = arena.looker.rows(f"SELECT {seconds} FROM ems_client WHERE name = %s", victim.name)
        return all(row[0] > grace_s for row in rows)

    until(over, 30, "its clients are swept away, or should have been", 0.1)


def limit_rows(arena: Arena, limit: int = 3) -> None:
    """A server whose sessions return a few rows only, unless they say otherwise; workers come after that."""
    with variable(arena, "sql_select_limit", limit):
        before = arena.living()
        for worker in [arena.start_worker() for _ in before]:
            worker.wait_ready()
        for worker in before:
            assert worker.stop() == 0, worker.text()[-3000:]
        send(arena, 60, 0.0)
        arena.goes_on(20)


# -- aiming ------------------------------------------------------------------------------------------------------------


def send(arena: Arena, count: int, work_s: float) -> None:
    """Send some messages that take so long, of any keys."""
    recorder = Recorder(arena.folder / "history", sync=False)
    with contextlib.closing(Ems("aimer", url=arena.url, middleware=[recorder])) as app:
        for key in (arena.chance.choice(KEYS) for _ in range(count)):
            app.send(TOPIC, {"work_s": work_s}, key=key)


def _children(arena: Arena) -> list[int]:
    def alive() -> list[int]:
        return [pid for worker in arena.living() for pid in children_of(worker.pid) if pid in worker.children()]

    return until(alive, _AIM_S, "children")


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(pid, signal.SIGCONT)


def _stopped_in(arena: Arena, group: str, for_s: float) -> int:
    """Stop a child that has been running a message of a group for so many seconds, and runs it still."""

    def running(pids: list[int]) -> list[HandlerRun]:
        runs = [run for run in read_history(arena.folder / "history").runs if run.pid in pids and run.ended is None]
        return [run for run in runs if run.group == group and run.began < time.monotonic() - for_s]

    def stop() -> int | None:
        for run in running(_children(arena)):
            kill(run.pid, signal.SIGSTOP)
            if running([run.pid]):
                return run.pid
            kill(run.pid, signal.SIGCONT)
        return None

    pid = until(stop, _AIM_S, f"a child runs a message of group {group}; logs:\n{arena.tail()}")
    assert pid is not None
    return pid
