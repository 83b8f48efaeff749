"""Remote control, events and Flower on EMS; and the commands of EMS on the queues of Celery."""

import json
import re
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from emsworker.core.process.clock import ticks
from emsworker.local.ports import free_port
from tests.celery.project import APP, Project, Worker
from tests.support.commands import Ems
from tests.support.waiting import until
from tests.support.worker import ROOT

TASKS = "tests.celery.projects.tasks"


@pytest.fixture
def ems(project: Project, tmp_path: Path) -> Ems:
    """The ``ems`` command on the project's stream."""
    return Ems({"EMS_URL": project.broker.url.removeprefix("ems+")}, tmp_path)


def _inspect(project: Project, *arguments: str, of: Iterable[Worker] = ()) -> dict[str, Any]:
    """Ask workers, and wait until all have answered; without names, for all that answer within five seconds."""
    names = ("-d", ",".join(worker.name for worker in of)) if of else ()
    done = project.celery("inspect", *names, *arguments, "--json", "--timeout", "5")
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_inspect_and_control_reach_every_worker(project: Project) -> None:
    alone = ("-c", "1", "--prefetch-multiplier", "1")  # neither takes the other's task beside its own
    workers = project.workers(2, *alone)
    names = {worker.name for worker in workers}
    assert {name: answer["ok"] for name, answer in _inspect(project, "ping").items()} == dict.fromkeys(names, "pong")

    project.run("for number in range(2): work.apply_async((number, 900))")
    until(lambda: project.count("began").keys() == {0, 1}, 30, "both work")
    active = _inspect(project, "active", of=workers)
    assert sorted(one["args"][0] for tasks in active.values() for one in tasks) == [0, 1], active
    assert {one["name"] for tasks in active.values() for one in tasks} == {f"{TASKS}.work"}
    queues = _inspect(project, "active_queues", of=workers)
    assert {name: [queue["name"] for queue in found] for name, found in queues.items()} == {
        name: ["celery"] for name in names
    }
    stats = _inspect(project, "stats", of=workers)
    at = urlsplit(project.broker.url)
    assert {name: (one["broker"]["hostname"], one["broker"]["port"]) for name, one in stats.items()} == dict.fromkeys(
        names, (at.hostname, at.port)
    )
    assert at.password and at.password not in json.dumps(stats)

    running = [one["id"] for tasks in active.values() for one in tasks]
    project.run("app.control.revoke(sys.argv[1:], terminate=True, signal='SIGKILL')", *running)
    until(lambda: not any(_inspect(project, "active", of=workers).values()), 60, "both have ended")

    project.run("app.control.shutdown()")
    for worker in workers:
        until(lambda worker=worker: worker.process.poll() is not None, 60, "they stop")


@pytest.mark.slow
def test_scheduled_tells_of_tasks_in_hand(start: Callable[..., Project]) -> None:
    project = start(eta_threshold_s=1000)  # so that it is in hand however long the command takes
    worker = project.worker("-c", "1").wait_ready()
    project.run("work.apply_async((3,), countdown=900)")
    found = until(lambda: _inspect(project, "scheduled", of=[worker])[worker.name], 30, "it is in hand")
    assert found[0]["request"]["args"] == [3]


@pytest.mark.slow
def test_workers_know_of_each_other(project: Project) -> None:
    first = project.worker("-c", "1").wait_ready()
    second = project.worker("-c", "1").wait_ready()
    assert "mingle: sync with 1 nodes" in second.text
    until(lambda: f"{second.name} joined the party" in first.text or _sees(first.text, second.name), 30, "gossip")
    second.kill()
    until(lambda: "missed heartbeat" in first.text, 60, "a dead one is missed")


def _sees(text: str, name: str) -> bool:
    return any(name in line for line in text.splitlines() if "joined" in line or "sync" in line)


def test_events_of_tasks_arrive(project: Project) -> None:
    project.worker("-c", "1", "-E").wait_ready()
    program = project.program(
        "seen = []\n"
        "def on(event):\n"
        "    seen.append(event['type'])\n"
        "    print(event['type'], flush=True)\n"
        "    if event['type'] == 'task-succeeded': raise SystemExit\n"
        "with app.connection() as connection:\n"
        "    receiver = app.events.Receiver(connection, handlers={'*': on})\n"
        "    print('listening', flush=True)\n"
        "    receiver.capture(limit=None, timeout=60, wakeup=True)\n"
    )
    assert program.stdout is not None
    seen = [program.stdout.readline().strip()]
    while not any(one.startswith("worker-") for one in seen):  # the receiver is bound when it has heard a heartbeat
        seen.append(program.stdout.readline().strip())
        assert seen[-1], program.communicate()[1]
    project.run("add.delay(2, 2)")
    seen += program.communicate(timeout=60)[0].split()
    assert [one for one in seen if one.startswith("task-")] == ["task-received", "task-started", "task-succeeded"]


@contextmanager
def _flower(project: Project, folder: Path) -> Iterator[Callable[..., Any]]:
    port, log = free_port(), folder / "flower.log"
    command = [sys.executable, "-m", "celery", "-A", APP, "flower", f"--port={port}", "--address=127.0.0.1"]
    environ = project.environ | {"FLOWER_UNAUTHENTICATED_API": "true"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=output)

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            text = answer.read().decode()
        return json.loads(text) if path.startswith("/api/") else text

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return bool(get("/healthcheck"))
        except OSError:
            return False

    try:
        until(answers, 60, "Flower answers")
        yield get
    finally:
        process.kill()
        process.wait()


