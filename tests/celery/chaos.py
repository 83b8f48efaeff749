"""Scenarios that break workers, connections and servers under a Celery project; the same on each broker."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import redis

from emsworker.local import LocalDatabase, Redis
from tests.celery.brokers import Broker
from tests.celery.project import Project, Worker, publish
from tests.support.servers import connect, kill_connection
from tests.support.waiting import until

LEASE_S = 3.0


class Faults(Protocol):
    """What a scenario does to the broker's server."""

    def restart(self) -> None:
        """Kill -9 the server and start it again."""

    def cut(self) -> int:
        """End some of the project's connections; returns how many."""


@dataclass(frozen=True)
class DatabaseFaults:
    """Faults of a database server.

    Args:
        server: the server.
        database: the project's.
    """

    server: LocalDatabase
    database: str

    def restart(self) -> None:
        """Kill -9 the server and start it again."""
        self.server.kill()
        self.server.start()

    def cut(self) -> int:
        """KILL half of the connections, chosen at random."""
        with connect(self.server.admin_url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (self.database,))
            chosen = [row[0] for row in cursor.fetchall() if random.random() < 0.5]
            for number in chosen:
                kill_connection(cursor, number)
        return len(chosen)


@dataclass(frozen=True)
class RedisFaults:
    """Faults of a Redis, whose append-only file is synced every second.

    Args:
        server: the server.
        open_again: called after a start.
    """

    server: Redis
    open_again: Callable[[], None]

    def restart(self) -> None:
        """Kill -9 the server and start it again."""
        self.server.kill()
        self.server.start()
        self.open_again()

    def cut(self) -> int:
        """CLIENT KILL half of the connections, chosen at random."""
        with redis.Redis(port=self.server.port) as client:
            own = client.client_id()
            chosen = [one["id"] for one in client.client_list() if int(one["id"]) != own and random.random() < 0.5]
            return sum(client.client_kill_filter(_id=number) for number in chosen)


@dataclass(frozen=True)
class Outcome:
    """How a scenario ended.

    Args:
        sent: tasks whose ``delay()`` returned.
        hit: those that had not ended when the first fault came.
        lost: those of them that had not ended when the time was over.
        again: those that ended more than once.
        took_s: from the first fault until the last of them had ended.
    """

    sent: int
    hit: int
    lost: int
    again: int
    took_s: float


def options_of(broker: Broker) -> dict[str, float]:
    """Return the transport's options by which a message of a dead worker comes back after `LEASE_S`."""
    return {"lease_s": LEASE_S} if broker.name == "ems" else {"visibility_timeout": LEASE_S}


def _outcome(
    project: Project, sent: set[int], hit: int, began: float, patience_s: float, what: str = "ended"
) -> Outcome:
    with suppress(AssertionError):  # that is what the outcome tells
        until(lambda: sent <= set(project.count(what)), patience_s, "all have ended", poll_s=0.1)
    took_s = time.monotonic() - began
    ended = project.count(what)
    return Outcome(len(sent), hit, len(sent - set(ended)), sum(1 for number in sent if ended[number] > 1), took_s)


def _some_ended(project: Project, ended: int, sent: int) -> int:
    """Wait until some have ended; returns how many have not."""
    project.wait_ended(ended)
    return sent - len(project.count("ended"))


@contextmanager
def _every(seconds: float, fault: Callable[[], object]) -> Iterator[list[object]]:
    """Call a fault again and again meanwhile; yields what it returned."""
    over, done = threading.Event(), list[object]()

    def body() -> None:
        while not over.wait(seconds):
            done.append(fault())

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def killed_worker(project: Project, faults: Faults, patience_s: float) -> Outcome:
    """Kill -9 of one of two workers that acknowledge late, 40 tasks."""
    first, _ = project.workers(2)
    publish(project, 40, seconds=1.0)
    hit = _some_ended(project, 5, 40)
    began = time.monotonic()
    first.kill()
    return _outcome(project, set(range(40)), hit, began, patience_s)


def long_task(project: Project, faults: Faults, patience_s: float) -> Outcome:
    """A task four times as long as the lease or the visibility timeout, with an idle worker beside it."""
    project.workers(2, "-c", "1")
    began = time.monotonic()
    publish(project, 1, seconds=4 * LEASE_S)
    until(lambda: project.count("ended")[0], 60, "the task has ended")
    # A second delivery would have begun at once in the idle worker, and be still running.
    until(lambda: time.monotonic() > began + 6 * LEASE_S, 60, "a second one could have begun")
    again = sum(project.count("began").values()) - 1
    return Outcome(1, 1, 0, again, time.monotonic() - began)


