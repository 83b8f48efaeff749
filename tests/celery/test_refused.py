"""A server that refuses its user for a while: programs that have worked before outlive that, and say so."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery, chord, states
from celery.app.task import Context

from emsworker import AccessDenied
from emsworker.core.process.clock import ticks
from emsworker.core.url import DatabaseUrl
from emsworker.integrations.celery.refusals import Refusals, in_task
from emsworker.integrations.celery.registration import SCHEMES
from emsworker.local import LocalDatabase
from tests.celery.brokers import Broker
from tests.celery.programs import take_all
from tests.celery.project import Project
from tests.support.roles import users
from tests.support.servers import connect, kill_connection
from tests.support.waiting import until

_LEASE_S = 3


class Account:
    """The user of a URL, whom an administrator locks out and lets in again."""

    def __init__(self, server: LocalDatabase, url: str) -> None:
        self._server, self._name = server, DatabaseUrl.parse(url).user

    def lock_out(self) -> None:
        """Change the password, as in a rotation that has not reached the programs yet, and end all connections."""
        self._set_password("other")
        with connect(self._server.admin_url, autocommit=True) as admin, admin.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (self._name,))
            for (number,) in cursor.fetchall():
                kill_connection(cursor, number)

    def let_in(self) -> None:
        """Give it the password back that the programs know."""
        self._set_password("pw")

    def _set_password(self, text: str) -> None:
        with connect(self._server.admin_url, autocommit=True) as admin, admin.cursor() as cursor:
            for host in ("localhost", "127.0.0.1"):
                cursor.execute("ALTER USER %s@%s IDENTIFIED BY %s", (self._name, host, text))


def _close(app: Celery) -> None:
    app.pool.force_close_all()  # with the last connection to a stream its side threads end
    app.backend._storage.close()
    app.close()


_SENDER = """
from celery import chain, chord
from emsworker import AccessDenied
from kombu.exceptions import OperationalError
app.conf.broker_transport_options |= {"confirm_publish": False}
for number in range(100, 103):
    work.delay(number)
chords = [chord(square.s(number) for number in range(3))(total.s(chord_id)) for chord_id in range(3)]
chains = [chain(square.s(number), add.s(1))() for number in range(5)]
squares = [square.delay(number) for number in range(30)]
print("sent", flush=True)
sys.stdin.readline()
accepted = []
for number in range(103, 106):
    try:
        work.delay(number)
        accepted.append(number)
    except (AccessDenied, OperationalError):  # told at once, where the way to the queue had to be looked up again
        pass