def test_flower_shows_workers_and_tasks(project: Project, tmp_path: Path) -> None:
    worker = project.worker("-c", "1", "-E").wait_ready()
    with _flower(project, tmp_path) as get:
        until(lambda: worker.name in get("/api/workers?refresh=1"), 60, "Flower sees the worker", poll_s=0.5)
        project.run("for number in range(5): add.delay(number, number)")

        def succeeded() -> list[Any]:
            return [one for one in get("/api/tasks").values() if one["state"] == "SUCCESS"]

        found = until(lambda: len(succeeded()) == 5 and succeeded(), 60, "Flower sees the tasks", poll_s=0.5)
        assert {one["name"] for one in found} == {f"{TASKS}.add"}
        assert sorted(int(one["result"]) for one in found) == [0, 2, 4, 6, 8]
        for page in ("/workers", f"/worker/{worker.name}", f"/task/{found[0]['uuid']}"):
            assert TASKS in get(page) or worker.name in get(page), page
            assert urlsplit(project.broker.url).password not in get(page), page


def test_flower_shows_the_lengths_of_queues(project: Project, tmp_path: Path) -> None:
    project.run("for number in range(4): work.delay(number)")
    with _flower(project, tmp_path) as get:
        assert get("/api/queues/length") == {"active_queues": [{"name": "celery", "messages": 4, "messages_ready": 4}]}
        page = get("/broker")
    assert re.search(r"<td>celery</td>\s*<td[^>]*>4</td>", page), page
    assert urlsplit(project.broker.url).password not in page


def test_the_commands_of_ems_show_queues_of_celery(project: Project, ems: Ems) -> None:
    project.run("for number in range(4): work.delay(number)")
    queue = "amqp:celery"
    topics = {one["topic"]: one for one in ems.ok("topics", "list", "--json").json}
    assert queue in topics
    listed = ems.ok("messages", "list", queue, "--json").json["messages"]
    assert {one["tag"] for one in listed} == {f"{TASKS}.work"}
    assert len(listed) == 4
    project.worker("-c", "1").wait_ready()
    project.wait_ended(4)

    def done() -> bool:
        groups = ems.ok("groups", "list", "--json").json
        return all(one["lag"] == 0 for one in groups if one["topic"] == queue and one["group"] == "celery")

    until(done, 30, "the queue is empty for EMS, too")


@pytest.mark.slow
def test_each_worker_more_costs_as_many_rows_as_the_one_before(project: Project) -> None:
    """What workers write while nothing happens: heartbeats, which all others hear."""
    options = ("-P", "solo", "--heartbeat-interval", "1")

    def sent() -> int:
        """The number of messages of all topics, also of those that are deleted by now."""
        ((count,),) = project.rows(
            "SELECT SUM(o) FROM (SELECT MAX(`offset`) AS o FROM ems_message WHERE `offset` > 0 GROUP BY topic_id, `partition`) x"
        )
        return int(count or 0)

    def a_second() -> float:
        before, began = sent(), ticks()
        until(lambda: ticks() > began + 8, 60, "a while is over")
        return (sent() - before) / (ticks() - began)

    project.workers(2, *options)
    two = a_second()
    project.workers(4, *options)
    six = a_second()
    print(f"rows a second: {two:.2f} of two workers, {six:.2f} of six")
    assert 2.2 * two <= six <= 3.8 * two, (two, six)


@pytest.mark.slow
def test_gossip_costs_rows_that_are_linear_in_the_workers(project: Project, ems: Ems) -> None:
    """What one event of gossip costs does not depend on how many listen: it is written once."""

    def rows_of(listeners: int) -> float:
        name = f"events-{secrets.token_hex(4)}"
        text = (
            "import kombu, socket\n"
            "from kombu import Connection, Consumer, Exchange, Producer, Queue\n"
            "count, name = int(sys.argv[1]), sys.argv[2]\n"
            "exchange = Exchange(name, type='topic', durable=True)\n"
            "with Connection(os.environ['PROJECT_BROKER']) as connection:\n"
            "    heard, channels = [], [connection.channel() for _ in range(count)]\n"
            "    for number, channel in enumerate(channels):\n"
            "        queue = Queue(f'{name}.{number}', exchange, routing_key='#', exclusive=True, auto_delete=True)\n"
            "        Consumer(channel, [queue], callbacks=[lambda body, message, n=number: heard.append(n)],\n"
            "                 no_ack=True).consume()\n"
            "    producer = Producer(connection.channel(), exchange)\n"
            "    for number in range(20): producer.publish({'number': number}, routing_key='worker.heartbeat')\n"
            "    until = time.monotonic() + 60\n"
            "    while len(heard) < 20 * count and time.monotonic() < until:\n"
            "        try: connection.drain_events(timeout=1)\n"
            "        except socket.timeout: pass\n"
            "    print(len(heard))\n"
        )
        before = _messages(ems)
        assert int(project.run(text, listeners, name)) == 20 * listeners
        return (_messages(ems) - before) / 20

    few, many = rows_of(2), rows_of(50)
    assert few == many == 1


def _messages(ems: Ems) -> int:
    from tests.support.servers import connect

    with connect(ems.environ["EMS_URL"]) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0")
        return cursor.fetchone()[0]
