"""Users' code misbehaves: it swallows errors, changes its session, takes too long, forks, and renames the driver."""

from pathlib import Path

from tests.support.waiting import until
from verification.chaos.arena import Arena
from verification.chaos.breaks import database
from verification.chaos.names import IDLE, SESSION, SLOW, SLOW_TIMEOUT_S, SWALLOW
from verification.chaos.side import prepare, sender, wait_done, worker_of

ALIAS = Path(__file__).parents[1] / "alias"
_FORKS_S = 120.0


def prepare_rough(arena: Arena, topics: tuple[str, ...]) -> None:
    """Create topics of misbehaving handlers."""
    for topic in topics:
        groups = (SLOW, "late") if topic == SLOW else ()
        prepare(arena, topic, {group: {"timeout_s": SLOW_TIMEOUT_S} for group in groups})


def send_rough(arena: Arena, topics: tuple[str, ...], count: int) -> None:
    """Send to topics of misbehaving handlers; of those that are slow only a few are."""
    with sender(arena) as app:
        for topic in topics:
            number = count if topic in (SWALLOW, SESSION) else max(count // 4, 3)
            app.send_many(topic, [{"n": n, "late": n % 4 == 0} for n in range(number)])


def misbehave(arena: Arena, topics: tuple[str, ...], count: int) -> None:
    """Send to some of these handlers, and wait until all has been done."""
    prepare_rough(arena, topics)
    with worker_of(arena, *topics):
        send_rough(arena, topics, count)
        wait_done(arena, *topics)
        if SWALLOW in topics:
            _until_deadlocks(arena, count)
    arena.goes_on()


def _until_deadlocks(arena: Arena, count: int) -> None:
    """Send more until two handlers have met in a deadlock: on a busy machine they may run one after the other."""
    for _ in range(10):
        if (arena.folder / "swallowed-1213").exists():
            return
        send_rough(arena, (SWALLOW,), count)
        wait_done(arena, SWALLOW)
    raise AssertionError("no deadlock was there to be swallowed")


def swallow_errors(arena: Arena) -> None:
    """Transactional handlers catch the errors of deadlocks, and go on."""
    misbehave(arena, (SWALLOW,), 200)


def change_sessions(arena: Arena) -> None:
    """Transactional handlers set what a session has, at random, and some of them fail after that."""
    misbehave(arena, (SESSION,), 200)


def outlast_timeouts(arena: Arena) -> None:
    """Handlers sleep past the timeout of their group, or for longer than the server keeps a connection that idles."""
    misbehave(arena, (SLOW, IDLE), 80)


def fork_while_sending(arena: Arena, count: int = 200) -> str:
    """A process forks while its threads send; each child sends for itself, and must not hang in a lock."""
    producer = arena.spawn_producer("verification.chaos.forker", count)
    arena.producers.remove(producer)
    code = producer.wait(_FORKS_S)
    assert code == 0, f"the forker ended with {code}:\n{arena.tail()}"
    arena.goes_on()
    return f"{count} children"


def rename_the_driver(arena: Arena, for_s: float = 4.0) -> None:
    """A worker and two producers have PyMySQL as MySQLdb, while connections are killed."""
    before, arena.environ = arena.environ, arena.environ | {"PYTHONPATH": str(ALIAS)}
    try:
        worker = arena.start_worker()
        producers = [arena.start_producer(0.03) for _ in range(2)]
    finally:
        arena.environ = before
    worker.wait_ready()
    _wait_confirmed(arena, [one.pid for one in producers], 5)
    database.kill_connections(arena, for_s)
    children = worker.children()
    arena.goes_on()
    sent = {one.pid: _confirmed(arena, one.pid) for one in producers}
    until(lambda: all(_confirmed(arena, pid) >= count + 5 for pid, count in sent.items()), 60, "they send on", 0.1)
    for one in producers:
        arena.producers.remove(one)
        one.terminate()
        assert one.wait(60) == 0, arena.tail()
    assert "Traceback" not in worker.text(), worker.text()[-3000:]
    assert children and worker.stop() == 0, worker.text()[-3000:]


def _wait_confirmed(arena: Arena, pids: list[int], count: int) -> None:
    until(lambda: all(_confirmed(arena, pid) >= count for pid in pids), 60, f"they send; logs:\n{arena.tail()}", 0.1)


def _confirmed(arena: Arena, pid: int) -> int:
    """How many sends of a process were confirmed."""
    files = (arena.folder / "history").glob(f"{pid}-*.jsonl")
    return sum(file.read_text().count('"event":"sent"') for file in files)
