"""The list of what is broken, on what, and how soon all must be whole again."""

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pymysql

from tests.support.worker import kill
from verification.chaos import sites
from verification.chaos.arena import Arena
from verification.chaos.breaks import (
    clusters,
    database,
    disk,
    failover,
    handlers,
    network,
    operators,
    processes,
    redis_server,
    work,
)
from verification.chaos.breaks.seizing import seize_workers
from verification.chaos.breaks.storm import endure
from verification.chaos.breaks.uses import Cancels, Places, Shares
from verification.chaos.names import IDLE, SESSION, SLOW, SWALLOW
from verification.chaos.sites import Open


@dataclass(frozen=True)
class Scenario:
    """One way to break it.

    Args:
        bring_about: breaks, waits, and fixes; returns what the table says instead of a recovery, if it says anything.
        redis: it needs one, and the redis allocator; site: what the stream lives on.
        heals_within_s: the longest time that it may take until all is well again, ``None`` for a fault that
            nothing is promised about.
        settings: of the workers, over the usual ones; topic: of the topic.
        dead: how many messages are dead letters at the end.
        leases_hold: no lease should run out but those of processes that it stops: if one does, the machine was busy.
    """

    name: str
    bring_about: Callable[[Arena], str | None]
    redis: bool = False
    site: Open = sites.alone
    heals_within_s: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    topic: dict[str, Any] = field(default_factory=dict)
    dead: int = 0
    leases_hold: bool = True

    @property
    def place(self) -> str:
        """What the scenarios that may share an arena have in common."""
        if self.settings or self.topic:
            return self.name
        return f"{'redis' if self.redis else 'any'} {self.site.__name__}"


def combined(arena: Arena) -> None:
    """Three faults at once, by the seed."""
    choices = [
        processes.kill_children,
        processes.pause_a_child,
        processes.kill_producers,
        database.kill_the_server,
        database.read_only,
        database.kill_connections,
        work.retry_storm,
    ]
    chosen = arena.chance.sample(choices, 3)
    print(f"  at once: {', '.join(one.__name__ for one in chosen)}", flush=True)
    _all_at_once([partial(_patiently, bring, arena) for bring in chosen])


def _patiently(bring: Callable[[Arena], object], arena: Arena) -> None:
    last: Exception | None = None
    for _ in range(15):
        try:
            bring(arena)
            return
        except (pymysql.err.MySQLError, OSError) as error:  # the harness's own look at a server that is away
            last = error
            time.sleep(1)
    if last is not None:
        raise last


def _all_at_once(works: Sequence[Callable[[], object]]) -> None:
    """Call functions in threads of their own, and raise the first error when all have ended."""
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work) for work in works]
    for one in running:
        one.result()


def in_short(arena: Arena) -> None:
    """A little of everything, for the suite: what the long form does one by one, and for longer."""
    with arena.hostile() as foreign, foreign.cursor() as cursor:
        seen = _foreign_look(cursor)
        processes.kill_children(arena, 1)
        processes.kill_producers(arena, 1)
        database.kill_connections(arena, 1.5, spare=foreign.thread_id())
        assert _foreign_look(cursor) == seen, "somebody else's transaction was open all the time"
        foreign.rollback()
    if arena.redis:
        with arena.fault("redis"), redis_server.client_of(arena) as client:
            client.flushall()
    pid = processes.pick_child(arena)
    seize_workers(arena, [pid])
    began = time.monotonic()
    database.kill_the_server(arena, 1)
    time.sleep(max(0.0, began + processes.BEYOND_LEASE_S - time.monotonic()))
    kill(pid, signal.SIGCONT)
    arena.note("pause", began, pid)


def misused_in_short(arena: Arena) -> None:
    """What users' code and operators do, a little of each, for the suite, which has other tests of forks and the alias."""
    rough = partial(handlers.misbehave, arena, (SWALLOW, SESSION, SLOW, IDLE), 12)
    again = partial(operators.create_again, arena, 1)
    _all_at_once([rough, partial(operators.operate, arena, 1), again])


_HITS = 7  # each fault once
_PLACES = ((), ("gpu",), ("gpu", "eu"))


def cancel_calls(arena: Arena) -> str:
    """Calls are cancelled in every state."""
    return endure(arena, [Cancels(arena)], _HITS)


def share_a_group(arena: Arena) -> str:
    """Tenants share a fair group, one of whom has most of the messages."""
    return endure(arena, [Shares(arena)], _HITS)


def move_places(arena: Arena) -> str:
    """Workers with tags come and go."""
    return endure(arena, [Places(arena)], _HITS, _PLACES)


