"""A migrated database with what a test of the store wants to do to it; the fixtures are imported by a conftest."""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pymysql
import pytest

from emsworker import Ems
from emsworker.beat import recovery
from emsworker.core.codec import Decoder
from emsworker.core.flush import Flush
from emsworker.core.model import Claim, Failure, Group, Outcome, Topic
from emsworker.core.work import Claimant
from emsworker.local import LocalDatabase
from emsworker.store import topics
from emsworker.store.cluster import clients
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import claims
from tests.support import rows
from tests.support.recycling import recycled_database
from tests.support.servers import connect
from tests.support.waiting import until

T = TypeVar("T")
LEASE_S = 60.0
TIMEOUT_S = 60.0


def wait_until(condition: Callable[[], T], seconds: float = 15.0, what: str = "it") -> T:
    """Poll until ``condition`` is true; fails the test after so many seconds."""
    return until(condition, seconds, what, poll_s=0.005)


def in_threads(count: int, work: Callable[[int], T]) -> list[T]:
    """Run ``work(0)``, ``work(1)``, ... at once, all starting together; errors are raised here."""
    barrier = threading.Barrier(count)

    def one(number: int) -> T:
        barrier.wait(30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@dataclass
class Stream:
    """A migrated database.

    Args:
        url: of the database.
        session: one of ours, for the calling thread.
        sql: one of PyMySQL's own, with autocommit, to look behind the scenes.
    """

    url: str
    session: Session
    sql: "pymysql.Connection[pymysql.cursors.Cursor]"
    apps: list[Ems] = field(default_factory=list)

    def app(self, **settings: Any) -> Ems:
        """A new app on this database."""
        app = Ems("test", **{"url": self.url, **settings})
        self.apps.append(app)
        return app

    def new_session(self) -> Session:
        """One more session of ours, for another client."""
        return Database(self.url).session()

    def other(self) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        """One more foreign connection, which does not commit by itself."""
        return connect(self.url, autocommit=False)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a statement returns, on the foreign connection."""
        with self.sql.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def value(self, statement: str, *values: Any) -> Any:
        """The first value of the first row."""
        return self.rows(statement, *values)[0][0]

    def explain(self, statement: str, args: dict[str, Any]) -> list[dict[str, Any]]:
        """The server's plan of one of our statements, on our session."""
        text = self.session.mogrify(f"EXPLAIN FORMAT=TRADITIONAL {statement}", args)
        if "mariadb" in str(self.value("SELECT VERSION()")).lower():
            text = text.replace("FORMAT=TRADITIONAL ", "")
        cursor = self.session._open().cursor(pymysql.cursors.DictCursor)
        cursor.execute(text)
        return list(cursor.fetchall())

    def status(self, *names: str) -> dict[str, int]:
        """Counters of the whole server."""
        found = self.rows(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({','.join(['%s'] * len(names))})", *names)
        return {str(name): int(value) for name, value in found}

    def lock_waits(self) -> int:
        """How many waits for a row's lock the server has counted; a time would tell of the machine, too."""
        return self.status("Innodb_row_lock_waits")["Innodb_row_lock_waits"]

    def topic(self, name: str = "t", partitions: int = 1, **settings: Any) -> Topic:
        """A topic."""
        return topics.create_topic(self.session, name, partitions=partitions, **settings)

    def group(self, topic: Topic, name: str = "g", **settings: Any) -> Group:
        """A group that begins with the oldest message."""
        defaults = {"timeout_s": TIMEOUT_S, "ladder": "1s 2s", "max_attempts": 3}
        return topics.create_group(self.session, topic, name, **{**defaults, **settings})

    def client(self, lease_s: float = LEASE_S) -> str:
        """A registered client; each is its own process."""
        client_id = f"client-{uuid.uuid4().hex}"
        clients.register(self.session, [client_id], f"process-{client_id}", "test", lease_s)
        return client_id

    def claimant(
        self, topic: Topic, group: Group, client_id: str, batch: int = 500, batch_bytes: int = 4 << 20
    ) -> Claimant:
        """Who takes work, with a new claim id."""
        return Claimant(topic, group, client_id, batch, batch_bytes, Decoder())

    def take(self, topic: Topic, group: Group, client_id: str, batch: int = 500, partition: int = 0) -> Claim:
        """A claim of new messages; there must be some."""
        claim = claims.take_range(self.session, self.claimant(topic, group, client_id, batch), partition, wait=True)
        assert claim
        return claim

    def claims(self, group: Group) -> list[tuple[int, int, int, str, str | None, int]]:
        """The log of a group: lo, hi, acked_to, state, client_id, isolated."""
        return self.rows(
            "SELECT lo, hi, acked_to, state, client_id, isolation FROM ems_claim WHERE group_id = %s ORDER BY lo, claim_id",
            group.id,
        )

    def retries(self, group: Group) -> list[tuple[int, int, bool, int]]:
        """offset, attempt, claimed, isolated."""
        found = self.rows(
            "SELECT `offset`, attempt, claim_id IS NOT NULL, isolation FROM ems_retry WHERE group_id = %s ORDER BY `offset`",
            group.id,
        )
        return [(offset, attempt, bool(claimed), isolated) for offset, attempt, claimed, isolated in found]

    def cursor(self, group: Group, partition: int = 0) -> int:
        """The next offset that a group has not claimed."""
        found = self.value(
            "SELECT next_offset FROM ems_cursor WHERE group_id = %s AND `partition` = %s", group.id, partition
        )
        return int(found)

    def expire(self, client_id: str) -> None:
        """Let a lease run out."""
        rows.run_out(self.rows, client_id)

    def make_due(self) -> None:
        """Let the time of every retry come."""
        rows.make_due(self.rows)

    def recover(self) -> list[recovery.Recovered]:
        """One round of the beat's service."""
        return recovery.recover(self.session, 0.0, 0.0)


def flush_of(claim: Claim, topic: Topic, acked_to: int, **more: Any) -> Flush:
    """Progress of a claim; it is finished when all of it is done."""
    return Flush(claim, topic.id, acked_to, TIMEOUT_S, **{"finished": acked_to >= claim.hi, **more})


def failed(offset: int, attempt: int = 1, retry_in_s: float | None = 0.0, dead: str | None = None) -> Failure:
    """A failure that is retried, or with ``dead`` buried."""
    return Failure(offset, attempt, Outcome.FAILED, "ValueError: no", None if dead else retry_in_s, dead, 0.001)


def offsets(claim: Claim) -> list[int]:
    """The offsets that a claim gives its owner to run."""
    return [message.offset for message in claim.messages]


@contextlib.contextmanager
def open_stream(url: str) -> Iterator[Stream]:
    """A database that has its tables already."""
    with (
        Database(url).session() as session,
        connect(url, autocommit=True, settings="SESSION time_zone = '+00:00'") as sql,
    ):
        made = Stream(url, session, sql)
        try:
            yield made
        finally:
            for app in made.apps:
                app.close()


@pytest.fixture
def stream(server: LocalDatabase) -> Iterator[Stream]:
    """A migrated database on each server."""
    with recycled_database(server) as url, open_stream(url) as made:
        yield made


AppFactory = Callable[..., Ems]


@pytest.fixture(params=["mysql", "redis"])
def new_app(request: pytest.FixtureRequest, stream: Stream) -> AppFactory:
    """Makes apps on the stream, once for each allocator."""
    if request.param == "mysql":
        return stream.app
    redis_url: str = request.getfixturevalue("redis_url")

    def make(**settings: Any) -> Ems:
        return stream.app(**{"allocator": "redis", "redis_url": redis_url, **settings})

    return make


@pytest.fixture
def app(new_app: AppFactory) -> Ems:
    """An app on the stream, once for each allocator."""
    return new_app()


def stored(stream: Stream, topic: str) -> dict[int, list[int]]:
    """The offsets that a topic has, by partition."""
    found: dict[int, list[int]] = {}
    rows: Sequence[tuple[Any, ...]] = stream.rows(
        "SELECT m.`partition`, m.`offset` FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 "
        "WHERE t.name = %s ORDER BY 1, 2",
        topic,
    )
    for partition, offset in rows:
        found.setdefault(partition, []).append(offset)
    return found