def killed_server(project: Project, faults: Faults, patience_s: float) -> Outcome:
    """Kill -9 of the server while 60 tasks are consumed."""
    project.worker().wait_ready()
    publish(project, 60, seconds=0.5)
    hit = _some_ended(project, 10, 60)
    began = time.monotonic()
    faults.restart()
    return _outcome(project, set(range(60)), hit, began, patience_s)


def cut_connections(project: Project, faults: Faults, patience_s: float) -> Outcome:
    """Half of the connections ended every 300 ms while 300 tasks are published, claimed and acknowledged."""
    project.workers(2)
    began = time.monotonic()
    sender = project.program(
        "for number in range(300):\n"
        "    try:\n        work.delay(number)\n"
        "    except Exception as error:\n        print('refused', number, repr(error), flush=True)\n"
        "    else:\n        print('sent', number, flush=True)\n"
    )
    with _every(0.3, faults.cut) as cuts:
        out, err = sender.communicate(timeout=120)
        until(lambda: len(project.count("ended")) > 150 and len(cuts) > 5, 60, "connections were cut")
    assert sender.returncode == 0, err
    sent = {int(line.split()[1]) for line in out.splitlines() if line.startswith("sent")}
    return _outcome(project, sent, len(sent), began, patience_s)


def stopped_worker(project: Project, faults: Faults, patience_s: float) -> Outcome:
    """SIGSTOP of one of two workers for three leases, then SIGCONT."""
    first, _ = project.workers(2)
    publish(project, 60, seconds=0.5)
    hit = _some_ended(project, 5, 60)
    began = time.monotonic()
    first.send(signal.SIGSTOP)
    until(lambda: time.monotonic() > began + 3 * LEASE_S, 60, "three leases are over")
    first.send(signal.SIGCONT)
    return _outcome(project, set(range(60)), hit, began, patience_s)


def cold_shutdown(project: Project, faults: Faults, patience_s: float) -> Outcome:
    """SIGQUIT, the cold shutdown, while four tasks run and more are prefetched; then another worker."""
    worker = project.worker("-c", "4").wait_ready()
    sender = project.program("for number in range(30): work.delay(number, 1.0)")
    hit = _some_ended(project, 4, 30)
    began = time.monotonic()
    worker.stop(signal.SIGQUIT)
    assert sender.wait(120) == 0, sender.communicate()[1]
    project.worker("-c", "4").wait_ready()
    return _outcome(project, set(range(30)), hit, began, patience_s)


def eta_storm(project: Project, faults: Faults, patience_s: float) -> Outcome:
    """300 tasks with a countdown of 1 to 9 seconds; a worker of two is killed and replaced every 2 seconds."""
    workers = project.workers(2)
    began, sent_at = time.monotonic(), time.time()
    project.run("for number in range(300): work.apply_async((number,), countdown=1 + number % 9)")
    with _every(2.0, partial(_replace_one, project, workers)):
        until(lambda: time.monotonic() > began + 9, 60, "all are due")
    outcome = _outcome(project, set(range(300)), 300, began, patience_s)
    early = [number for number, at in project.times("began").items() if at < sent_at + 1 + number % 9 - 0.05]
    assert not early, f"before their time: {early}"
    return outcome


def _replace_one(project: Project, workers: list[Worker]) -> None:
    workers.pop(0).kill()
    workers.append(project.worker())


def chord_storm(project: Project, faults: Faults, patience_s: float) -> Outcome:
    """20 chords of 10 parts, while a worker of two is killed and replaced every 2 seconds."""
    workers = project.workers(2)
    began = time.monotonic()
    project.run(
        "from celery import chord\n"
        "for number in range(20): chord([square.s(part) for part in range(10)])(total.s(number))"
    )
    chords, hit = set(range(20)), 20 - len(project.count("body"))
    with _every(2.0, partial(_replace_one, project, workers)) as killed:
        until(lambda: len(killed) >= 3, 60, "workers were killed")
    outcome = _outcome(project, chords, hit, began, patience_s, "body")
    assert all(words[2] == "285" for words in project.lines() if words[0] == "body")
    return outcome


Scenario = Callable[[Project, Faults, float], Outcome]
SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        killed_worker,
        long_task,
        killed_server,
        cut_connections,
        stopped_worker,
        cold_shutdown,
        eta_storm,
        chord_storm,
    )
}
