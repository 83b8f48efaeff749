"""Bursts of starts: the last one starts one flow. In memory with its clock, and on each server."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.errors import ConfigError, InvalidName
from emsworker.flows import Flow, FlowCancelled
from emsworker.flows.operating.services import WatchFlows
from emsworker.flows.store.flow_store import MysqlFlowStore
from emsworker.flows.stores import store_for
from emsworker.store.engine.database import Database
from emsworker.testing import TestApp
from tests.flows import shop as flows
from tests.flows.test_store import InThread, is_blocked, other
from tests.process.stream import Stream
from tests.support.proxy import Cut, proxied
from tests.support.roles import users
from tests.support.waiting import until

SOON = "2s"


class Index:
    """An app in memory with a flow that notes its arguments."""

    def __init__(self) -> None:
        self.app = Ems("index", url="mysql://nobody@127.0.0.1:1/none")
        self.did: list[Any] = []

        @self.app.flow
        def index(flow: Flow, n: int) -> int:
            return flow.step(self._note, n)

        @self.app.flow
        def waits(flow: Flow, n: int) -> Any:
            return flow.wait_for("go")

        self.index, self.waits = index, waits

    def _note(self, n: int) -> int:
        self.did.append(n)
        return n


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
def test(index: Index) -> Iterator[TestApp]:
    with index.app.test() as test:
        yield test


def test_the_last_start_of_a_burst_starts_one_flow(index: Index, test: TestApp) -> None:
    first = index.index.start(1, id="doc", debounce=5)
    assert first.created and first.state == "waiting"
    test.advance(4)
    second = index.index.start(2, id="doc", debounce="5s")
    assert (second.id, second.created) == (first.id, False)
    test.advance(4)
    test.run_due()
    assert index.did == [], "4 s after the latest start"
    test.advance(1)
    test.run_due()
    assert index.did == [2] and first.get(0) == 2
    third = index.index.start(3, id="doc", debounce=5)
    assert third.created and third.id != first.id and third.id.startswith("doc/"), "it has begun: another burst"
    test.run()
    assert index.did == [2, 3]


def test_a_burst_that_never_ends_is_bounded(index: Index, test: TestApp) -> None:
    for second in range(100):
        index.index.start(second, id="doc", debounce="5s")
        test.advance(1)
        test.run_due()
    assert index.did[0] == 49, "ten times the debounce after the first start"
    test.run()
    assert index.did == [49, 99]


def test_a_smaller_debounce_begins_no_flow_early(index: Index, test: TestApp) -> None:
    index.index.start(1, id="doc", debounce="1m")
    index.index.start(2, id="doc", debounce="1s")
    test.advance(59)
    test.run_due()
    assert index.did == []
    test.advance(1)
    test.run_due()
    assert index.did == [2]


def test_functions_and_ids_have_bursts_of_their_own(index: Index, test: TestApp) -> None:
    assert index.index.start(1, id="a", debounce=5).created
    assert index.index.start(2, id="b", debounce=5).created
    assert index.waits.start(3, id="a", debounce=5).created
    assert index.index.start(4, id="a").created, "a start without debounce is of another flow"


def test_a_rollback_takes_a_start_back(index: Index) -> None:
    def rolled_back(n: int) -> None:
        with pytest.raises(ZeroDivisionError), index.app.transaction() as transaction:
            index.index.start(n, id="doc", debounce=5, transaction=transaction)
            raise ZeroDivisionError

    with index.app.test(connection=_Connection()) as test:
        rolled_back(1)
        assert index.index.start(2, id="doc", debounce=5).created
        test.advance(3)
        rolled_back(3)
        test.advance(2)
        test.run_due()
        assert index.did == [2]


class _Connection:
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


def test_a_signal_waits_for_the_beginning(index: Index, test: TestApp) -> None:
    handle = index.waits.start(1, id="doc", debounce=5)
    index.app.signal(handle.id, "go", 17)
    test.run_due()
    assert handle.state == "waiting"
    assert not index.waits.start(2, id="doc", debounce=5).created
    test.run()
    assert handle.get(0) == 17


def test_a_cancel_ends_the_burst(index: Index, test: TestApp) -> None:
    handle = index.index.start(1, id="doc", debounce=5)
    index.index.start(2, id="doc", debounce=5)
    assert handle.cancel()
    assert index.index.start(3, id="doc", debounce=5).created
    test.run()
    with pytest.raises(FlowCancelled):
        handle.get(0)
    assert handle.retry()
    test.run()
    assert index.did == [3, 2], "with the latest arguments"


def test_what_cannot_be_debounced_is_refused(index: Index, test: TestApp) -> None:
    with pytest.raises(ConfigError, match="needs an id"):
        index.index.start(1, debounce=5)
    for wrong in ("soon", 0, "8d", -1):
        with pytest.raises(ConfigError, match="debounce"):
            index.index.start(1, id="doc", debounce=wrong)
    for name in ("", "x" * 154):
        with pytest.raises(InvalidName, match="1 to 153 characters"):
            index.index.start(1, id=name, debounce=5)
    assert index.index.start(1, id="x" * 153, debounce=5).created


# -- on a server ---------------------------------------------------------------------------------------------------------


def _effects(stream: Stream) -> list[int]:
    return [n for (n,) in stream.rows("SELECT n FROM effect ORDER BY id")]


def test_starts_of_many_threads_start_one_flow(stream: Stream, shop: Ems) -> None:
    ids: list[str] = []

    def start(number: int) -> None:
        ids.extend(flows.noted.start(number, id="doc", debounce=SOON).id for _ in range(5))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 40 and len({*ids}) == 1
    assert not flows.noted.start(99, id="doc", debounce=SOON, attributes={"customer": 1}).created
    assert stream.rows("SELECT name, value FROM ems_flow_attribute") == [("debounce", "doc")], "those of the first one"
    assert len(stream.rows("SELECT * FROM ems_outbox")) == 1, "one message, however many starts"
    stream.worker("tests.flows.shop:app")
    until(lambda: _effects(stream) == [99], 60, stream.logs())
    assert stream.rows("SELECT * FROM ems_flow_debounce") == []
    assert flows.noted.start(100, id="doc", debounce="10ms").created
    until(lambda: _effects(stream) == [99, 100], 60, stream.logs())


def test_a_start_moves_the_beginning(stream: Stream, shop: Ems) -> None:
    def span_s() -> float:
        ((span,),) = stream.rows(
            "SELECT TIMESTAMPDIFF(MICROSECOND, started_at, begins_at) / 1000000 FROM ems_flow WHERE `key` LIKE 'doc/%%'"
        )
        return float(span)

    flows.noted.start(1, id="doc", debounce=60)
    assert 59 <= span_s() <= 61
    stream.run("UPDATE ems_flow SET started_at = started_at - INTERVAL 500 SECOND")
    flows.noted.start(2, id="doc", debounce=60)
    assert 559 <= span_s() <= 571
    stream.run(
        "UPDATE ems_flow SET started_at = started_at - INTERVAL 100 SECOND, begins_at = begins_at - INTERVAL 100 SECOND"
    )
    flows.noted.start(3, id="doc", debounce=60)
    assert span_s() == 600, "at most ten times the debounce"


def test_a_start_whose_answer_was_lost_is_repeated(stream: Stream, shop: Ems) -> None:
    with proxied(stream.url) as (proxy, url):
        before = shop.settings.url
        shop.reconfigure(url=url)
        try:
            flows.noted.start(1, id="other", debounce=SOON)
            for starts in (1, 2):
                proxy.arm(b"COMMIT", Cut.AFTER)
                flows.noted.start(starts, id="doc", debounce=60, timeout="1h")
                assert not proxy.armed
        finally:
            shop.close()
            shop.reconfigure(url=before)
    assert len(stream.rows("SELECT * FROM ems_flow WHERE `key` LIKE 'doc/%%'")) == 1


def test_a_start_that_is_not_committed_yet_is_not_missed_by_the_beginning(stream: Stream, shop: Ems) -> None:
    store = store_for(shop, "default")
    assert isinstance(store, MysqlFlowStore)
    for number, isolation in enumerate(("READ COMMITTED", "REPEATABLE READ")):
        handle = flows.noted.start(1, id=f"doc{number}", debounce=60)
        row = store.find(handle.id)
        assert row is not None
        stream.run("UPDATE ems_flow SET begins_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = %s", row.id)
        with other(stream, isolation) as connection:
            assert not flows.noted.start(2, id=f"doc{number}", debounce=60, transaction=connection).created
            begin = InThread(lambda row=row: store.begin(row.id, row.owner))
            until(lambda begin=begin: is_blocked(stream) or not begin.is_alive(), 60, "it is blocked, or over")
            connection.commit()
        assert begin.wait() is None, "it begins a minute later"
        later = stream.rows("SELECT due_at > UTC_TIMESTAMP(6) + INTERVAL 50 SECOND FROM ems_outbox ORDER BY due_at")
        assert [*later[-1]] == [1]


def test_callers_in_transactions_wait_for_each_other(stream: Stream, shop: Ems) -> None:
    with other(stream, "REPEATABLE READ") as first, other(stream, "REPEATABLE READ") as second:
        one = flows.noted.start(1, id="doc", debounce=60, transaction=first)
        start = InThread(lambda: flows.noted.start(2, id="doc", debounce=60, transaction=second))
        until(lambda: is_blocked(stream) or not start.is_alive(), 60, "it is blocked, or over")
        first.rollback()
        two = start.wait()
        second.commit()
    assert one.created and two.created and one.id != two.id
    assert stream.rows("SELECT args FROM ems_flow") == [(b"[[2],{}]",)]


def test_the_beat_begins_a_flow_whose_message_was_lost(stream: Stream, shop: Ems) -> None:
    flows.noted.start(1, id="doc", debounce=60)
    stream.run("UPDATE ems_flow SET begins_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND, changed_at = '2020-01-01'")
    stream.run("DELETE FROM ems_outbox")
    database = Database(stream.url)
    database.call(lambda session: WatchFlows(quiet_s=0.0)(session, shop.settings))
    stream.worker("tests.flows.shop:app")
    until(lambda: _effects(stream) == [1], 60, stream.logs())


def test_each_role_may_do_its_part(stream: Stream) -> None:
    with users(stream.server, stream.url) as make:
        own = [f"SELECT, INSERT ON `{stream.url.rsplit('/', 1)[1]}`.effect"]
        stream.worker("tests.flows.shop:app", {"url": make("worker", ["auto-create", "beat"], own)})
        before = flows.app.settings.url
        flows.app.reconfigure(url=make("producer", ["auto-create"]))
        try:
            assert flows.noted.start(1, id="doc", debounce="1s", timeout="1h").created
            flows.noted.start(2, id="doc", debounce="1s")
            until(lambda: _effects(stream) == [2], 60, stream.logs())
            handle = flows.noted.start(3, id="doc", debounce="1m")
        finally:
            flows.app.close()
            flows.app.reconfigure(url=before)
        flows.app.reconfigure(url=make("operator"))
        try:
            assert flows.app.find_flow(handle.id).cancel()
        finally:
            flows.app.close()
            flows.app.reconfigure(url=before)
    assert stream.rows("SELECT * FROM ems_flow_debounce") == []


def test_random_bursts_start_what_the_model_starts(index: Index, test: TestApp) -> None:
    for seed in range(20):
        chance, name = random.Random(seed), f"doc{seed}"
        index.did.clear()
        started_at, begins_at, last, wanted, now = None, 0.0, 0, [], 0.0
        for number in range(60):
            debounce, pause = chance.randint(1, 5), chance.choice((0, 1, 3, 8))
            index.index.start(number, id=name, debounce=debounce)
            if started_at is None:
                started_at, begins_at = now, now + debounce
            begins_at, last = max(begins_at, min(now + debounce, started_at + 10 * debounce)), number
            for _ in range(pause):
                test.advance(1)
                test.run_due()
                now += 1
                if started_at is not None and now >= begins_at:
                    wanted.append(last)
                    started_at = None
        assert index.did == wanted, seed
        test.run()
