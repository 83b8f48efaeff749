"""Messages in outboxes of three servers while their topic moves among them: each reaches the stream exactly once.

Forwarders, relays and moves run in threads of their own, and one of them at a time gets one call of a database done;
chance decides whose turn it is, so that each may stand still while the others do anything, and whether the call fails,
before it or after its commit. What fails is begun anew, as a beat does.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin.placement import TopicMove
from emsworker.beat.forwarder import forwarders
from emsworker.beat.relay import Relay
from emsworker.core.errors import ConfigError, StoreUnavailable, TopicInUse
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from tests.support.servers import connect
from tests.support.several import Several, several_databases
from verification.property.settings import LONG_S, rounds

_SERVERS = ("main", "orders", "mail")
_SENDS, _STEPS, _SEEDS = 40, 1000, 4
_FAULTS = 0.03
# A call was lost, or the topic is between two servers; another process moves it; a move has to be finished first.
_EXPECTED = (StoreUnavailable, TopicInUse, ConfigError)
_BODIES = "SELECT m.body FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = %s"


class Actor(threading.Thread):
    """Does something again and again; each of its calls of a database waits until it is let go.

    Args:
        work: what it does; it may fail.
        weight: how often it gets its turn.
    """

    def __init__(self, work: Callable[[], Any], weight: float) -> None:
        super().__init__(daemon=True)
        self.work, self.weight = work, weight
        self.fault: str | None = None
        self.failed: BaseException | None = None
        self._ends = False
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        """Work until it is told to end."""
        self._go.acquire()
        while not self._ends:
            try:
                self.work()
            except _EXPECTED:
                pass  # the beat, or the operator, tries again
            except BaseException as error:
                self.failed = error
                break
        self._stands.release()

    def turn(self, fault: str | None = None) -> None:
        """Let it do one call, or what comes before its next."""
        self.fault = fault
        self._go.release()
        assert self._stands.acquire(timeout=60), "it stands still"
        if self.failed is not None:
            raise self.failed

    def call(self, work: Callable[[], Any]) -> Any:
        """Wait for its turn, and call."""
        if not self._ends:
            self._stands.release()
            self._go.acquire()
        if self.fault == "before" or self._ends:
            raise StoreUnavailable("lost before the call")
        result = work()
        if self.fault == "after":
            raise StoreUnavailable("lost after the call")
        return result

    def end(self) -> None:
        """Let it fail at its next call, and end."""
        self._ends = True
        self.turn()
        self.join(10)
        assert not self.is_alive()


@pytest.fixture
def several(server: LocalDatabase) -> Iterator[Several]:
    with several_databases(server, *_SERVERS) as several:
        yield several


@pytest.fixture
def apps(several: Several) -> Iterator[dict[str, Ems]]:
    """An app whose transactions are on each server."""
    made = {}
    for name in _SERVERS:
        made[name] = app = Ems(url=several.url, servers=several.setting(orders="parcels-*"), publish_timeout_s=0.1)
        app.bind_to_server(name)
    yield made
    for app in made.values():
        app.close()


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of actors wait for their turns."""
    original = Database.call

    def call(self: Database, work: Callable[..., Any], timeout_s: float | None = None) -> Any:
        actor = threading.current_thread()
        if isinstance(actor, Actor):
            return actor.call(lambda: original(self, work, timeout_s))
        return original(self, work, timeout_s)

    monkeypatch.setattr(Database, "call", call)


