"""A side topic in an arena: sent to from the harness, handled by :mod:`verification.chaos.rough`, and done before it is left."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.chaos import Recorder
from emsworker.core.errors import EmsError
from emsworker.store.engine.database import Database
from tests.support.waiting import until
from tests.support.worker import Program
from verification.chaos.arena import Arena

ROUGH = "verification.chaos.rough:app"
_DONE_S = 90.0


@contextmanager
def sender(arena: Arena) -> Iterator[Ems]:
    """An app that writes its sends into the history; it knows of topics what a process of its own would know."""
    recorder = Recorder(arena.folder / "history", sync=False)
    options: dict[str, Any] = {"redis_url": arena.redis.url, "allocator": arena.allocator} if arena.redis else {}
    with contextlib.closing(Ems("side", url=arena.url, middleware=[recorder], **options)) as app:
        yield app


def admin_of(arena: Arena) -> Admin:
    """An operator."""
    return Admin(Database(arena.url))


def prepare(arena: Arena, topic: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Create a topic and some of its groups, with settings of their own."""
    admin = admin_of(arena)
    admin.create_topic(topic, partitions=2)
    for group, settings in groups.items():
        admin.create_group(topic, group, **settings)


@contextmanager
def worker_of(arena: Arena, *topics: str, **environ: str) -> Iterator[Program]:
    """A worker of the rough app for some topics; it is told to stop at the end, and must do so well."""
    worker = arena.start_worker(ROUGH, topics, environ).wait_ready()
    yield worker
    assert worker.stop() == 0, worker.text()[-3000:]


@contextmanager
def load(arena: Arena, send: Callable[[Ems, int], object], pause_s: float = 0.02) -> Iterator[Callable[[], int]]:
    """Call ``send`` again and again in a thread until the end; gives what counts how often that was confirmed."""
    stopping = threading.Event()
    confirmed: list[int] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with sender(arena) as app:
                n = 0
                while not stopping.wait(pause_s):
                    n += 1
                    with contextlib.suppress(EmsError):  # its topic is away; the history has it as not confirmed
                        send(app, n)
                        confirmed.append(n)
        except BaseException as error:
            failed.append(error)

    def count() -> int:
        if failed:
            raise failed[0]
        return len(confirmed)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield count
    finally:
        stopping.set()
        thread.join(60)
    if failed:
        raise failed[0]


def wait_done(arena: Arena, *topics: str) -> None:
    """Wait until nothing is left to do in some topics."""
    until(
        lambda: not left_in(arena, topics),
        _DONE_S,
        f"all is done in {topics}; left: {left_in(arena, topics)}; logs:\n{arena.tail()}",
        0.05,
    )


def left_in(arena: Arena, topics: tuple[str, ...]) -> list[Any]:
    """Some of what is not done in these topics."""
    of = "JOIN ems_group g ON g.id = x.group_id JOIN ems_topic t ON t.id = g.topic_id WHERE t.name IN %s"
    rows = arena.looker.rows
    behind = rows(
        f"SELECT g.name, x.`partition`, x.next_offset FROM ems_cursor x {of} AND x.next_offset <= (SELECT "
        "MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = t.id AND m.`partition` = x.`partition`)",
        topics,
    )
    claims = rows(f"SELECT g.name, x.lo, x.hi, x.state FROM ems_claim x {of} AND x.state <> 'done' LIMIT 5", topics)
    retries = rows(f"SELECT g.name, x.`offset`, x.due_at FROM ems_retry x {of} LIMIT 5", topics)
    pending = rows(
        "SELECT t.name, x.due_at FROM ems_outbox x JOIN ems_topic t ON t.id = x.topic_id WHERE t.name IN %s LIMIT 5",
        topics,
    )
    return [*behind, *claims, *retries, *pending]


def now() -> float:
    """The time of the history."""
    return time.monotonic()
