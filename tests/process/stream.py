"""A stream on a real server, with everything that a process test needs around it.

In some tests, and with EMS_TEST_ROLES=1 in all, every program has the privileges of its role alone: workers those of a
worker, with those of a beat if they run one, beats those of a beat, what sends those of a producer, and what changes
topics and groups those of an admin.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from emsworker import Ems
from emsworker.local import LocalDatabase as Server
from tests.process.record import Record
from tests.support.looker import Looker
from tests.support.recycling import prepare_stream, recycled_database
from tests.support.roles import users
from tests.support.servers import connect
from tests.support.waiting import until
from tests.support.worker import Program

ACTOR = "tests.process.apps.actor:app"
_TABLES = (
    "CREATE TABLE effect (id INT PRIMARY KEY AUTO_INCREMENT, n INT NOT NULL, pid INT NOT NULL, KEY (n)) ENGINE=InnoDB",
    "CREATE TABLE account (id INT PRIMARY KEY, amount INT NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE cash (id BIGINT PRIMARY KEY AUTO_INCREMENT, uid CHAR(36) NOT NULL) ENGINE=InnoDB",
)


class Stream:
    """A migrated database, a producer, and the programs that a test starts.

    Args:
        server: runs the database.
        url: of the database.
        folder: for records and logs.
        as_roles: every program has the privileges of its role alone.
    """

    def __init__(self, server: Server, url: str, folder: Path, *, as_roles: bool = False) -> None:
        self.server = server
        self.url = url
        self._looker = Looker(url)
        self.record = Record(folder)
        self._folder = folder
        self._programs: list[Program] = []
        self._end = contextlib.ExitStack()
        self.urls = self._as_roles() if as_roles else dict.fromkeys(("worker", "alone", "beat", "sender", "admin"), url)
        self.app = self._own_app = Ems("sender", url=self.urls["admin"])
        self._sender = Ems("sender", url=self.urls["sender"])

    def _as_roles(self) -> dict[str, str]:
        make = self._end.enter_context(users(self.server, self.url))
        database = self.url.rsplit("/", 1)[1]
        own = [f"SELECT, INSERT, UPDATE, DELETE ON `{database}`.{table}" for table in ("effect", "account", "cash")]
        return {
            "worker": make("worker", ["auto-create", "beat"], own),
            "alone": make("worker", ["auto-create"], own),
            "beat": make("beat"),
            "sender": make("producer", ["auto-create"]),
            "admin": make("admin"),
        }

    def worker(self, app: str = ACTOR, settings: dict[str, Any] | None = None, **options: Any) -> Program:
        """Start a worker and wait until it is ready; ``options`` as those of the command."""
        return self.start("worker", settings, app=app, **options).wait_ready()

    def beat(self, settings: dict[str, Any] | None = None, **options: Any) -> Program:
        """Start a beat alone; ``options`` as those of the command."""
        return self.start("beat", settings, **options)

    def start(self, what: str, settings: dict[str, Any] | None = None, **options: Any) -> Program:
        """Start a program without waiting for it."""
        log = self._folder / f"{what}-{len(self._programs)}.log"
        url = self.urls["alone" if what == "worker" and not options.get("beat", True) else what]
        program = Program(what, self._looker, log, {"url": url, **(settings or {})}, **options)
        self._programs.append(program)
        return program

    def send(self, topic: str, bodies: Sequence[dict[str, Any]], **options: Any) -> None:
        """Send some messages."""
        sender = self._sender if self.app is self._own_app else self.app  # a test may have its own
        sender.send_many(topic, bodies, **options)

    def rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._looker.rows(statement, *args)

    def one(self, statement: str, *args: Any) -> Any:
        """The first column of the first row."""
        return self.rows(statement, *args)[0][0]

    def run(self, statement: str, *args: Any) -> None:
        """Run a statement and commit."""
        self._looker.rows(statement, *args)

    def wait_ended(self, numbers: Sequence[int], timeout_s: float = 20, **wanted: Any) -> None:
        """Wait until each of these numbers has ended at least once."""
        until(
            lambda: set(numbers) <= set(self.record.numbers(**wanted)),
            timeout_s,
            f"{len(numbers)} messages have ended; log:\n{self.logs()}",
        )

    def open_claims(self) -> list[tuple[Any, ...]]:
        """Claims that are not finished."""
        return self.rows(
            "SELECT group_id, lo, hi, acked_to, state, source, client_id FROM ems_claim WHERE state <> 'done'"
        )

    def wait_settled(self, timeout_s: float = 20) -> None:
        """Wait until nothing is left to do: no lag, no open claim, no retry."""

        def left() -> list[Any]:
            lag = self.rows(
                "SELECT g.name, c.`partition`, c.next_offset FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id "
                "WHERE c.next_offset <= (SELECT MAX(m.`offset`) FROM ems_message m "
                "WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`)"
            )
            return [*lag, *self.open_claims(), *self.rows("SELECT * FROM ems_retry")]

        until(lambda: not left(), timeout_s, f"settled; log:\n{self.logs()}")

    def logs(self) -> str:
        """The last lines of every program."""
        return "\n".join("\n".join(program.text().splitlines()[-25:]) for program in self._programs)

    def close(self) -> None:
        """End whatever still runs."""
        self.app.close()
        self._sender.close()
        for program in self._programs:
            if program.process.poll() is None:
                program.kill_all()
        self._looker.close()
        self._end.close()


def _prepare(url: str) -> None:
    prepare_stream(url)
    with connect(url) as connection, connection.cursor() as cursor:
        for statement in _TABLES:
            cursor.execute(statement)


@contextlib.contextmanager
def open_stream(server: Server, folder: Path, *, as_roles: bool = False) -> Iterator[Stream]:
    """A stream in a database of its own, closed and dropped afterwards."""
    with recycled_database(server, _prepare) as url:
        stream = Stream(server, url, folder, as_roles=as_roles or bool(os.environ.get("EMS_TEST_ROLES")))
        try:
            yield stream
        finally:
            stream.close()
