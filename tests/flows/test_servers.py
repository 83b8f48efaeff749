"""Flows whose topics, and those of their calls, are on two servers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.admin.placement import TopicMove
from emsworker.admin.retirement import Retirement
from emsworker.beat.forwarder import forwarders
from emsworker.core.errors import WrongArguments
from emsworker.core.ids import uid_text
from emsworker.flows import FlowFailed, FlowHandle
from emsworker.flows.operating.watching import WatchFlows
from emsworker.flows.places import CallPlace
from emsworker.local import LocalDatabase
from tests.flows import far
from tests.flows.test_store import is_blocked
from tests.process.record import Record
from tests.support.looker import Looker
from tests.support.roles import users
from tests.support.servers import connect
from tests.support.several import Several, several_databases
from tests.support.waiting import until
from tests.support.worker import Program

APP = "tests.flows.far:app"


@dataclass
class Two:
    """Two streams, and the app on them."""

    server: LocalDatabase
    several: Several
    folder: Path
    app: Ems
    programs: list[Program]

    @property
    def settings(self) -> dict[str, str]:
        return {"url": self.several.url, "servers": self.several.setting(east="east.*").strip()}

    def worker(self, **options: Any) -> Program:
        log = self.folder / f"worker-{len(self.programs)}.log"
        options = {"app": APP, "threads": 4, **options}
        program = Program("worker", Looker(self.several.url), log, self.settings, **options)
        self.programs.append(program)
        until(lambda: "Ready:" in program.text(), 60, f"the worker is ready:\n{program.text()}")
        return program

    def rows(self, server: str, statement: str, *args: object) -> list[Any]:
        return Looker(self.several.urls[server]).rows(statement, *args)

    def effects(self, server: str) -> list[int]:
        return sorted(n for (n,) in self.rows(server, "SELECT n FROM effect"))

    def watch(self, server: str = "main") -> None:
        """Look once at what nothing moves any more, as the beat of a server does."""
        watch = WatchFlows(server, quiet_s=0.0)
        self.several.database(server).call(lambda session: watch(session, self.app.settings))

    def logs(self) -> str:
        return "\n".join(program.text() for program in self.programs)

    def ended(self, handle: FlowHandle[Any]) -> Any:
        until(lambda: handle.ready, 60, f"flow {handle.id} has ended; log:\n{self.logs()}")
        return handle.get(0)


@contextmanager
def _app_on(settings: dict[str, str]) -> Iterator[Ems]:
    before = far.app.settings
    far.app.reconfigure(**settings, publish_timeout_s=10)
    yield far.app
    far.app.close()
    far.app.reconfigure(url=before.url, servers=before.servers, publish_timeout_s=before.publish_timeout_s)


@pytest.fixture
def two(server: LocalDatabase, tmp_path: Path) -> Iterator[Two]:
    with several_databases(server, "main", "east") as several:
        for url in several.urls.values():
            with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute("CREATE TABLE effect (n INT NOT NULL, pid INT NOT NULL) ENGINE=InnoDB")
        settings = {"url": several.url, "servers": several.setting(east="east.*").strip()}
        with _app_on(settings) as app:
            two = Two(server, several, tmp_path, app, [])
            yield two
            for program in two.programs:
                if program.process.poll() is None:
                    program.kill_all()


_ENDS = "SELECT COUNT(*), COUNT(DISTINCT flow_id, step, number) FROM ems_flow_end"


def test_calls_of_another_server_end_their_steps_once(two: Two) -> None:
    two.worker()
    for n, handle in [(n, far.travels.start(n)) for n in (100, 200)]:
        assert two.ended(handle) == [[n + 2, n + 8, n + 3, n + 4], "Reject", f"not {n}"]
    assert two.effects("main") == [100, 108, 109, 200, 208, 209]
    assert two.effects("east") == [n + place for n in (100, 200) for place in (1, 2, 3, 4)]
    assert two.rows("main", _ENDS) == [(12, 12)] and two.rows("east", _ENDS) == [(0, 0)]
    assert two.rows("east", "SELECT COUNT(*) FROM ems_flow") == [(0,)]


def test_a_call_of_another_server_undoes_and_a_crash_of_it_is_told(two: Two) -> None:
    two.worker()
    failed, crashed = far.undoes.start(7), far.crashes.start()
    until(lambda: failed.ready, 60, f"it has failed; log:\n{two.logs()}")
    with pytest.raises(FlowFailed, match="not 7"):
        failed.get(0)
    assert two.effects("east") == [7]
    assert two.ended(crashed) == "WorkerLost"


def test_a_canvas_of_another_server_is_called_and_a_flow_of_it_is_refused_by_name(two: Two) -> None:
    two.worker()
    assert two.ended(far.calls_a_canvas.start(3)) == 4
    assert two.effects("east") == [3, 4]
    refused = far.calls_elsewhere.start()
    until(lambda: refused.ready, 60, f"it has failed; log:\n{two.logs()}")
    with pytest.raises(FlowFailed, match=r"flow 'tests\.flows\.far\.elsewhere' is kept on 'east', and its caller on"):
        refused.get(0)


def test_a_transaction_of_another_server_is_refused(two: Two, server: LocalDatabase) -> None:
    for topic in (far.HERE, far.THERE):
        _ = two.app.broker.topic(topic)
    urls = two.several.urls  # users who see the database of their own server only, as on servers apart
    with users(server, urls["main"]) as here, users(server, urls["east"]) as there:
        _check_refusals(Ems("apart", url=here("worker"), servers=f"east={there('worker')} east.*"))
    assert [two.rows(name, "SELECT `key` FROM ems_flow") for name in ("main", "east")] == [[], [("x",)]]
    assert two.app.find_flow("x", topic=far.THERE).state == "ready"


def _check_refusals(app: Ems) -> None:
    here = app.flow(topic=far.HERE)(far.travels.function)
    there = app.flow(topic=far.THERE)(far.elsewhere.function)
    refusal = r"the transaction is on server '{}', and flows of topic '{}' are kept on '{}'; nothing was written"
    with closing(app), app.transaction(server="east") as transaction:
        with pytest.raises(WrongArguments, match=refusal.format("east", far.HERE, "main")):
            here.start(1, transaction=transaction)
        there.start(id="x", transaction=transaction)
        with pytest.raises(WrongArguments, match=refusal.format("east", far.HERE, "main")):
            app.signal("y", "go", topic=far.HERE, transaction=transaction)
    with closing(app), app.transaction() as transaction, pytest.raises(WrongArguments, match="nothing was written"):
        there.start(transaction=transaction)


def test_flows_go_on_where_their_topic_has_moved(two: Two) -> None:
    first = two.worker()
    handles = {n: far.moves.start(n, id=f"moves-{n}") for n in (10, 20)}
    for handle in handles.values():
        until(lambda handle=handle: handle.state == "waiting", 30, f"it waits; log:\n{two.logs()}")
    assert two.app.streams.locate(far.MOVES)[-1] == "main"
    with closing(Ems("mover", **two.settings)) as mover:
        assert TopicMove(mover, far.MOVES, "east").run(timeout_s=60).groups == 2
    again = far.moves.start(10, id="moves-10")
    assert not again.created and two.rows("east", "SELECT COUNT(*) FROM ems_flow") == [(0,)]
    assert two.app.find_flow("moves-20", topic=far.MOVES).state == "waiting"
    handles[30] = far.moves.start(30, id="moves-30")
    assert handles[30].created and two.rows("east", "SELECT COUNT(*) FROM ems_flow") == [(1,)]
    two.watch()
    for n in handles:
        two.app.signal(f"moves-{n}", "go", n, topic=far.MOVES)
    assert [two.ended(handle) for handle in handles.values()] == [10, 20, 30]
    assert two.effects("main") == [10, 12, 20, 22], "a flow stays where it began, and its transactions with it"
    assert two.effects("east") == [11, 21, 30, 31, 32], "its calls are run where their topic is"
    assert sorted(Record(two.folder).numbers("ends")) == [10, 20, 30]
    assert first.stop() == 0


def test_a_server_is_needed_until_its_flows_have_ended(two: Two) -> None:
    handle = far.elsewhere.start()
    with closing(Ems("retiring", url=two.several.url, servers=f"east={two.several.urls['east']}")) as app:
        line = "flows have not ended: tests.flows.far.elsewhere (1); let them, or cancel them with `ems flows cancel`"
        assert line in Retirement(app, "east").look().needed
        two.worker()
        assert two.ended(handle) is None
        assert line not in Retirement(app, "east").look().needed


def test_a_call_that_waits_goes_along_with_its_topic(two: Two) -> None:
    two.worker()
    handle = far.calls_later.start(5)
    until(lambda: handle.state == "waiting", 30, f"it waits; log:\n{two.logs()}")
    with closing(Ems("mover", **two.settings)) as mover:
        TopicMove(mover, far.MOVES, "east").run(timeout_s=60)
    assert two.ended(handle) == 5
    assert (two.effects("main"), two.effects("east")) == ([], [5])


def test_a_start_that_is_not_committed_holds_up_a_move(two: Two) -> None:
    _ = two.app.streams.kept_by(far.MOVES).topic(far.MOVES)
    with closing(Ems("mover", **two.settings)) as mover:
        with two.app.transaction() as transaction:
            far.moves.start(1, id="once", transaction=transaction)
            move = threading.Thread(target=lambda: TopicMove(mover, far.MOVES, "east").run(timeout_s=30))
            move.start()
            until(lambda: is_blocked(two), 30, "the move waits for the transaction")
        move.join(60)
        assert not move.is_alive()
    assert not far.moves.start(1, id="once").created
    assert two.rows("east", "SELECT COUNT(*) FROM ems_flow") == [(0,)]
    assert far.moves.start(1, id="twice").created
    assert two.rows("east", "SELECT `key` FROM ems_flow") == [("twice",)]


def test_a_call_is_lost_only_when_no_server_has_it(two: Two) -> None:
    two.worker(groups=["flows"])
    handle = far.calls_nobody.start()
    there = "SELECT COUNT(*) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id WHERE t.name = 'east.nobody' AND m.kind = 'message'"
    until(lambda: two.rows("east", there) == [(1,)], 30, f"the call is on the other server; log:\n{two.logs()}")
    until(lambda: handle.state == "waiting", 30, "it waits")
    two.watch()
    assert handle.state == "waiting" and two.rows("main", _ENDS) == [(0, 0)]
    ((flow,),) = two.rows("main", "SELECT id FROM ems_flow")
    assert two.app.cancel(uid_text(CallPlace(two.app.streams.servers["main"].stream_id, flow, 1, 0).uid), "east.nobody")
    until(lambda: (two.watch(), handle.ready)[1], 30, f"it is told; log:\n{two.logs()}")
    assert two.ended(handle) == "CallLost"


def test_a_dead_letter_on_another_server_fails_its_flow_unless_it_only_was_out_of_reach(two: Two) -> None:
    topic = two.app.broker.topic(far.MOVES)
    _ = two.app.broker.group(topic, "flows")
    handle = far.moves.start(1, id="x")
    _finish(two, "main")
    TopicMove(two.app, far.MOVES, "east").run(timeout_s=30)
    (forwarder,) = forwarders(two.app.settings, "main", lambda *_: None)
    for number, (kind, state) in enumerate([("x.StoreUnavailable", "ready"), ("ValueError", "failed")]):
        two.watch()
        forwarder.step()
        until(lambda number=number: two.rows("east", _COUNT) == [(number + 1,)], 30, "the message has been forwarded")
        two.watch()
        assert two.rows("main", "SELECT state, (SELECT COUNT(*) FROM ems_outbox) FROM ems_flow") == [("ready", 0)]
        _finish(two, "east")
        two.rows("east", _KILL, kind)
        two.watch()
        assert handle.state == state
    with pytest.raises(FlowFailed, match="ValueError: it is dead"):
        handle.get(0)


_COUNT = "SELECT COUNT(*) FROM ems_message WHERE kind = 'message'"
_KILL = """INSERT IGNORE INTO ems_dead (group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, attempts,
error_type, reason, error) SELECT g.id, m.`partition`, m.`offset`, m.uid, '', '', NOW(6), '', NOW(6), 1, %s, '', 'it is dead'
FROM ems_message m JOIN ems_group g ON g.topic_id = m.topic_id WHERE m.kind = 'message'"""


def _finish(two: Two, server: str) -> None:
    Admin(two.several.database(server)).reset_group(far.MOVES, "flows", "latest")


@pytest.mark.slow
def test_workers_that_are_killed_lose_and_double_nothing(two: Two) -> None:
    chance = random.Random(2013)
    running = [two.worker(beat=True), two.worker(beat=True)]
    numbers = [100 * n for n in range(1, 61)]
    handles = [far.travels.start(n, id=f"travels-{n}") for n in numbers]
    for _ in range(6):
        before = len(two.effects("east"))
        until(lambda before=before: len(two.effects("east")) > before or _all_ended(handles), 60, two.logs())
        running.pop(chance.randrange(2)).kill_all()
        running.append(two.worker(beat=True))
    until(lambda: _all_ended(handles), 180, f"all have ended; log:\n{two.logs()}")
    for n, handle in zip(numbers, handles, strict=True):
        assert handle.get(0) == [[n + 2, n + 8, n + 3, n + 4], "Reject", f"not {n}"]
    assert two.effects("main") == sorted(n + place for n in numbers for place in (0, 8, 9))
    assert two.effects("east") == sorted(n + place for n in numbers for place in (1, 2, 3, 4))
    assert two.rows("main", _ENDS) == [(6 * len(numbers), 6 * len(numbers))]


def _all_ended(handles: list[FlowHandle[Any]]) -> bool:
    return all(handle.ready for handle in handles)
