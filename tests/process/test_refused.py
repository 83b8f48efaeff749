"""A worker or a beat that cannot work here: refused in one line before anything of it starts, or waiting quietly."""

import contextlib
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems, Filter
from emsworker.admin import Admin
from emsworker.core.model import Order
from emsworker.store.engine.database import Database
from emsworker.tasks.periodic import declare_schedules
from tests.process.stream import ACTOR, Stream
from tests.support.machine import machine_s
from tests.support.roles import MakeUser, users
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.waiting import never, until
from tests.support.worker import kill

ROLES = "tests.process.apps.roles:app"
BROADCAST = "tests.process.apps.broadcast:app"
_START_S = 60.0


@dataclass(frozen=True)
class Case:
    """What is wrong, and what of it is said."""

    said: str
    app: str = ACTOR
    topics: tuple[str, ...] = ("acts",)
    groups: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    role: str = "worker"
    allow: tuple[str, ...] = ("auto-create", "beat")
    url: tuple[str, str] = ("", "")


CASES = {
    "no privileges": Case("lacks what a worker with a beat needs: INSERT, UPDATE, DELETE, SELECT on", role="reader", allow=()),
    "no privileges of a beat": Case("or start it with --no-beat, and `ems beat`", allow=("auto-create",)),
    "may not create": Case("there is no topic 'ordered', and the database user", ROLES, ("ordered",), allow=("beat",)),
    "may not create, and how to go on": Case("prints, or create it with `ems topics create acts`", allow=("beat",)),
    "wrong password": Case("MySQL refused: (1045)", url=(":pw@", ":nix@")),
    "unknown database": Case("MySQL refused: (1044)", url=(r"/ems_\w+$", "/nix")),
    "unknown topic": Case("there is no topic 'acts' and auto_create is off", settings={"auto_create": "off"}),
    "unknown group": Case("topic 'plain' has no group 'plain'", ROLES, ("plain",), settings={"auto_create": "off"}),
    "another filter": Case("group 'wanted' of topic 'wanted' has 'tag other'", topics=("wanted", "acts")),
    "another order": Case("a group's order is for good", ROLES, ("ordered",)),
    "a batch in order": Case("leave out batch", topics=("acts", "batches")),
    "no broadcast": Case("is a cluster topic", ROLES, ("plain", "news")),
    "no app": Case("-A nonsense: there is no module 'nonsense'", "nonsense"),
    "no such topic": Case("-Q names nix", topics=("nix", "acts")),
    "no such group": Case("--groups names nix", groups=("nix", "a")),
    "wrong setting": Case("EMS_THREADS", settings={"threads": "many"}),
}  # fmt: skip


@pytest.fixture
def as_role(stream: Stream) -> Iterator[MakeUser]:
    with users(stream.server, stream.url) as make:
        yield make


def _prepare(stream: Stream) -> None:
    """What is there already: groups that differ from what apps declare, and another app's schedule, long due."""
    admin = Admin(stream.app)
    for topic in ("wanted", "batches", "plain", "news"):
        admin.create_topic(topic)
    admin.create_group("wanted", "wanted", filter=Filter(tags=["other"]))
    admin.create_group("batches", "batches", order=Order.KEY)
    other = Ems("other", url=stream.url)
    other.periodic(every=1.0)(other.task(name="bill", topic="bills")(print))
    declare_schedules(other.stream, other.settings, other.registry.schedules.values())
    other.close()
    stream.run("UPDATE ems_schedule SET next_at = NOW(6) - INTERVAL 1 MINUTE")


def _everything(stream: Stream) -> list[tuple[Any, ...]]:
    tables = ", ".join(name for (name,) in stream.rows("SHOW TABLES"))
    return [*stream.rows(f"CHECKSUM TABLE {tables}"), *stream.rows("SELECT name FROM ems_topic ORDER BY id")]


@pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def test_a_worker_that_is_refused_says_why_in_a_line_and_leaves_no_trace(
    stream: Stream, as_role: MakeUser, case: Case
) -> None:
    _prepare(stream)
    if case.said.startswith("a group's order"):
        Admin(stream.app).create_topic("ordered")
        Admin(stream.app).create_group("ordered", "keyed")
    before = _everything(stream)
    url = re.sub(*case.url, as_role(case.role, case.allow)) if any(case.url) else as_role(case.role, case.allow)
    settings = {"url": url, **case.settings}
    worker = stream.start("worker", settings, app=case.app, topics=case.topics, groups=case.groups, processes=2)
    assert worker.wait(_START_S) == 2, worker.text()
    (line,) = worker.text().splitlines()
    assert line.startswith("Error: ") and case.said in line, line
    assert _everything(stream) == before, "it has written something, or its beat has led"


def test_a_beat_without_privileges_is_refused_as_well(stream: Stream, as_role: MakeUser) -> None:
    beat = stream.start("beat", {"url": as_role("reader")})
    assert beat.wait(_START_S) == 2, beat.text()
    (line,) = beat.text().splitlines()
    assert "lacks what a beat needs" in line and "`ems grants beat" in line


@pytest.mark.parametrize("what", ["worker", "beat"])
def test_a_server_that_is_away_ends_the_start_in_a_line(one_stream: Stream, what: str) -> None:
    """Exit code 1: it may come back, so whatever runs services tries again."""
    program = one_stream.start(what, {"url": "mysql://ems:pw@127.0.0.1:1/ems"}, app=ACTOR)
    assert program.wait(_START_S) == 1, program.text()
    (line,) = program.text().splitlines()
    tried = re.search(r"MySQL could not be reached for (\d+) s", line)  # longer on a busy machine
    assert tried and int(tried[1]) >= 3 and "(--url or EMS_URL)" in line and ":pw@" not in line


# -- what goes wrong later ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _revoked(stream: Stream, url: str) -> Iterator[None]:
    name = url.split("//")[1].split(":")[0]
    accounts = [f"'{name}'@'{host}'" for host in ("localhost", "127.0.0.1")]
    with connect(stream.server.admin_url, autocommit=True) as root, root.cursor() as cursor:
        grants: list[str] = []
        for account in accounts:
            cursor.execute(f"SHOW GRANTS FOR {account}")
            grants += [row[0] for row in cursor.fetchall() if "GRANT USAGE" not in row[0]]
            cursor.execute(f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {account}")
        yield
        for grant in grants:
            cursor.execute(grant)


@contextlib.contextmanager
def _dropped(stream: Stream, url: str) -> Iterator[None]:
    for (name,) in stream.rows("SHOW TABLES LIKE 'ems\\_%%'"):
        stream.run(f"DROP TABLE {name}")
    yield
    with Database(stream.url).session() as session:
        migrate(session)


@pytest.mark.slow
def test_a_right_that_was_revoked_is_told_as_such(stream: Stream, as_role: MakeUser) -> None:
    url = as_role("worker", ["auto-create", "beat"])
    name, database = url.split("//")[1].split(":")[0], url.rsplit("/", 1)[1]
    worker = stream.worker(settings={"url": url}, topics=["acts"], groups=["a"], threads=1)
    with connect(stream.server.admin_url, autocommit=True) as root, root.cursor() as cursor:
        for host in ("localhost", "127.0.0.1"):
            cursor.execute(f"REVOKE INSERT ON `{database}`.ems_claim FROM '{name}'@'{host}'")
        stream.send("acts", [{"n": 1}])
        until(lambda: "cannot take messages: MySQL refused: (1142) INSERT command denied" in worker.text(), 40, "told")
        assert "lost" not in worker.text()
        for host in ("localhost", "127.0.0.1"):
            cursor.execute(f"GRANT INSERT ON `{database}`.ems_claim TO '{name}'@'{host}'")
    stream.wait_ended([1])
    assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [_revoked, _dropped])
