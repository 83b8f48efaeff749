"""Three servers and one worker: a server that dies, a topic that moves, and calls from one server to another."""

import os
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.admin.placement import TopicMove
from emsworker.core.errors import ConfigError, StoreUnavailable
from emsworker.core.model import Receipt
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from tests.process.apps.placed import TOPICS, hand_over
from tests.support.looker import Looker
from tests.support.prepared import PreparedDatabase
from tests.support.servers import chosen_flavors, connect
from tests.support.several import migrated
from tests.support.waiting import until
from tests.support.worker import Program

APP = "tests.process.apps.placed:app"
LONG = bool(os.environ.get("EMS_TEST_PLACEMENT_LONG"))
TOTAL = 100_000 if LONG else 10_000
NAMES = ("main", "east", "west")
_TIMEOUT_S = 900 if LONG else 180


@dataclass
class Servers:
    """Three servers of one flavor, and the settings of an app on them."""

    running: dict[str, LocalDatabase]
    folder: Path
    programs: list[Program] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, str]:
        others = [f"{name}={self.running[name].url} {name}.*" for name in NAMES[1:]]
        return {"url": self.running["main"].url, "servers": " ".join(others)}

    def app(self, **more: object) -> Ems:
        return Ems("sender", **self.settings, **more)

    def worker(self, **options: object) -> Program:
        looker = Looker(self.running["main"].url)
        log = self.folder / f"worker-{len(self.programs)}.log"
        program = Program("worker", looker, log, self.settings, app=APP, threads=2, **options)
        self.programs.append(program)
        until(lambda: "Ready:" in program.text(), 90, f"the worker is ready:\n{program.text()}")
        return program

    def runs(self) -> list[tuple[str, str, int, float]]:
        """What was run: topic, key, number and time; of each process in its order."""
        found = []
        for path in sorted(self.folder.glob("runs-*.csv")):
            for line in path.read_text().splitlines():
                topic, key, number, at = line.split(",")
                found.append((topic, key, int(number), float(at)))
        return sorted(found, key=lambda run: run[3])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalDatabase]]:
    flavor = chosen_flavors()[0]
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        running = {name: PreparedDatabase(folder / name, flavor) for name in NAMES}
        for server in running.values():
            stack.callback(server.kill)
            server.start(120)
            migrated(server.url)
        yield running