def _foreign_look(cursor: Any) -> object:
    """A look into the stream, in a transaction in REPEATABLE READ (the server's default) that stays open."""
    cursor.execute("SELECT COUNT(*), MAX(claim_id) FROM ems_claim")
    return cursor.fetchall()


SERVER_S = 5.0
SCENARIOS = [
    Scenario("child killed", processes.kill_children, heals_within_s=processes.WORKER_S),
    Scenario("worker killed", processes.kill_a_worker, heals_within_s=processes.WORKER_S),
    Scenario("supervisor killed", processes.kill_a_supervisor, heals_within_s=processes.WORKER_S),
    Scenario("beat's leader killed", processes.kill_the_beat, heals_within_s=processes.WORKER_S),
    Scenario("beat's leader paused", processes.pause_the_beat),
    Scenario("worker paused", processes.pause_a_child, heals_within_s=processes.WORKER_S),
    Scenario("producers killed", processes.kill_producers),
    Scenario("producers paused", processes.pause_producers),
    Scenario("server killed", database.kill_the_server, heals_within_s=SERVER_S),
    Scenario("server restarted", database.restart_the_server, heals_within_s=SERVER_S),
    Scenario("server read-only", database.read_only, heals_within_s=SERVER_S),
    Scenario("too many connections", database.too_many_connections, heals_within_s=SERVER_S),
    Scenario("locks and deadlocks", database.hostile_locks),
    Scenario("connections killed", database.kill_connections, heals_within_s=SERVER_S),
    Scenario("clock jumps", work.jump_clock, leases_hold=False),
    Scenario("three at once", combined),
    Scenario("errors swallowed", handlers.swallow_errors),
    Scenario("sessions changed", handlers.change_sessions),
    Scenario("handlers too slow", handlers.outlast_timeouts),
    Scenario("forks while sending", handlers.fork_while_sending),
    Scenario("MySQLdb alias", handlers.rename_the_driver),
    Scenario("operators", operators.operate),
    Scenario("topic created again", operators.create_again),
    Scenario("two versions", operators.run_two_versions),
    Scenario("calls cancelled", cancel_calls),
    Scenario("fair shares", share_a_group),
    Scenario("tags come and go", move_places),
    Scenario("network cut", network.cut_network, site=sites.networked),
    Scenario("network frozen", network.freeze_network, site=sites.networked),
    Scenario("network half-open", network.half_open_network, site=sites.networked),
    Scenario("network slow", network.slow_network, site=sites.networked),
    Scenario("network reset", network.reset_network, site=sites.networked),
    Scenario("Redis killed", redis_server.kill_redis, redis=True),
    Scenario("Redis flushed", redis_server.flush_redis, redis=True),
    Scenario("Redis slow", redis_server.slow_redis, redis=True),
    Scenario("Redis rolled back", redis_server.roll_redis_back, redis=True, topic={"keep_done_s": 0}),
    Scenario("a minute of retries", work.minute_of_retries, settings={"ladder": "300ms 1s 2s 4s 8s"}),
    Scenario("disk full", disk.fill_the_disk, site=sites.on_a_small_disk, heals_within_s=SERVER_S),
    Scenario("failover", failover.fail_over, site=sites.replicated, heals_within_s=SERVER_S, leases_hold=False),
    Scenario("poison", work.poison, settings={"timeout_s": 2, "max_attempts": 2}, dead=4),
]

# A handler that runs while the others elect a primary is stopped for as long as that takes.
_PATIENT = {"timeout_s": 120}


def _on_cluster(name: str, bring_about: Callable[[Arena], str], site: Open) -> Scenario:
    return Scenario(name, bring_about, site=site, settings=_PATIENT)


CLUSTERS: dict[str, list[Scenario]] = {
    engine: [
        _on_cluster("primary killed", clusters.kill_the_primary, site),
        _on_cluster("primary frozen", clusters.freeze_the_primary, site),
        _on_cluster("another killed", clusters.kill_another, site),
        _on_cluster("another frozen", clusters.freeze_another, site),
        _on_cluster("two of three frozen", clusters.freeze_two, site),
        _on_cluster("former member alone", clusters.start_a_former_member, site),
        *more,
    ]
    for engine, site, more in (
        (
            "group-replication",
            sites.group_replication,
            [_on_cluster("several primaries", clusters.spread_over_primaries, sites.group_replication)],
        ),
        ("galera", sites.galera, [_on_cluster("writers spread", clusters.spread_writers, sites.galera)]),
        ("router", sites.routed_group, []),
    )
}
IN_SHORT = {
    "group-replication": ("primary frozen", "former member alone"),
    "galera": ("primary frozen", "writers spread"),
}
