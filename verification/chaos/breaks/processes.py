"""Workers and producers are killed or stopped."""

import signal
import time
from pathlib import Path

from tests.support.waiting import until
from tests.support.worker import Program, children_of, kill
from verification.chaos.arena import LEASE_S, ORPHANED, Arena
from verification.chaos.breaks.seizing import release, seize_producer, seize_workers

BEYOND_LEASE_S = LEASE_S + 1.5
WORKER_S = LEASE_S + 2  # the promise: after a worker's kill


def pick_child(arena: Arena) -> int:
    """The process of some worker's threads."""
    workers = arena.victims()

    def alive() -> list[int]:
        return [pid for pid in arena.chance.choice(workers).children() if Path(f"/proc/{pid}").exists()]

    return arena.chance.choice(until(alive, 30, "a child"))


def kill_children(arena: Arena, times: int = 3) -> None:
    for _ in range(times):
        victim = pick_child(arena)
        seize_workers(arena, [victim])
        arena.kill([victim])
        arena.goes_on()
        until(lambda victim=victim: not any(victim in worker.children() for worker in arena.living()), 30, "it is gone")  # type: ignore[misc]
        for worker in arena.living():
            worker.wait_ready()


def kill_a_worker(arena: Arena) -> None:
    """Supervisor and child at once, as when the machine is lost: the lease has to run out."""
    _lose_machine(arena, arena.chance.choice(arena.victims()))


def _lose_machine(arena: Arena, victim: Program) -> None:
    children = children_of(victim.pid)
    seize_workers(arena, children)
    arena.kill([victim.pid, *children])
    victim.process.wait()
    arena.goes_on()
    arena.start_worker().wait_ready()


def kill_a_supervisor(arena: Arena) -> None:
    """Its child, which has a message in hand, finds itself alone and ends: it finishes that message, or others do."""
    victim = arena.chance.choice(arena.victims())
    children = children_of(victim.pid)
    seize_workers(arena, children)
    began = time.monotonic()
    kill(victim.pid, signal.SIGKILL)
    victim.process.wait()
    release(children)
    arena.start_worker().wait_ready()
    for child in children:
        arena.note(ORPHANED, began, child)
        until(lambda child=child: not Path(f"/proc/{child}").exists(), 30, "the orphan ends by itself")  # type: ignore[misc]


def leader_of(arena: Arena) -> Program:
    """The worker whose beat leads."""

    def leader() -> Program | None:
        holder = arena.looker.rows("SELECT holder FROM ems_leader WHERE service = 'beat'")[0][0]
        return next((worker for worker in arena.living() if worker.pid == int(holder.rsplit("-", 2)[1])), None)

    found = until(leader, 30, "a beat leads")
    assert found
    return found


def kill_the_beat(arena: Arena) -> None:
    _lose_machine(arena, leader_of(arena))


def pause_the_beat(arena: Arena) -> str:
    """A supervisor, and the beat's leader: another leads, its children go on working, and it learns of it when it wakes."""
    victim, began = leader_of(arena), time.monotonic()
    victim.send(signal.SIGSTOP)
    try:
        until(lambda: leader_of(arena) is not victim, WORKER_S, "another leads")
        took_s = time.monotonic() - began
        children = children_of(victim.pid)
        until(lambda: time.monotonic() > began + BEYOND_LEASE_S, 30, "the time of a lease is over")
        assert set(children) <= set(victim.children()), f"its children have kept their leases:\n{victim.text()[-3000:]}"
    finally:
        victim.send(signal.SIGCONT)
    arena.goes_on()
    assert leader_of(arena) is not victim, "the other leads on"
    assert took_s <= WORKER_S, took_s
    return f"{took_s:.1f} s until another led (<= {WORKER_S:g} s)"


def pause_a_child(arena: Arena, times: int = 2) -> None:
    for _ in range(times):
        pid = pick_child(arena)
        seize_workers(arena, [pid])
        began = time.monotonic()
        time.sleep(BEYOND_LEASE_S)
        kill(pid, signal.SIGCONT)
        arena.note("pause", began, pid)
    arena.goes_on()


def kill_producers(arena: Arena, times: int = 3) -> None:
    """In the middle of a send: nobody will ever know whether it landed, and it must not be there in part."""
    for _ in range(times):
        victim = arena.producers.pop()
        seize_producer(arena, victim.pid)
        began = time.monotonic()
        victim.kill()
        victim.wait()
        arena.note("producer", began)
        arena.start_producer()
        arena.goes_on(10)


def pause_producers(arena: Arena, times: int = 2) -> None:
    """In the middle of a send, for longer than anybody waits for its offsets: it sends on when it wakes up."""
    for _ in range(times):
        victim = arena.chance.choice(arena.producers)
        seize_producer(arena, victim.pid)
        with arena.fault("producer"):
            time.sleep(BEYOND_LEASE_S)
            release([victim.pid])
        arena.goes_on(10)
        assert victim.poll() is None, arena.tail()