@pytest.fixture
def placed(three: dict[str, LocalDatabase], tmp_path: Path) -> Iterator[Servers]:
    """The three servers with empty streams."""
    for server in three.values():
        server.start(120)
        with connect(server.url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW TABLES LIKE 'ems\\_%%'")
            for (table,) in cursor.fetchall():
                if table != "ems_schema_version":
                    cursor.execute(f"DELETE FROM {table}")
    placed = Servers(three, tmp_path)
    yield placed
    for program in placed.programs:
        if program.process.poll() is None:
            program.kill_all()


class Senders:
    """A thread for each topic that sends numbers under five keys; a send that was not confirmed is repeated."""

    def __init__(self, app: Ems, topics: Sequence[str], each: int) -> None:
        self._app, self.each = app, each
        self.errors: list[BaseException] = []
        self.threads = [threading.Thread(target=self._send, args=(topic,)) for topic in topics]

    def _send(self, topic: str) -> None:
        try:
            for number in range(self.each):
                uid = str(uuid.uuid4())
                while True:
                    try:
                        self._app.send(topic, number, key=f"k{number % 5}", uid=uid)
                        break
                    except StoreUnavailable:
                        time.sleep(0.1)
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> "Senders":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self.threads:
            thread.join(_TIMEOUT_S)
        assert not any(thread.is_alive() for thread in self.threads), "a sender does not end"
        assert not self.errors, self.errors


def check_runs(runs: list[tuple[str, str, int, float]], topics: Sequence[str], each: int, *, again: set[str]) -> None:
    """Check that every message was run, once except in the topics of ``again``, and each key's in order."""
    counts = Counter((topic, number) for topic, _, number, _ in runs)
    assert {place for place in counts if place[0] in topics} == {(topic, n) for topic in topics for n in range(each)}
    twice = {topic for (topic, _), count in counts.items() if count > 1}
    assert twice <= again, {place: count for place, count in counts.items() if count > 1 and place[0] not in again}
    first: dict[tuple[str, str], list[int]] = defaultdict(list)
    seen = set[tuple[str, int]]()
    for topic, key, number, _ in runs:
        if key and (topic, number) not in seen:
            seen.add((topic, number))
            first[topic, key].append(number)
    assert all(numbers == sorted(numbers) for numbers in first.values())


@pytest.mark.slow
def test_a_server_dies_and_a_topic_moves_under_load(placed: Servers) -> None:
    each = TOTAL // len(TOPICS)
    placed.worker()
    app = placed.app(publish_timeout_s=2, connect_timeout_s=2)
    others = [topic for topic in TOPICS if not topic.startswith("east")]

    def ran(topic: str) -> int:
        return sum(run[0] == topic for run in placed.runs())

    with Senders(app, TOPICS, each):
        until(lambda: all(ran(topic) > each // 50 for topic in TOPICS), 90, "all topics are under way")
        moving = threading.Thread(target=TopicMove(placed.app(), "main.1", "west").run)
        moving.start()
        moving.join(_TIMEOUT_S)
        assert not moving.is_alive()
        placed.running["east"].kill()
        died_at = time.monotonic()
        before = {topic: ran(topic) for topic in others}
        until(
            lambda: all(ran(topic) > min(before[topic] + each // 50, each - 1) for topic in others),
            60,
            "the topics of other servers go on",
        )
        went_on_s = time.monotonic() - died_at
        placed.running["east"].start(120)
    expected = each * len(TOPICS)
    until(lambda: len({run[:3] for run in placed.runs()}) >= expected, _TIMEOUT_S, "everything has run")
    check_runs(placed.runs(), TOPICS, each, again={topic for topic in TOPICS if topic.startswith("east")})
    gaps = _longest_gaps(placed.runs(), others, died_at, died_at + went_on_s)
    print(f"went on after {went_on_s:.2f} s; longest pause of each topic meanwhile: {gaps}")
    west = Looker(placed.running["west"].url)
    main = Looker(placed.running["main"].url)
    count = "SELECT COUNT(*) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id WHERE t.name = 'main.1' AND m.kind = 'message'"
    assert west.rows(count)[0][0] + main.rows(count)[0][0] == each
    assert west.rows(count)[0][0] > 0
    app.close()


def _longest_gaps(
    runs: list[tuple[str, str, int, float]], topics: Sequence[str], since: float, until_: float
) -> dict[str, float]:
    found = {}
    for topic in topics:
        times = [since, *(at for name, _, _, at in runs if name == topic and since < at < until_)]
        found[topic] = round(max((b - a for a, b in pairwise(times)), default=0.0), 2)
    return found


@pytest.mark.slow
def test_children_run_where_the_app_has_a_topic(placed: Servers) -> None:
    placed.app().send("east.0", 0, key="k")
    worker = placed.worker(processes=1, topics=["east.0"])
    assert worker.text().count("started child") == 1, worker.text()
    until(lambda: len(placed.runs()) == 1, 30, "it runs")
    for target, runs in (("west", 2), ("main", 3), ("east", 4)):
        app = placed.app()
        TopicMove(app, "east.0", target).run(timeout_s=30)
        app.send("east.0", runs - 1, key="k")
        app.close()
        until(lambda runs=runs: len(placed.runs()) == runs, 30, f"children have started on {target}")
    assert [run[2] for run in placed.runs()] == [0, 1, 2, 3]
    for server in ("main", "west"):
        Admin(Database(placed.running[server].url)).delete_group("east.0", "readers", force=True)
    until(lambda: len(_children(worker)) == 1, 30, "children end where no topic is left")
    assert worker.process.poll() is None


def _children(worker: Program) -> list[str]:
    pid = worker.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.slow
def test_a_transactional_task_calls_a_task_of_another_server_once(placed: Servers) -> None:
    with connect(placed.running["main"].url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS effect (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
        cursor.execute("REPLACE INTO effect VALUES (1, 0)")
    app = placed.app()
    worker = placed.worker(processes=1)
    bodies = [[[n], {}] for n in range(200)]
    for body in bodies[:100]:
        app.publisher.send("main.calls", body, headers={"ems-task": hand_over.name})
    worker.kill_all()
    placed.worker()
    for body in bodies[100:]:
        app.publisher.send("main.calls", body, headers={"ems-task": hand_over.name})
    until(lambda: len({run[2] for run in placed.runs()}) == 200, 90, "all calls have run on the other server")
    assert Looker(placed.running["main"].url).rows("SELECT n FROM effect")[0][0] == 200
    east = Looker(placed.running["east"].url)
    assert east.rows("SELECT COUNT(*) FROM ems_message WHERE kind = 'message'")[0][0] == 200
    calls: list[Receipt] = [
        Receipt(str(uuid.UUID(int=(7 << 76) | (2 << 62) | n)), "east.calls", None, None) for n in range(200)
    ]
    assert app.results(calls).get(timeout=30) == [n + 1 for n in range(200)]
    app.close()


def test_a_connection_to_none_of_the_servers_is_refused(placed: Servers, server: LocalDatabase) -> None:
    app = placed.app()
    with connect(server.url) as connection, pytest.raises(ConfigError, match="leads to none of the servers"):
        app.send("east.0", "x", transaction=connection)
    app.close()


def test_a_connection_to_another_server_is_found(placed: Servers) -> None:
    app = placed.app()
    with connect(placed.running["east"].url) as connection:
        app.send("west.0", "x", transaction=connection)
        connection.commit()
    waiting = "SELECT t.name, t.server FROM ems_outbox o JOIN ems_topic t ON t.id = o.topic_id"
    assert Looker(placed.running["east"].url).rows(waiting) == [("west.0", "west")]
    assert Looker(placed.running["main"].url).rows(waiting) == []
    app.close()
