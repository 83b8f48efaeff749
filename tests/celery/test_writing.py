"""Results of several threads are stored together, and each thread learns of its own."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from emsworker.core.errors import MessageTooLarge, StoreUnavailable
from emsworker.integrations.celery.storage import Writer
from emsworker.integrations.celery.store import results
from emsworker.integrations.celery.store.results import StoredValue
from emsworker.store.engine.database import Database
from tests.support.tables import migrate
from tests.support.waiting import until
from tests.support.worker import ROOT


class Store:
    """A store whose writes wait until they may pass.

    Attributes:
        batches: the keys of each write that has begun.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[bytes]] = []
        self.passes = threading.Semaphore(0)
        self.refused: set[bytes] = set()
        self.is_down = False
        self.stored: list[bytes] = []
        monkeypatch.setattr(results, "put", self._put)
        self.writer = Writer(lambda work: work(None), self.stored.extend)  # type: ignore[arg-type]

    def _put(self, session: object, entries: Sequence[StoredValue]) -> None:
        keys = [entry.key for entry in entries]
        self.batches.append(keys)
        assert self.passes.acquire(timeout=10)
        if self.refused & set(keys):
            raise MessageTooLarge("too large")
        if self.is_down:
            raise StoreUnavailable("not reached for 30 s")

    def put(self, key: bytes) -> "Put":
        return Put(lambda: self.writer.put(StoredValue(key, b"", False, None)))


class Put(threading.Thread):
    """A thread that stores a result."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(monkeypatch)


def _waiting(store: Store, count: int) -> None:
    until(lambda: len(store.writer._waiting) == count, 10, f"{count} threads wait")


def _eight_behind_a_write(store: Store) -> list[Put]:
    """Let eight threads wait for a write, which ends then; returns them."""
    first = store.put(b"0")
    until(lambda: store.batches, 10, "the first write begins")
    others = [store.put(b"%d" % number) for number in range(1, 9)]
    _waiting(store, 8)
    store.passes.release()
    first.join(10)
    assert not first.is_alive() and not first.error
    return others


def test_what_comes_during_a_write_is_written_by_the_next_one(store: Store) -> None:
    others = _eight_behind_a_write(store)
    until(lambda: len(store.batches) == 2, 10, "the second write begins")
    assert sorted(store.batches[1]) == [b"%d" % number for number in range(1, 9)]
    assert all(one.is_alive() for one in others)  # each of them returns after its commit
    store.passes.release()
    for one in others:
        one.join(10)
    assert not any(one.is_alive() or one.error for one in others)


def test_a_result_that_is_refused_fails_its_own_thread_only(store: Store) -> None:
    first = store.put(b"0")
    until(lambda: store.batches, 10, "the first write begins")
    store.refused = {b"bad"}
    others = {key: store.put(key) for key in (b"a", b"bad", b"c")}
    _waiting(store, 3)
    for _ in range(5):
        store.passes.release()
    for one in [first, *others.values()]:
        one.join(10)
    assert {key: type(one.error) for key, one in others.items()} == {
        b"a": type(None),
        b"bad": MessageTooLarge,
        b"c": type(None),
    }
    assert sorted(store.stored) == [b"0", b"a", b"c"]


def test_threads_are_told_together_that_the_server_is_away(store: Store) -> None:
    others = _eight_behind_a_write(store)
    until(lambda: len(store.batches) == 2, 10, "the second write begins")
    store.is_down = True
    store.passes.release()
    for one in others:
        one.join(10)
    assert {type(one.error) for one in others} == {StoreUnavailable}
    assert len(store.batches) == 2  # each of them would have waited for as long again
    assert store.stored == [b"0"]


def test_an_interrupted_thread_leaves_the_results_of_others_to_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SoftTimeLimit(Exception):
        pass

    put, cut = store._put, []

    def interrupted(session: object, entries: Sequence[StoredValue]) -> None:
        put(session, entries)
        if len(store.batches) == 2:
            cut.append(entries[0].key)
            raise SoftTimeLimit

    monkeypatch.setattr(results, "put", interrupted)
    first = store.put(b"0")
    until(lambda: store.batches, 10, "the first write begins")
    others = [store.put(b"%d" % number) for number in range(1, 4)]
    _waiting(store, 3)
    for _ in range(3):
        store.passes.release()
    for one in [first, *others]:
        one.join(10)
    assert [type(one.error) for one in others].count(SoftTimeLimit) == 1
    assert len(store.batches) == 3
    assert len(store.batches[2]) == 2


_GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
from celery import Celery, states
app = Celery("greenlets", broker="memory://", backend=sys.argv[1])
def task(number):
    app.backend.store_result(f"id {number}", number, states.SUCCESS)
waiting = [gevent.spawn(lambda n=n: app.AsyncResult(f"id {n}").get(timeout=30)) for n in range(200)]
while len(app.backend.poller._waiters) < 200:
    gevent.sleep(0.01)
gevent.joinall([gevent.spawn(task, number) for number in range(200)])
gevent.joinall(waiting, timeout=40)
assert [one.value for one in waiting] == list(range(200)), [one.exception for one in waiting if one.exception]
print("sessions", len(app.backend._storage._idle))
"""


def test_greenlets_share_a_few_sessions(database: str) -> None:
    with Database(database).session() as session:
        migrate(session)
    env: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _GREENLETS, f"ems+{database}"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 0, ran.stderr
    assert 1 <= int(ran.stdout.split()[-1]) <= 20
