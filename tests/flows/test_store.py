"""The rows of flows on a real server: what two transactions do to each other, one statement at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from uuid import UUID

import pymysql
import pytest

from emsworker import Ems
from emsworker.core.errors import InvalidPriority
from emsworker.core.process.clock import ticks
from emsworker.flows import FlowExists, FlowHandle
from emsworker.flows.errors import FlowLost
from emsworker.flows.operating.admin import Flows
from emsworker.flows.places import CallPlace, parse_place
from emsworker.flows.rows import (
    CANCELLED,
    DONE,
    READY,
    RUNNING,
    WAITING,
    CallEnd,
    Loaded,
    RunChange,
    StepRow,
    StoredError,
)
from emsworker.flows.store.flow_store import MysqlFlowStore, end_statements
from emsworker.flows.store.shared_commits import Beginning, Checkpoint, SharedCommits
from emsworker.flows.stores import store_for
from emsworker.store.engine.database import Database
from emsworker.store.engine.sql import Sql
from tests.flows import shop as flows
from tests.process.stream import Stream
from tests.support.proxy import Cut, proxied
from tests.support.roles import users
from tests.support.servers import connect
from tests.support.waiting import until

OWNER = b"o" * 16


@pytest.fixture
def store(shop: Ems) -> MysqlFlowStore:
    found = store_for(shop, "default")
    assert isinstance(found, MysqlFlowStore)
    return found


def begun(store: MysqlFlowStore, key: str = "f", owner: bytes = OWNER) -> Loaded:
    """A flow of that id, and a run of it."""
    flows.waits.start(id=key)
    flow = store.find(key)
    assert flow is not None
    loaded = store.begin(flow.id, owner)
    assert loaded is not None
    return loaded


@contextmanager
def other(stream: Stream, isolation: str = "READ COMMITTED") -> Iterator[Any]:
    """A connection in a transaction of its own."""
    with connect(stream.url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
        connection.begin()
        yield connection


class InThread(threading.Thread):
    """Some work in a thread of its own."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._found: list[Any] = []
        self.start()

    def run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:
            self._found.append(error)

    def wait(self) -> Any:
        """Return what the work has returned, or the error that ended it."""
        self.join(60)
        return self._found[0]


