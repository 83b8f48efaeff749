"""What an operator of EMS sees of a Celery project: names of tasks, errors, queues; and dead letters that run again."""

import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from starlette.testclient import TestClient

from emsworker.local import LocalDatabase
from emsworker.web import Visitor, ems_web
from tests.celery.project import Project
from tests.support.commands import Ems
from tests.support.servers import set_globals
from tests.support.waiting import until

BILL = "tests.celery.projects.tasks.bill"
QUEUE = "amqp:celery"


@pytest.fixture
def ems(project: Project, tmp_path: Path) -> Ems:
    """The ``ems`` command on the project's stream."""
    return Ems({"EMS_URL": project.broker.url.removeprefix("ems+")}, tmp_path)


@pytest.fixture
def dashboard(project: Project) -> Iterator[TestClient]:
    """The dashboard, for an operator."""
    url = project.broker.url.removeprefix("ems+")
    app = ems_web(url, access=lambda request: Visitor("ann", "operator"), operator_url=url)
    client = TestClient(app, "http://localhost", headers={"sec-fetch-site": "same-origin"}, follow_redirects=False)
    yield client
    client.close()


def _words(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def _group(ems: Ems) -> dict[str, Any]:
    (found,) = (one for one in ems.ok("groups", "list", "--json").json if one["topic"] == QUEUE)
    return found


def test_a_task_that_fails_is_found_by_name_and_error_and_runs_again(
    project: Project, ems: Ems, dashboard: TestClient, tmp_path: Path
) -> None:
    project.run("for number in range(3): bill.delay(number)")
    waiting = ems.ok("messages", "list", QUEUE, "--json").json["messages"]
    assert [one["tag"] for one in waiting] == [BILL] * 3
    assert _group(ems)["lag"] == 3
    assert BILL in _words(dashboard.get(f"/messages?topic={quote(QUEUE)}").text)

    project.worker("-c", "1").wait_ready()
    dead = until(lambda: len(found := _dead(ems)) == 3 and found, 60, "all are dead letters")
    assert {(one["topic"], one["task"], one["error"]) for one in dead} == {(QUEUE, BILL, "LookupError")}
    (shown,) = ems.ok("dead", "show", dead[0]["id"], "--json").json
    assert "in bill" in shown["error"] and "no rate for order" in shown["error"], shown
    assert (_group(ems)["lag"], _group(ems)["dead"]) == (0, 3)
    metrics = _metrics(ems)
    assert f'ems_group_dead{{group="celery",topic="{QUEUE}"}} 3.0' in metrics, metrics
    trace = ems.ok("trace", dead[0]["id"]).out
    assert BILL in trace and "LookupError" in trace, trace
    page = _words(dashboard.get(f"/topics/{quote(QUEUE)}").text)
    assert "celery" in page and QUEUE in page
    letters = dashboard.get(f"/dead?topic={quote(QUEUE)}").text
    assert BILL in _words(letters) and "LookupError" in _words(letters)

    (tmp_path / "rate").touch()
    ems.ok("dead", "requeue", dead[0]["id"])
    place = next(one for one in re.findall(r'name="place"[^>]*value="([^"]+)"', letters) if one.endswith("/2"))
    assert dashboard.post("/do/dead", data={"what": "requeue", "place": place, "back": "/dead"}).status_code == 303
    ems.ok("dead", "requeue", "--all", "--topic", QUEUE, "--error", "LookupError", "--yes")
    project.wait_ended(3)
    assert project.count("ended") == {0: 1, 1: 1, 2: 1}
    assert _dead(ems) == []


def test_what_used_up_its_deliveries_tells_why(start: Callable[..., Project], tmp_path: Path) -> None:
    project = start(delivery_limit=2)
    ems = Ems({"EMS_URL": project.broker.url.removeprefix("ems+")}, tmp_path)
    project.worker("-c", "1").wait_ready()
    project.run("die.delay(1); stall.delay(2)")
    dead = until(lambda: len(found := _dead(ems)) == 2 and found, 60, "both are dead letters")
    assert project.count("began") == {1: 2, 2: 2}
    told = {one["task"].rpartition(".")[2]: ems.ok("dead", "show", one["id"]).out for one in dead}
    assert "WorkerLostError" in told["die"] and "SIGKILL" in told["die"], told
    assert "TimeLimitExceeded" in told["stall"], told["stall"]


def test_the_command_amqp_knows_queues_of_the_stream(project: Project) -> None:
    for command, said in (
        (("queue.declare", "foo"), "messages:0"),
        (("exchange.declare", "e", "topic"), "OK"),
        (("queue.bind", "foo", "e", "#"), "OK"),
        (("queue.purge", "foo"), "OK"),
        (("queue.delete", "foo"), "OK"),
    ):
        ran = project.celery("amqp", *command)
        assert ran.returncode == 0 and said in ran.stdout, (command, ran.stdout, ran.stderr)


def test_the_command_list_shows_bindings(project: Project) -> None:
    project.celery("amqp", "exchange.declare", "news", "topic")
    project.celery("amqp", "queue.declare", "sport")
    project.celery("amqp", "queue.bind", "sport", "news", "sport.#")
    ran = project.celery("list", "bindings")
    assert ran.returncode == 0, ran.stderr
    assert ["sport", "news", "sport.#"] in [line.split() for line in ran.stdout.splitlines()], ran.stdout


def test_a_task_that_has_expired_is_revoked_by_its_worker(project: Project) -> None:
    sent = project.run("print(square.apply_async((2,), expires=0.1).id)").strip()
    project.worker("-c", "1").wait_ready()
    told = "print(repr(app.AsyncResult(sys.argv[1]).get(timeout=60, propagate=False)))"
    assert "TaskRevokedError('expired')" in project.run(told, sent)


def test_a_revocation_of_a_task_for_later_outlasts_all_workers(project: Project) -> None:
    """A worker that starts afterwards, as all do after a restart, was told of nothing."""
    project.run(
        "sent = [work.apply_async((number,), countdown=3).id for number in range(4)]\n"
        "app.control.revoke(sent[:2])\n"
        "app.control.revoke(sent[2], terminate=True)\n"
    )
    worker = project.worker("-c", "1").wait_ready()
    project.wait_ended(1)
    assert project.count("began") == {3: 1}
    assert worker.text.count("Discarding revoked task") == 3
    assert project.rows("SELECT COUNT(*) FROM ems_celery_revoked") == [(3,)]


@pytest.mark.slow
def test_what_waits_in_redis_is_copied_by_the_command_migrate(project: Project, redis_url: str) -> None:
    project.run(
        "from celery import Celery\n"
        "old = Celery('old', broker=sys.argv[1])\n"
        "for number in range(4):\n"
        "    old.send_task(work.name, (number,), countdown=8 if number == 3 else None)\n",
        redis_url,
    )
    ran = project.celery("migrate", "--timeout", "3", redis_url, project.broker.url)
    assert ran.returncode == 0, ran.stderr
    project.worker("-c", "1").wait_ready()
    project.wait_ended(4)
    assert project.count("ended") == {0: 1, 1: 1, 2: 1, 3: 1}


def _metrics(ems: Ems) -> str:
    """What Prometheus is given."""
    with ems.running("monitoring", "serve", "0") as serve:
        serve.wait_ready()
        at = re.search(r"http://\S+", serve.tell())
        assert at is not None, serve.tell()
        with urlopen(at[0], timeout=30) as answer:
            return answer.read().decode()


def _dead(ems: Ems) -> list[dict[str, Any]]:
    return ems.ok("dead", "list", "--json").json["dead_letters"]


def test_the_check_finds_nothing_wrong_with_what_celery_has_made(
    project: Project, ems: Ems, server: LocalDatabase
) -> None:
    """Also on a server that takes less than the option asks for: a body of the limit that its topic has fits."""
    before = project.rows("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    try:
        set_globals(server, f"SET GLOBAL max_allowed_packet = {8 << 20}")
        project.worker("-c", "1").wait_ready()
        project.run("print(add.delay(1, 2).get(timeout=60))")
        for role in ("celery", "admin"):
            found = ems("check", "--json", "--role", role).json
            told = [one for one in found if one["name"] in ("max_allowed_packet", "wait_timeout")]
            assert told and all(one["severity"] == "ok" for one in told), told
        limits = dict(project.rows("SELECT name, max_message_bytes FROM ems_topic"))
        assert {QUEUE, "amqp-bus"} <= set(limits) and set(limits.values()) == {((8 << 20) - (64 << 10)) // 2}
        project.run("work.apply_async(('x' * (int(sys.argv[1]) - 1000), 0))", limits[QUEUE])
    finally:
        set_globals(server, f"SET GLOBAL max_allowed_packet = {before}")