print(*accepted, flush=True)
sys.stdin.readline()
assert [one.get(timeout=60) for one in squares] == [number * number for number in range(30)]
assert [one.get(timeout=60) for one in chains] == [number * number + 1 for number in range(5)]
assert [one.get(timeout=60) for one in chords] == [5, 5, 5]
"""
_BEAT = """
app.conf.beat_schedule = {"each": {"task": work.name, "schedule": 0.5, "args": (1000,)}}
app.Beat(scheduler="ems", loglevel="INFO", schedule=sys.argv[1]).run()
"""


def test_workers_beat_and_senders_outlive_a_change_of_the_password(
    broker: Broker, server: LocalDatabase, tmp_path: Path
) -> None:
    with users(server, broker.url) as make:
        url = make("celery")
        account = Account(server, url.removeprefix("ems+"))
        with Project(Broker("ems", url, url, broker.dead), tmp_path, {"lease_s": _LEASE_S}) as project:
            worker = project.worker("-c", "1").wait_ready()
            sender, beat = project.program(_SENDER), project.program(_BEAT, tmp_path / "schedule")
            assert sender.stdin is not None and sender.stdout is not None
            assert sender.stdout.readline() == "sent\n", sender.communicate()[1]
            until(lambda: {100, 101, 102, 1000} <= project.count("ended").keys(), 60, "all are at work")

            account.lock_out()
            sender.stdin.write("\n")
            sender.stdin.flush()
            accepted = {int(number) for number in sender.stdout.readline().split()}
            until(lambda: "MySQL refused: (1045)" in worker.text, 30, "the worker says why it waits")
            locked = ticks()
            until(lambda: ticks() > locked + 2 * _LEASE_S, 60, "all leases are over")
            before = project.count("ended")
            account.let_in()

            until(lambda: project.count("ended")[1000] > before[1000] + 2, 60, "the beat sends again")
            until(lambda: accepted <= project.count("ended").keys(), 60, "what was sent meanwhile has arrived")
            assert {n: count for n, count in project.count("ended").items() if n != 1000} == dict.fromkeys(
                {100, 101, 102} | accepted, 1
            )
            assert project.celery("inspect", "ping").stdout.count("pong") == 1
            assert worker.process.poll() is None
            assert beat.poll() is None, beat.communicate()[1]
            sender.stdin.write("\n")
            sender.stdin.flush()
            until(lambda: sender.poll() is not None, 60, f"all results are there:\n{worker.text}")
            assert sender.stderr is not None
            log = sender.stderr.read()
            assert sender.returncode == 0, log + worker.text
            assert "outside body" not in worker.text
            assert log.count("MySQL refused: (1045)") <= 2, "a line now and then"
            beat.terminate()
            beat.wait(60)
            assert worker.stop() == 0


def test_a_connection_that_is_made_anew_meanwhile_is_tried_again(broker: Broker, server: LocalDatabase) -> None:
    with users(server, broker.url) as make:
        url = make("celery")
        account = Account(server, url.removeprefix("ems+"))
        with kombu.Connection(url) as connection:
            assert connection.transport_cls in SCHEMES
            connection.ensure_connection(max_retries=1)
            account.lock_out()
            tries: list[Exception] = []
            again = connection.clone()

            def refused(error: Exception, interval: float) -> None:
                tries.append(error)
                if len(tries) == 2:
                    account.let_in()

            again.ensure_connection(refused, max_retries=10, interval_start=0.1, interval_step=0.1)
            again.release()
            assert len(tries) == 2
            assert "MySQL refused: (1045)" in str(tries[1])


def test_what_a_task_has_returned_outlives_a_refusal_from_the_first(
    broker: Broker, server: LocalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses: list[bool] = []
    apart = Refusals.apart

    def counted(refusals: Refusals, **options: bool) -> Any:
        uses.append(True)
        return apart(refusals, **options)

    def locked_out(account: Account, work: Callable[[], object]) -> None:
        account.lock_out()
        uses.clear()
        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: len(uses) > 2, 30, "it has tried again")
        account.let_in()
        thread.join(60)
        assert not thread.is_alive()

    with users(server, broker.url) as make:
        urls = [make("celery") for _ in range(3)]
        accounts = [Account(server, url.removeprefix("ems+")) for url in urls]
        client = Celery("client", broker=broker.url, backend=broker.url, set_as_current=False)
        body = client.signature("body", queue="bodies")
        begun = chord([client.signature("part") for _ in range(2)], app=client)(body)
        first, second = begun.parent.results
        requests = [
            Context(id=one.id, group=begun.parent.id, group_index=index, chord=body.clone().set(task_id=begun.id))
            for index, one in enumerate((first, second))
        ]
        client.backend.mark_as_done(first.id, 1, requests[0])
        backends = [Celery("worker", broker=url, backend=url, set_as_current=False).backend for url in urls]
        monkeypatch.setattr(Refusals, "apart", counted)
        locked_out(accounts[0], lambda: backends[0].store_result("alone", 7, states.SUCCESS))
        locked_out(accounts[1], lambda: backends[1].mark_as_done(second.id, 2, requests[1]))
        accounts[2].lock_out()
        with pytest.raises(AccessDenied):
            backends[2].get_result("alone")
        accounts[2].let_in()
        assert client.AsyncResult("alone").get(timeout=10) == 7
        assert [args for args, _, _ in take_all(client, "bodies")] == [[[1, 2]]]
        for backend in (*backends, client.backend):
            _close(backend.app)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_task_sends_waits_as_in_an_outage(
    broker: Broker, server: LocalDatabase, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    refusals: list[None] = []
    monkeypatch.setattr(
        "emsworker.integrations.celery.streams.in_task", lambda: bool(refusals.append(None)) or in_task()
    )
    with users(server, broker.url) as make:
        url = make("celery")
        account = Account(server, url.removeprefix("ems+"))
        app = Celery("worker", broker=url, backend=broker.url, set_as_current=False)

        @app.task(shared=False)
        def parent(number: int) -> None:
            app.send_task("child", (number,), queue="children")

        if not is_first:
            parent(1)
        account.lock_out()
        with pytest.raises(AccessDenied):
            parent(2)  # called as a function: whoever called it is told at once
        running = threading.Thread(target=parent.apply, args=((3,),), kwargs={"throw": True})
        running.start()
        until(lambda: len(refusals) > 5, 30, "it has tried again")
        account.let_in()
        running.join(60)
        assert not running.is_alive()
        sent = [args[0] for args, _, _ in take_all(app, "children")]
        assert sent == [3] if is_first else sent in ([1, 3], [1, 2, 3]), "of the second one nobody knows"
        _close(app)