def is_blocked(stream: Stream) -> bool:
    """Whether somebody waits for a lock; an administrator's question.

    information_schema.innodb_trx would not do: it is made anew only if nobody has read it for 0.1 s.
    """
    with connect(stream.server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW ENGINE INNODB STATUS")
        return "LOCK WAIT" in cursor.fetchone()[2]


def test_a_signal_that_is_not_committed_yet_is_not_missed_by_a_flow_that_goes_to_wait(
    stream: Stream, shop: Ems, store: MysqlFlowStore
) -> None:
    for number, isolation in enumerate(("READ COMMITTED", "REPEATABLE READ")):
        loaded = begun(store, f"f{number}")
        change = RunChange(
            [StepRow(1, "wait", "go", is_ended=False)], state=WAITING, waits="signal go", unless=([], ["go"])
        )
        with other(stream, isolation) as connection:
            shop.signal(f"f{number}", "go", 1, transaction=connection)
            write = InThread(lambda loaded=loaded, change=change: store.write(loaded.flow, change))
            until(lambda write=write: is_blocked(stream) or not write.is_alive(), 60, "it is blocked, or over")
            connection.commit()
        assert write.wait() is False, "the signal is there: the flow is run again"


def test_the_end_of_the_last_call_is_not_missed_by_a_flow_that_goes_to_wait(
    stream: Stream, shop: Ems, store: MysqlFlowStore
) -> None:
    loaded = begun(store)
    store.write(loaded.flow, RunChange([StepRow(1, "gather", "label", 1, 1, is_ended=False)]))
    change = RunChange(state=WAITING, waits="gather label", unless=([1], []))
    with other(stream) as connection, connection.cursor() as cursor:
        database = Sql(f"`{stream.url.rsplit('/', 1)[1]}`")
        for statement in end_statements(database, loaded.flow.id, 1, [CallEnd(0, b"1", None)]):
            cursor.execute(statement)  # an ack, before its commit: the flow runs, so it is not woken
        write = InThread(lambda: store.write(loaded.flow, change))
        until(lambda: is_blocked(stream) or not write.is_alive(), 60, "it is blocked, or over")
        connection.commit()
    assert write.wait() is False, "the call has ended: the flow is run again"


def test_a_time_that_comes_during_a_run_is_not_missed(stream: Stream, shop: Ems, store: MysqlFlowStore) -> None:
    loaded = begun(store)
    due_at = shop.server_time(0.2)
    store.write(loaded.flow, RunChange([StepRow(1, "sleep", "sleep", is_ended=False, due_at=due_at)]))
    until(lambda: shop.server_time(0.0) >= due_at, 10, "the time has come")
    assert store.begin(loaded.flow.id, b"t" * 16) is None, "its message is passed over: a run is under way"
    assert not store.write(loaded.flow, RunChange(state=WAITING, waits="sleep", since=loaded.now))
    again = store.begin(loaded.flow.id, OWNER)
    assert again is not None and again.now >= due_at
    assert store.write(again.flow, RunChange(state=WAITING, waits="sleep", since=again.now)), "it has seen the time"


def test_a_start_sees_a_flow_that_was_committed_after_its_snapshot(stream: Stream, shop: Ems) -> None:
    with other(stream, "REPEATABLE READ") as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM ems_flow")  # from now on its reads are of this moment
        flows.waits.start(id="f")
        try:
            assert not flows.waits.start(id="f", transaction=connection).created
        except pymysql.err.OperationalError as error:
            assert error.args[0] == 1020, error  # MariaDB's innodb_snapshot_isolation


def test_a_write_whose_answer_was_lost_is_not_taken_for_another_run(stream: Stream, shop: Ems) -> None:
    with proxied(stream.url) as (proxy, url):
        store = MysqlFlowStore(Database(url), shop.streams.kept_by("default"))
        waits, done = RunChange(state=WAITING, waits="x"), RunChange(state=DONE, value=b"1")
        for number, (end, marker) in enumerate(((waits, b"COMMIT"), (done, b"state = 'done'"))):
            loaded = begun(store, f"f{number}")
            proxy.arm(marker, Cut.AFTER)
            assert store.write(loaded.flow, end)
            assert not proxy.armed
            row = store.find(f"f{number}")
            assert row is not None and row.state == end.state
            with pytest.raises(FlowLost):
                store.write(loaded.flow, RunChange([StepRow(1, "emit", "emit")]))


@pytest.mark.parametrize("cut", [None, Cut.BEFORE, Cut.AFTER], ids=str)
def test_runs_share_commits_and_each_learns_what_became_of_its_own(stream: Stream, shop: Ems, cut: Cut | None) -> None:
    with proxied(stream.url) as (proxy, url):
        shared = SharedCommits(Database(url))
        for key in "abcd":
            flows.waits.start(id=key)
        rows = stream.rows("SELECT id, owner FROM ems_flow ORDER BY `key`")
        drains: list[Callable[[], None]] = []  # of a thread that begins when all wait
        begins = [shared.begins.submit(Beginning(*row), drains.append) for row in rows]
        drains.pop()()
        loaded = [one.result().loaded for one in begins]
        a, b, c, d = (one.flow for one in loaded if one is not None)
        shared.begins.settle(Beginning(b.id, b.owner))  # another run of b
        ended = [StepRow(1, "step", name, value=b"1", took_s=0.001) for name in "ab"]
        checkpoints = [Checkpoint(a, ended[0]), Checkpoint(b, ended[1]), Checkpoint(c, b"2"), Checkpoint(d, b"3")]
        results = [shared.checkpoints.submit(one, drains.append) for one in reversed(checkpoints)]
        if cut is not None:
            proxy.arm(b"INSERT INTO ems_flow_step", cut)
        drains.pop()()
        lost = cut is Cut.AFTER  # the answer: to their own runs ends look like those of others
        assert [one.result() for one in reversed(results)] == [True, False, not lost, not lost]
    assert stream.rows("SELECT flow_id, step, name, value FROM ems_flow_step") == [(a.id, 1, "a", b"1")]
    assert stream.rows("SELECT id, value FROM ems_flow WHERE state = 'done' ORDER BY id") == [
        (c.id, b"2"),
        (d.id, b"3"),
    ]


@pytest.mark.parametrize("cut", [None, Cut.BEFORE, Cut.AFTER], ids=str)
def test_starts_share_commits_and_each_flow_is_started_once(stream: Stream, shop: Ems, cut: Cut | None) -> None:
    async def start() -> list[bool]:
        handles = [flows.waits.astart(id=f"f{number // 2}") for number in range(40)]
        return [handle.created for handle in await asyncio.gather(*handles)]

    with proxied(stream.url) as (proxy, url):
        shop.reconfigure(url=url)
        flows.waits.start(id="first")
        if cut is not None:
            proxy.arm(b"INSERT IGNORE INTO", cut)
        created = asyncio.run(start())
        shop.close()
    assert sum(created) == 20
    sent = stream.rows("SELECT uid FROM ems_message WHERE producer_id = 'flows' UNION ALL SELECT uid FROM ems_outbox")
    assert sorted(sent) == sorted(stream.rows("SELECT owner FROM ems_flow")) and len(sent) == 21


def test_coroutines_that_wait_for_flows_hold_no_thread(shop: Ems) -> None:
    async def wait() -> FlowHandle[Any]:
        handles = [await flows.waits.astart() for _ in range(3 * shop.settings.async_threads)]
        waiting = [asyncio.create_task(handle.aget()) for handle in handles]
        await asyncio.sleep(0.2)
        another = await asyncio.wait_for(flows.waits.astart(), 20)
        for task in waiting:
            assert task.cancel()
        return another

    assert asyncio.run(wait()).created


def test_numbers_of_steps_are_not_used_again(stream: Stream, shop: Ems, store: MysqlFlowStore) -> None:
    loaded = begun(store)
    failure = StoredError("ValueError", "x")
    store.write(loaded.flow, RunChange([StepRow(1, "step", "s"), StepRow(2, "call", "label", 1, 1, is_ended=False)]))
    with shop.transaction() as transaction:
        database = Sql(f"`{stream.url.rsplit('/', 1)[1]}`")
        for statement in end_statements(database, loaded.flow.id, 2, [CallEnd(0, None, failure)]):
            transaction.execute(statement)
    store.write(loaded.flow, RunChange(state="failed", failure=failure))
    for _ in range(2):
        row = store.find("f")
        assert row is not None and store.retry(row, 2)
        again = store.begin(row.id, OWNER)
        assert again is not None and [step.number for step in again.steps] == [1] and again.flow.next_step == 3
        store.write(again.flow, RunChange(state="failed", failure=failure))


def test_a_cancel_goes_down_and_a_retry_calls_again(stream: Stream, shop: Ems, store: MysqlFlowStore) -> None:
    stream.worker("tests.flows.shop:app")
    handle = flows.grandparent.start(id="g")
    until(lambda: _states(stream) == ["waiting"] * 4, 30, stream.logs())
    assert handle.cancel() and not handle.cancel()
    assert _states(stream) == [CANCELLED] * 4
    assert handle.retry()
    until(lambda: sorted(_states(stream)) == [CANCELLED] * 3 + ["waiting"] * 4, 30, stream.logs())
    for (key,) in stream.rows("SELECT `key` FROM ems_flow WHERE state = 'waiting' AND waits LIKE 'signal%%'"):
        shop.signal(key, "go", 5)
    assert handle.get(30) == [5, 5]


def _states(stream: Stream) -> list[str]:
    return [row[0] for row in stream.rows("SELECT state FROM ems_flow ORDER BY id")]


def test_uids_of_calls_differ() -> None:
    numbers = (0, 1, 2, 4095, 4096, 1 << 29)
    streams, steps = ("0", "0f" * 16, "f0" * 16), (1, 2, 4096, 4097, 8193)
    places = [CallPlace(*one) for one in product(streams, (1, 2), steps, numbers)]
    assert len({uid for one in places for uid in (one.uid, one.end_uid)}) == 2 * len(places)
    assert all(UUID(bytes=uid).version == 8 for one in places for uid in (one.uid, one.end_uid))
    assert [parse_place(one.word) for one in places] == places


def test_only_the_present_run_writes(stream: Stream, shop: Ems, store: MysqlFlowStore) -> None:
    zombie = begun(store)
    present = store.begin(zombie.flow.id, OWNER)
    assert present is not None and present.flow.state == RUNNING
    with pytest.raises(FlowLost):
        store.checkpoint(zombie.flow, StepRow(1, "step", "s", value=b"1"))
    for change in (RunChange([StepRow(1, "emit", "e")]), RunChange(state=DONE), RunChange(state=WAITING)):
        with pytest.raises(FlowLost):
            store.write(zombie.flow, change)
    with pytest.raises(FlowLost), shop.transaction() as transaction:
        transaction.execute("INSERT INTO effect (n, pid) VALUES (1, 1)")
        store.write_in(transaction, zombie.flow, RunChange([StepRow(1, "transaction", "t")]))
    assert not stream.rows("SELECT * FROM effect") and not store.steps_of(present.flow)


def test_an_id_with_other_arguments_is_refused_in_the_callers_transaction(stream: Stream, shop: Ems) -> None:
    flows.order.start(1, id="f")
    with other(stream) as connection, pytest.raises(FlowExists, match="other arguments"):
        flows.order.start(2, id="f", transaction=connection)


def test_each_role_may_do_its_part(stream: Stream) -> None:
    with users(stream.server, stream.url) as make:
        own = [f"SELECT, INSERT ON `{stream.url.rsplit('/', 1)[1]}`.effect"]
        worker = make("worker", ["auto-create", "beat"], own)
        stream.worker("tests.flows.shop:app", {"url": worker})
        before = flows.app.settings.url
        flows.app.reconfigure(url=make("producer", ["auto-create"]))
        try:
            flows.grandparent.start(id="g", timeout="1h")
            assert flows.waits.start(id="w", attributes={"customer": 17}).created
            assert not flows.waits.start(id="w").created
            with pytest.raises(FlowExists):
                flows.middle.start(id="w")
            until(lambda: _states(stream) == ["waiting"] * 5, 60, stream.logs())
            for (key,) in stream.rows("SELECT `key` FROM ems_flow WHERE waits LIKE 'signal%%'"):
                flows.app.signal(key, "go", 5)
            until(lambda: _states(stream) == [DONE] * 5, 60, stream.logs())
        finally:
            flows.app.close()
            flows.app.reconfigure(url=before)


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("marker", [b"ems_flow_signal (", b"COMMIT"])
def test_a_signal_whose_answer_is_lost_is_given_once(stream: Stream, shop: Ems, cut: Cut, marker: bytes) -> None:
    flows.waits.start(id="w")
    with proxied(stream.url) as (proxy, url):
        database = Database(url)
        for store in (MysqlFlowStore(database), Flows(database)):
            proxy.arm(marker, cut)
            if isinstance(store, Flows):
                store.signal("w", "go", 1)
            else:
                store.signal(None, "w", "go", b"1")
            assert not proxy.armed
    assert [row[0] for row in stream.rows("SELECT name FROM ems_flow_signal")] == ["go"] * 2


def test_a_flow_that_has_ended_by_its_signal_got_it(
    shop: Ems, stream: Stream, store: MysqlFlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows.waits.start(id="w")
    uids = (bytes([one]) * 16 for one in (1, 2, 1, 3, 4, 5))
    monkeypatch.setattr("emsworker.flows.store.flow_store.new_uid", lambda: next(uids))
    store.signal(None, "w", "go", b"1")
    stream.rows("UPDATE ems_flow SET state = 'done', ended_at = NOW(6)")
    assert store.signal(None, "w", "go", b"1") == READY, "the same one, because its answer was lost"
    assert store.signal(None, "w", "go", b"1") == DONE, "another one"
    assert stream.one("SELECT COUNT(*) FROM ems_flow_signal") == 1


@pytest.mark.slow
def test_a_signal_waits_for_a_flow_that_a_frozen_process_holds(stream: Stream, shop: Ems) -> None:
    flows.waits.start(id="w")
    for given in (lambda: shop.signal("w", "go", 1), lambda: Flows(Database(stream.url)).signal("w", "go", 1)):
        with other(stream) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM ems_flow FOR UPDATE")
            signal = InThread(given)
            until(lambda: is_blocked(stream), 60, "it is blocked")
            ends_at = ticks() + 6  # a statement waits for 5 s
            until(lambda ends_at=ends_at: ticks() >= ends_at, 60, "a wait for a lock has ended")
        assert signal.wait() is None
    assert stream.one("SELECT COUNT(*) FROM ems_flow_signal") == 2


def test_a_flow_whose_partition_takes_no_message_now_begins_by_the_outbox(stream: Stream, shop: Ems) -> None:
    flows.waits.start(id="before")
    stream.rows("UPDATE ems_partition SET closed = 1")
    assert flows.waits.start(id="f").created
    assert not flows.waits.start(id="f").created
    assert stream.one("SELECT COUNT(*) FROM ems_outbox") == 1
    stream.rows("UPDATE ems_partition SET closed = 0")
    stream.worker("tests.flows.shop:app")
    until(lambda: _states(stream) == ["waiting"] * 2, 60, stream.logs())


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_a_start_whose_answer_is_lost_is_made_once(stream: Stream, shop: Ems, cut: Cut) -> None:
    with proxied(stream.url) as (proxy, url):
        shop.reconfigure(url=url)
        flows.waits.start(id="connects")
        proxy.arm(b"COMMIT", cut)
        assert flows.waits.start(id="f", timeout="1h", attributes={"customer": 17}).created
        assert not proxy.armed
        shop.close()
    assert stream.one("SELECT COUNT(*) FROM ems_flow") == 2
    assert stream.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 2
    assert stream.one("SELECT COUNT(*) FROM ems_outbox") == 1, "its deadline"


def test_a_start_of_a_flow_that_is_there_leaves_nothing(stream: Stream, shop: Ems) -> None:
    for _ in range(3):
        flows.waits.start(id="f")
    assert stream.one("SELECT COUNT(*) FROM ems_flow") == 1
    assert stream.rows("SELECT `offset` FROM ems_message WHERE `offset` > 0") == [(1,)]
    flows.waits.start(id="g")
    assert stream.rows("SELECT `offset` FROM ems_message WHERE `offset` > 0 ORDER BY `offset`") == [(1,), (2,)], (
        "no hole"
    )


@pytest.fixture
def levels(shop: Ems) -> Iterator[None]:
    """Topics that are created have three levels of priority."""
    shop.reconfigure(priorities=3)
    yield
    shop.reconfigure(priorities=1)


@pytest.mark.usefixtures("levels")
def test_every_message_of_a_flow_has_the_priority_of_its_function(stream: Stream, shop: Ems) -> None:
    flows.urgent.start(id="f", timeout="1h")
    with shop.transaction() as transaction:
        flows.urgent.start(id="g", transaction=transaction)
    stream.worker("tests.flows.shop:app")
    until(lambda: _states(stream) == [DONE] * 2, 60, stream.logs())
    found = {
        number // 1000 for (number,) in stream.rows("SELECT DISTINCT `partition` FROM ems_message WHERE `offset` > 0")
    }
    found |= {level for (level,) in stream.rows("SELECT level FROM ems_outbox")}
    assert found == {7}


def test_a_priority_needs_a_topic_that_has_some(stream: Stream, shop: Ems) -> None:
    with pytest.raises(InvalidPriority):
        flows.urgent.start(id="f")
    assert stream.one("SELECT COUNT(*) FROM ems_flow") == 0


def test_ends_that_cannot_be_counted_are_not_kept(stream: Stream, shop: Ems, store: MysqlFlowStore) -> None:
    """A server that finds its client dead between two statements goes on, with -1 for the rows of the first."""
    loaded = begun(store)
    store.write(loaded.flow, RunChange([StepRow(1, "gather", "label", 2, 2, is_ended=False)]))
    database = Sql(f"`{stream.url.rsplit('/', 1)[1]}`")
    insert, count, *_ = end_statements(database, loaded.flow.id, 1, [CallEnd(0, b"1", None)])
    with other(stream) as connection, connection.cursor() as cursor:
        cursor.execute(insert)
        cursor.execute("SELECT 1")  # ROW_COUNT() is -1 after it
        with pytest.raises(pymysql.err.MySQLError, match="pending"):
            cursor.execute(count)
        connection.rollback()
        cursor.execute(insert)
        cursor.execute(count)
        connection.commit()
    assert stream.rows("SELECT pending FROM ems_flow_step") == [(1,)]