def test_what_goes_wrong_later_is_waited_out_quietly(stream: Stream, as_role: MakeUser, trouble: Any) -> None:
    url = as_role("worker", ["auto-create", "beat"])
    worker = stream.worker(settings={"url": url}, topics=["acts"], groups=["a"], processes=2, threads=3)
    beat = stream.beat({"url": url})
    until(lambda: "Ready" in beat.text(), 20, "it beats")
    child, _ = worker.children()
    with trouble(stream, url):
        if trouble is _dropped:  # what comes back is another stream, with other groups: a new process looks them up
            until(lambda: "the next starts in 4.0 s" in worker.text(), 40, "it has tried thrice")
        else:
            until(lambda: worker.text().count("MySQL refused") >= 4, 40, "its threads have tried")
            never(lambda: "the next starts" in worker.text(), 5, "a process has ended")
            kill(child, signal.SIGKILL)  # one that has never been served takes its place
            until(lambda: "the next starts in 2.0 s" in worker.text(), 40, "it has tried")
        told = worker.text()
        lines = told.splitlines()
        assert len(lines) < 80, told
        assert not (again := [line for line, times in Counter(lines).items() if times > 1]), again
        assert "Traceback" not in told and worker.process.poll() is None
        quiet = len(beat.text().splitlines())
        assert quiet < 30, beat.text()
        never(lambda: len(beat.text().splitlines()) > quiet + 3, 2, "the beat repeats itself")
    until(lambda: len(worker.client_ids()) == 6, 60, f"it goes on: {stream.logs()}")
    stream.app.close()
    stream.app = Ems("sender", url=stream.url)  # the other one remembers a topic that is gone
    stream.send("acts", [{"n": 1}])
    stream.wait_ended([1])
    assert worker.stop() == beat.stop() == 0


def test_a_consumer_that_is_refused_later_waits_as_in_an_outage(
    stream: Stream, as_role: MakeUser, caplog: pytest.LogCaptureFixture
) -> None:
    url, total = as_role("worker", ["auto-create"]), 300
    app, numbers = Ems("pulls", url=url), list[int]()
    stream.app.send_many("acts", range(total))

    def pull() -> None:
        for message in consumer:
            numbers.append(message.body)
            consumer.ack(message)

    with app.consumer("acts", "pulled", prefetch=1) as consumer:
        pulling = threading.Thread(target=pull, name="pulls")
        pulling.start()
        until(lambda: len(numbers) > 10, 60, "it has begun")
        with _revoked(stream, url):
            until(lambda: "cannot look for work: MySQL refused" in caplog.text, 60, "it is refused")
        until(lambda: len(set(numbers)) == total, 20, "it goes on")
        consumer.stop()
        pulling.join(30)
        assert not pulling.is_alive()
    app.close()


def test_what_a_preflight_costs(one_stream: Stream) -> None:
    from emsworker.core.config import Settings
    from emsworker.loader import load_app
    from emsworker.worker.preflight import WORKER_WITH_BEAT, check_app, check_stream, chosen_routes

    app = load_app(ACTOR)
    settings = Settings(url=one_stream.url)
    costs = []
    for _ in range(5):
        began = machine_s()
        database = check_stream(one_stream.url, settings, WORKER_WITH_BEAT)
        check_app(app, chosen_routes(app, ACTOR, (), ()), [], database, (), WORKER_WITH_BEAT)
        costs.append(machine_s() - began)
        database.thread_session().close()
    print(f"preflight: {min(costs) * 1000:.0f} ms")
    assert min(costs) < 0.1, costs


def test_a_worker_that_cannot_write_temporary_files_says_what_to_set(one_stream: Stream, tmp_path: Path) -> None:
    """Only its metrics need a folder: without --http it works."""
    (tmp_path / "sitecustomize.py").write_text(
        "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/none']\n"
    )
    environ = {"PYTHONPATH": str(tmp_path), "PROMETHEUS_MULTIPROC_DIR": "/none"}
    worker = one_stream.worker(topics=["acts"], groups=["a"], environ=environ)
    refused = one_stream.start("worker", app=ACTOR, topics=["acts"], groups=["a"], environ=environ, http="0")
    assert refused.wait(_START_S) == 1, refused.text()
    assert "TMPDIR" in refused.text() and "Traceback" not in refused.text()
    assert worker.stop() == 0
