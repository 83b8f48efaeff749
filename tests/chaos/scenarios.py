"""What is broken. A scenario brings about its faults while producers send and workers run, and says when all is whole."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from emsworker import Ems
from emsworker.chaos import Recorder
from tests.chaos.arena import LEASE_S, Arena
from tests.support.servers import connect
from tests.support.waiting import until
from tests.support.worker import children_of, kill

CLOCK = Path(__file__).parent / "clock"
_BEYOND_LEASE_S = LEASE_S + 1.5


@dataclass(frozen=True)
class Scenario:
    """One way to break it.

    Args:
        bring_about: breaks, waits, and mends.
        redis: it needs one, and the redis allocator; networked: it needs the proxy.
        heals_within_s: the longest time that it may take until all is well again, ``None`` for a fault that
            nothing is promised about.
        settings: of the workers, over the usual ones; topic: of the topic.
        dead: how many messages are dead letters at the end.
        leases_hold: no lease should run out but those of processes that it stops: if one does, the machine was busy.
    """

    name: str
    bring_about: Callable[[Arena], None]
    redis: bool = False
    networked: bool = False
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
        return f"{'redis' if self.redis else 'any'} {'network' if self.networked else 'direct'}"


# -- workers and producers ---------------------------------------------------------------------------------------------


def _child(arena: Arena) -> int:
    workers = arena.victims()

    def alive() -> list[int]:
        return [pid for pid in arena.chance.choice(workers).children() if Path(f"/proc/{pid}").exists()]

    return arena.chance.choice(until(alive, 30, "a child"))


def kill_children(arena: Arena, times: int = 3) -> None:
    for _ in range(times):
        victim = _child(arena)
        arena.kill([victim])
        arena.goes_on()
        until(lambda victim=victim: not any(victim in worker.children() for worker in arena.living()), 30, "it is gone")  # type: ignore[misc]
        for worker in arena.living():
            worker.wait_ready()


def kill_a_worker(arena: Arena) -> None:
    """Supervisor and child at once, as when the machine is lost: the lease has to run out."""
    victim = arena.chance.choice(arena.victims())
    arena.kill([victim.pid, *children_of(victim.pid)])
    victim.process.wait()
    arena.goes_on()
    arena.start_worker().wait_ready()


def kill_a_supervisor(arena: Arena) -> None:
    victim = arena.chance.choice(arena.victims())
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
        pid, began = _child(arena), time.monotonic()
        kill(pid, signal.SIGSTOP)
        time.sleep(_BEYOND_LEASE_S)
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


# -- the database ------------------------------------------------------------------------------------------------------


def kill_the_server(arena: Arena, times: int = 2) -> None:
    for _ in range(times):
        with arena.fault("server"):
            arena.server.kill()
            time.sleep(0.5)
            arena.server.start(120)
        arena.goes_on()


def restart_the_server(arena: Arena) -> None:
    with arena.fault("server"):
        arena.server.stop(60)
        arena.server.start(120)
    arena.goes_on()


def read_only(arena: Arena) -> None:
    with arena.fault("server"), _variable(arena, "read_only", 1):
        time.sleep(2)
    arena.goes_on()


@contextmanager
def _variable(arena: Arena, name: str, value: int) -> Iterator[Any]:
    """A global variable of the server is another one for a while; gives the administrator's cursor."""
    with connect(arena.server.admin_url, autocommit=True) as admin, admin.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{name}")
        before = cursor.fetchall()[0][0]
        cursor.execute(f"SET GLOBAL {name} = {value}")
        try:
            yield cursor
        finally:
            cursor.execute(f"SET GLOBAL {name} = {before}")


def too_many_connections(arena: Arena) -> None:
    """Ours are ended, and others take the places."""
    hogs: list[Any] = []
    refused = 0
    with arena.fault("server"):
        with _variable(arena, "max_connections", 10) as cursor:
            deadline = time.monotonic() + 3.5
            while time.monotonic() < deadline:
                try:
                    hogs.append(connect(arena.url))
                except pymysql.err.OperationalError as error:
                    assert error.args[0] == 1040, error
                    refused += 1
                    _kill_connections(arena, cursor, 0.3)
        for hog in hogs:
            with contextlib.suppress(pymysql.err.Error):  # it was among those that were killed
                hog.close()
    assert refused, "there were too many"
    arena.goes_on()


def hostile_locks(arena: Arena) -> None:
    """Somebody holds the rows that we need, and takes them in the wrong order, so that the server sees deadlocks."""
    with arena.hostile() as other, other.cursor() as cursor:
        for table in ("ems_cursor", "ems_partition", "ems_client"):
            with arena.fault("server"):
                cursor.execute(f"SELECT * FROM {table} FOR UPDATE")
                time.sleep(1.0)
                other.rollback()
        with arena.fault("server"):
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                with contextlib.suppress(pymysql.err.OperationalError):  # the deadlock may as well be ours
                    cursor.execute(
                        "UPDATE ems_cursor SET skipped = skipped + 1 ORDER BY group_id DESC, `partition` DESC"
                    )
                    cursor.execute("SELECT * FROM ems_claim WHERE state <> 'done' FOR UPDATE")
                    cursor.execute("UPDATE ems_partition SET floor = floor ORDER BY `partition` DESC")
                other.rollback()
    arena.goes_on()


