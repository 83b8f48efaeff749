"""Workers and producers are killed or stopped."""

import signal
import time
from pathlib import Path

from tests.chaos.arena import LEASE_S, Arena
from tests.support.waiting import until
from tests.support.worker import children_of, kill

BEYOND_LEASE_S = LEASE_S + 1.5


def pick_child(arena: Arena) -> int:
    """The process of some worker's threads."""
    workers = arena.living()

    def alive() -> list[int]:
        return [pid for pid in arena.chance.choice(workers).children() if Path(f"/proc/{pid}").exists()]

    return arena.chance.choice(until(alive, 30, "a child"))


def kill_children(arena: Arena, times: int = 3) -> None:
    for _ in range(times):
        victim = pick_child(arena)
        arena.kill([victim])
        arena.goes_on()
        until(lambda victim=victim: not any(victim in worker.children() for worker in arena.living()), 30, "it is gone")  # type: ignore[misc]
        for worker in arena.living():
            worker.wait_ready()


def kill_a_worker(arena: Arena) -> None:
    """Supervisor and child at once, as when the machine is lost: the lease has to run out."""
    victim = arena.chance.choice(arena.living())
    arena.kill([victim.pid, *children_of(victim.pid)])
    victim.process.wait()
    arena.goes_on()
    arena.start_worker().wait_ready()


def kill_a_supervisor(arena: Arena) -> None:
    victim = arena.chance.choice(arena.living())
    children = children_of(victim.pid)
    began = time.monotonic()
    kill(victim.pid, signal.SIGKILL)
    victim.process.wait()
    arena.start_worker().wait_ready()
    for child in children:
        arena.note("kill", began, child)  # it ends by itself
        until(lambda child=child: not Path(f"/proc/{child}").exists(), 30, "the orphan ends by itself")  # type: ignore[misc]


def kill_the_beat(arena: Arena) -> None:
    holder = arena.looker.rows("SELECT holder FROM ems_leader WHERE duty = 'beat'")[0][0]
    pid = int(holder.rsplit("-", 2)[1])
    victim = next(worker for worker in arena.workers if worker.pid == pid)
    arena.kill([pid, *children_of(pid)])
    victim.process.wait()
    arena.goes_on()
    arena.start_worker().wait_ready()


def pause_a_child(arena: Arena, times: int = 2) -> None:
    for _ in range(times):
        pid, began = pick_child(arena), time.monotonic()
        kill(pid, signal.SIGSTOP)
        time.sleep(BEYOND_LEASE_S)
        kill(pid, signal.SIGCONT)
        arena.note("pause", began, pid)
    arena.goes_on()


def kill_producers(arena: Arena, times: int = 3) -> None:
    for _ in range(times):
        arena.goes_on(10)
        began = time.monotonic()
        victim = arena.producers.pop()
        victim.kill()
        victim.wait()
        arena.note("producer", began)
        arena.start_producer()