class World:
    """The servers, who works on them, and what was sent.

    Args:
        several: the servers.
        apps: by their names.
        seed: of everything that happens.
    """

    def __init__(self, several: Several, apps: dict[str, Ems], seed: int) -> None:
        self._several, self._apps, self._random = several, apps, random.Random(seed)
        self._databases = {name: several.database(name) for name in _SERVERS}
        self._sent = 0
        self.happened = Counter[str]()
        self._topic = f"parcels-{seed}"
        apps["main"].send(self._topic, "first")
        self._actors = [
            Actor(work, self._random.choice([0.05, 1, 1, 5]))
            for name in _SERVERS
            for work in (self._forwarding(name), self._forwarding(name), lambda name=name: self._relay(name))
        ] + [Actor(self._move, self._random.choice([0.2, 1, 3])) for _ in range(2)]
        for actor in self._actors:
            actor.start()

    def _forwarding(self, name: str) -> Callable[[], None]:
        threads = forwarders(self._apps[name].settings, name, lambda *_: None)

        def forward() -> None:
            for thread in threads:
                self.happened["forwarded"] += thread._forward_all()

        return forward

    def _relay(self, name: str) -> None:
        self._databases[name].call(lambda session: Relay()(session, self._apps[name].settings))

    def _move(self) -> None:
        TopicMove(self._apps["main"], self._topic, self._random.choice(_SERVERS)).run(timeout_s=5)
        self.happened["moves"] += 1

    def run(self) -> Counter[bytes]:
        """Let chance play, then let everything come to its end; return the bodies of the stream."""
        sends = sorted(self._random.sample(range(_STEPS), _SENDS), reverse=True)
        for step in range(_STEPS):
            if sends and sends[-1] == step:
                sends.pop()
                self._send()
            if self._random.random() < 0.01:
                self._make_due()
            fault = self._random.choice(["before", "after"]) if self._random.random() < _FAULTS else None
            (actor,) = self._random.choices(self._actors, [one.weight for one in self._actors])
            actor.turn(fault)
        for actor in self._actors:
            actor.end()
        self._settle()
        return Counter(body for name in _SERVERS for (body,) in self._rows(name, _BODIES, self._topic))

    def _send(self) -> None:
        name = self._random.choice(_SERVERS)
        countdown = self._random.choice([None, 3600, 3600])
        with suppress(StoreUnavailable), self._apps[name].transaction() as tx:  # while the topic is being moved
            tx.send(self._topic, str(self._sent), countdown=countdown)
            self._sent += 1

    def _make_due(self) -> None:
        for name in _SERVERS:
            self._rows(name, "UPDATE ems_outbox SET due_at = NOW(6) - INTERVAL 1 SECOND WHERE RAND() < 0.5")

    def _rows(self, name: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with connect(self._several.urls[name], autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def _settle(self) -> None:
        for name in _SERVERS:  # one of them finishes a move that was interrupted, and the last is certain to succeed
            self._make_due()
            with suppress(*_EXPECTED):
                TopicMove(self._apps["main"], self._topic, name).run(timeout_s=5)
        for _ in range(10):
            for name in _SERVERS:
                self._forwarding(name)()
                self._rows(name, "UPDATE ems_outbox SET due_at = NOW(6) - INTERVAL 1 SECOND")
                self._relay(name)
        left = {name: self._rows(name, "SELECT HEX(uid) FROM ems_outbox") for name in _SERVERS}
        assert left == {name: [] for name in _SERVERS}, left

    @property
    def expected(self) -> Counter[bytes]:
        """The bodies that were sent, each once."""
        return Counter([b"first", *(str(number).encode() for number in range(self._sent))])


@pytest.mark.timeout(LONG_S * 2 + 300)
def test_each_message_is_sent_once_wherever_its_topic_goes(several: Several, apps: dict[str, Ems]) -> None:
    seed = int(os.environ.get("EMS_TEST_SEED") or (random.SystemRandom().getrandbits(30) if LONG_S else 1))
    happened = Counter[str]()
    for _ in rounds(LONG_S):
        for number in range(seed, seed + _SEEDS):
            world = World(several, apps, number)
            found = world.run()
            assert found == world.expected, (number, found - world.expected, world.expected - found)
            happened += world.happened
        seed += _SEEDS
    print(f"{happened.total()} in all: {dict(happened)}, next seed {seed}")
    assert happened["moves"] and happened["forwarded"]