def kill_connections(arena: Arena, for_s: float = 5.0) -> None:
    with arena.fault("server"), connect(arena.server.admin_url, autocommit=True) as admin, admin.cursor() as cursor:
        killed, in_commit = _kill_connections(arena, cursor, for_s)
    assert killed > 2 * for_s, "connections were killed"
    print(f"  {killed} connections killed, {in_commit} of them in COMMIT", flush=True)
    arena.goes_on()


def _kill_connections(arena: Arena, cursor: Any, for_s: float) -> tuple[int, int]:
    """KILL our connections, above all those that commit just now; the looker's is left alone."""
    mine = arena.looker.rows("SELECT CONNECTION_ID()")[0][0]
    deadline, next_any = time.monotonic() + for_s, 0.0
    killed = in_commit = 0
    while time.monotonic() < deadline:
        cursor.execute(
            "SELECT id, info, state FROM information_schema.processlist WHERE db = DATABASE() AND id <> %s".replace(
                "DATABASE()", "%s"
            ),
            (arena.url.rsplit("/", 1)[1], mine),
        )
        rows = list(cursor.fetchall())
        committing = [row[0] for row in rows if _commits(row[1], row[2])]
        chosen = committing[:2]
        if not chosen and rows and time.monotonic() > next_any:
            chosen, next_any = [arena.chance.choice(rows)[0]], time.monotonic() + 0.1
        for number in chosen:
            with contextlib.suppress(pymysql.err.OperationalError):  # it ended just now
                cursor.execute(f"KILL {number}")
                killed += 1
                in_commit += number in committing
        time.sleep(0.002)
    return killed, in_commit


def _commits(info: str | None, state: str | None) -> bool:
    text = f"{info or ''} {state or ''}".lower()
    return text.lstrip().startswith("commit") or "commit" in (state or "").lower() or "handler commit" in text


# -- Redis -------------------------------------------------------------------------------------------------------------


def kill_redis(arena: Arena) -> None:
    assert arena.redis
    with arena.fault("redis"):
        arena.redis.kill()
        arena.goes_on()
        arena.redis.start(60)
    arena.goes_on()


def flush_redis(arena: Arena) -> None:
    for _ in range(4):
        with arena.fault("redis"), _redis(arena) as client:
            client.flushall()
        arena.goes_on(10)


def roll_redis_back(arena: Arena) -> None:
    """As after a start from an old snapshot: every counter is what it was some time ago."""
    with _redis(arena) as client:
        old = {key: client.dump(key) for key in client.scan_iter()}
        arena.goes_on(60)
        with arena.fault("redis"):
            client.flushall()
            for key, value in old.items():
                client.restore(key, 0, value)
    arena.goes_on()


def slow_redis(arena: Arena) -> None:
    with arena.fault("redis"), _redis(arena) as client:
        for _ in range(3):
            client.execute_command("CLIENT", "PAUSE", "700", "ALL")
            time.sleep(1)
    arena.goes_on()


@contextmanager
def _redis(arena: Arena) -> Iterator[Any]:
    import redis

    assert arena.redis
    with redis.Redis.from_url(arena.redis.url) as client:
        yield client


# -- the network -------------------------------------------------------------------------------------------------------


def cut_network(arena: Arena) -> None:
    assert arena.network
    with arena.fault("network"):
        arena.network.cut()
        time.sleep(_BEYOND_LEASE_S)
        arena.network.heal()
    arena.goes_on()


def freeze_network(arena: Arena) -> None:
    assert arena.network
    with arena.fault("network"):
        arena.network.freeze()
        time.sleep(_BEYOND_LEASE_S)
        arena.network.heal()
    arena.goes_on()


def half_open_network(arena: Arena) -> None:
    """A firewall forgets the connections: whoever waits for an answer hears of it when the other end is reset."""
    assert arena.network
    with arena.fault("network"):
        arena.network.half_open()
        time.sleep(_BEYOND_LEASE_S)
        arena.network.reset()
    arena.goes_on()


def slow_network(arena: Arena) -> None:
    assert arena.network
    with arena.fault("network"):
        arena.network.delay_s = 0.05
        time.sleep(4)
        arena.network.heal()
    arena.goes_on()


def reset_network(arena: Arena) -> None:
    assert arena.network
    with arena.fault("network"):
        for _ in range(12):
            arena.network.reset()
            time.sleep(arena.chance.uniform(0.05, 0.5))
    arena.goes_on()


# -- clocks, poison, retries -------------------------------------------------------------------------------------------


def jump_clock(arena: Arena) -> None:
    """The date of one worker's machine jumps by an hour, first ahead and then back."""
    ahead = arena.folder / "ahead"
    _set_clock(ahead, 0)
    arena.environ = {"PYTHONPATH": str(CLOCK), "EMS_TEST_CLOCK": str(ahead)}
    worker = arena.start_worker().wait_ready()
    arena.environ = {}
    for jump in (3600, -3600, 0):
        _set_clock(ahead, jump)
        arena.goes_on(20)
        time.sleep(_BEYOND_LEASE_S)
    assert "ran out" not in worker.text(), "no lease was lost"
    assert {1, -1} <= _hours_ahead(arena.folder / "history"), "its clock was wrong"


def _set_clock(file: Path, ahead_s: int) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(str(ahead_s))
    partial.replace(file)


def _hours_ahead(folder: Path) -> set[int]:
    """By how many hours the clocks of those who ran messages were wrong: the ids of runs tell."""
    events = (json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().split("\n")[:-1])
    dates = [int(event["run"].replace("-", "")[:12], 16) / 1000 for event in events if event["event"] == "begin"]
    return {round((date - time.time()) / 3600) for date in dates}


def poison(arena: Arena) -> None:
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
    arena.note("poison", began)


def retry_storm(arena: Arena) -> None:
    storm = arena.folder / "storm"
    with arena.fault("storm"):
        storm.touch()
        time.sleep(4)
        storm.unlink()
    arena.goes_on()


# -- combinations ------------------------------------------------------------------------------------------------------


def combined(arena: Arena) -> None:
    """Three faults at once, by the seed."""
    choices = [kill_children, pause_a_child, kill_producers, kill_the_server, read_only, kill_connections, retry_storm]
    chosen = arena.chance.sample(choices, 3)
    print(f"  at once: {', '.join(one.__name__ for one in chosen)}", flush=True)
    errors: list[BaseException] = []

    def one(bring: Callable[[Arena], None]) -> None:
        for _ in range(15):
            try:
                return bring(arena)
            except (pymysql.err.MySQLError, OSError) as error:  # the harness's own look at a server that is away
                last: BaseException = error
                time.sleep(1)
            except BaseException as error:
                last = error
                break
        errors.append(last)
        return None

    threads = [threading.Thread(target=one, args=(bring,)) for bring in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def in_short(arena: Arena) -> None:
    """A little of everything, for the suite: what the long form does one by one, and for longer."""
    kill_children(arena, 1)
    kill_producers(arena, 1)
    kill_connections(arena, 1.5)
    if arena.redis:
        with arena.fault("redis"), _redis(arena) as client:
            client.flushall()
    pid, began = _child(arena), time.monotonic()
    kill(pid, signal.SIGSTOP)
    kill_the_server(arena, 1)
    time.sleep(max(0.0, began + _BEYOND_LEASE_S - time.monotonic()))
    kill(pid, signal.SIGCONT)
    arena.note("pause", began, pid)


WORKER_S = LEASE_S + 2  # the promise: after a worker's kill
SERVER_S = 5.0
SCENARIOS = [
    Scenario("child killed", kill_children, heals_within_s=WORKER_S),
    Scenario("worker killed", kill_a_worker, heals_within_s=WORKER_S),
    Scenario("supervisor killed", kill_a_supervisor, heals_within_s=WORKER_S),
    Scenario("beat's leader killed", kill_the_beat, heals_within_s=WORKER_S),
    Scenario("worker paused", pause_a_child, heals_within_s=WORKER_S),
    Scenario("producers killed", kill_producers),
    Scenario("server killed", kill_the_server, heals_within_s=SERVER_S),
    Scenario("server restarted", restart_the_server, heals_within_s=SERVER_S),
    Scenario("server read-only", read_only, heals_within_s=SERVER_S),
    Scenario("too many connections", too_many_connections, heals_within_s=SERVER_S),
    Scenario("locks and deadlocks", hostile_locks),
    Scenario("connections killed", kill_connections, heals_within_s=SERVER_S),
    Scenario("clock jumps", jump_clock, leases_hold=False),
    Scenario("retry storm", retry_storm),
    Scenario("three at once", combined),
    Scenario("network cut", cut_network, networked=True),
    Scenario("network frozen", freeze_network, networked=True),
    Scenario("network half-open", half_open_network, networked=True),
    Scenario("network slow", slow_network, networked=True),
    Scenario("network reset", reset_network, networked=True),
    Scenario("Redis killed", kill_redis, redis=True),
    Scenario("Redis flushed", flush_redis, redis=True),
    Scenario("Redis slow", slow_redis, redis=True),
    Scenario("Redis rolled back", roll_redis_back, redis=True, topic={"trim_done": True}),
    Scenario("poison", poison, settings={"timeout_s": 2, "max_attempts": 2}, dead=4),
]
