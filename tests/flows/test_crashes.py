"""Flows whose workers are killed, frozen and cut off, on real servers."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from emsworker import Ems
from emsworker.core.config import Settings
from emsworker.core.errors import WrongArguments
from emsworker.flows import FlowFailed, FlowHandle
from emsworker.flows.operating.watching import WatchFlows
from emsworker.store.engine.database import Database
from tests.flows import mortal as flows
from tests.process.stream import Stream
from tests.support.proxy import Cut, proxied
from tests.support.waiting import until
from tests.support.worker import kill

APP = "tests.flows.mortal:app"


@pytest.fixture
def app(stream: Stream) -> Iterator[Ems]:
    before = flows.app.settings.url
    flows.app.reconfigure(url=stream.url)
    yield flows.app
    flows.app.close()
    flows.app.reconfigure(url=before)


def _effects(stream: Stream) -> list[int]:
    return [row[0] for row in stream.rows("SELECT n FROM effect ORDER BY n")]


def _waits(stream: Stream, key: str) -> str | None:
    waits: str | None = stream.one("SELECT waits FROM ems_flow WHERE `key` = %s", key)
    return waits


def _ended(stream: Stream, handle: FlowHandle[object]) -> bool:
    return handle.state in ("done", "failed", "cancelled")


@pytest.mark.slow
def test_kill_9_at_every_step(stream: Stream, app: Ems) -> None:
    stream.worker(APP, processes=2)
    handle = flows.mortal.start(10, id="m")
    until(lambda: _waits(stream, "m") == "signal go", 240, f"it waits; log:\n{stream.logs()}")
    app.signal("m", "go")
    until(lambda: _ended(stream, handle), 240, f"it has ended; log:\n{stream.logs()}")
    with pytest.raises(FlowFailed, match=r"ArithmeticError: \[12, 13, 14\]"):
        handle.get(0)
    assert _effects(stream) == [10, 11, 12, 13, 14], "each transaction once"
    assert stream.record.numbers("step") == [10, 11], "a step that is recorded is not run again"
    assert [one["n"] for one in stream.record.events("undo")] == [11, 10], "once each, in reverse"
    assert list(handle.values()) == [10]
    assert len(stream.record.events("dies")) == 13
    assert stream.rows("SELECT step FROM ems_flow_step WHERE pending > 0 OR ended_at IS NULL") == []


@pytest.mark.slow
def test_a_frozen_worker_writes_and_runs_nothing_of_a_flow_that_another_has_taken_over(
    stream: Stream, app: Ems
) -> None:
    first = stream.worker(APP)
    handle = flows.frozen.start(1)
    until(lambda: stream.record.events("lingers"), 30, f"it runs; log:\n{stream.logs()}")
    children = first.children()
    for pid in [first.pid, *children]:
        kill(pid, signal.SIGSTOP)
    second = stream.worker(APP)
    assert handle.get(60) == 1
    (stream.record.folder / "go-1").touch()
    for pid in [first.pid, *children]:
        kill(pid, signal.SIGCONT)
    until(lambda: len(first.client_ids()) == 1, 30, "it has registered anew")
    assert second.stop() == 0
    flows.plain.start(100).get(60)  # it has gone on, past what it was frozen in
    assert _effects(stream) == [1, 100, 101, 102, 103, 104]
    assert stream.record.numbers("step") == [1, 100, 101] and not stream.record.events("swallowed")
    assert first.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_cut_connections_during_checkpoints(stream: Stream, app: Ems, cut: Cut) -> None:
    with proxied(stream.url) as (proxy, url):
        stream.worker(APP, {"url": url})
        numbers = []
        for number in range(8):
            marker = (b"ems_flow_step", b"COMMIT", b"ems_flow_end", b"ems_flow SET")[number % 4]
            before = proxy.cuts
            proxy.arm(marker, cut, passing=number // 4 * 2)
            numbers.append(100 * (number + 1))
            handle = flows.plain.start(numbers[-1], id=f"f{number}")
            until(lambda handle=handle: _ended(stream, handle), 90, f"{marker!r}; log:\n{stream.logs()}")
            assert handle.get(0) == numbers[-1] + 1
            assert proxy.cuts > before or marker == b"COMMIT", marker
            proxy.disarm()
        assert _effects(stream) == sorted(n + place for n in numbers for place in range(5)), "each once"
        assert not stream.record.events("swallowed"), "an answer that is lost is no error of the flow's"
        counts = [stream.record.numbers("step").count(n + place) for n in numbers for place in range(2)]
        assert all(1 <= count <= 2 for count in counts), counts


@pytest.mark.slow
def test_a_child_flow_that_kills_its_worker_is_told_to_its_parent(stream: Stream, app: Ems) -> None:
    stream.worker(APP)
    handle = flows.calls_a_crash.start()
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_dead"), 60, f"it is dead; log:\n{stream.logs()}")
    watch = WatchFlows(quiet_s=0.0, pause_s=0.0)
    with Database(stream.url).session() as session:
        until(lambda: watch(session, Settings()) or _ended(stream, handle), 60, f"told; log:\n{stream.logs()}")
    assert handle.get(0) == "WorkerLost"


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again(stream: Stream, app: Ems) -> None:
    stream.worker(APP, processes=2)
    handles = [flows.plain.start(100 * n) for n in range(1, 21)]
    until(lambda: _effects(stream), 60, f"they run; log:\n{stream.logs()}")
    stream.server.kill()
    stream.server.start(120)
    until(lambda: all(_ended(stream, one) for one in handles), 180, f"all have ended; log:\n{stream.logs()}")
    assert [handle.get(0) for handle in handles] == [100 * n + 1 for n in range(1, 21)]
    assert _effects(stream) == sorted(100 * n + place for n in range(1, 21) for place in range(5))


def test_a_failed_flow_is_a_dead_letter_and_goes_on_where_it_failed(stream: Stream, app: Ems) -> None:
    stream.worker(APP)
    handle = flows.mendable.start(5, id="x")
    with pytest.raises(FlowFailed, match="RuntimeError: not mended yet"):
        handle.get(60)
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_dead"), 30, f"it is a dead letter; log:\n{stream.logs()}")
    assert "flow 'x' has failed" in stream.one("SELECT CONVERT(error USING utf8mb4) FROM ems_dead")
    (stream.record.folder / "mended").touch()
    assert handle.retry()
    assert stream.one("SELECT COUNT(*) FROM ems_dead") == 0
    until(lambda: handle.state == "done", 60, f"it is done; log:\n{stream.logs()}")
    assert handle.get(0) == 5
    assert _effects(stream) == [5] and stream.record.numbers("step") == [5]


@pytest.mark.parametrize("which", ["x", "x/1.0"])
def test_a_flow_that_is_run_again_keeps_what_its_calls_and_flows_have_done(
    stream: Stream, app: Ems, which: str
) -> None:
    stream.worker(APP)
    handle = flows.mendable_calls.start(10, id="x")
    with pytest.raises(FlowFailed):
        handle.get(60)
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_dead") == 3, 30, f"a call and two flows; log:\n{stream.logs()}")
    assert _effects(stream) == [10, 11, 13, 15]
    (stream.record.folder / "mended").touch()
    again = app.find_flow(which)
    assert again.retry() and not again.retry()
    assert handle.get(60) == [11, 12, 13, 15]
    assert stream.one("SELECT COUNT(*) FROM ems_dead") == 0, "none is left that somebody could requeue"
    assert _effects(stream) == [10, 11, 12, 13, 15], "each once"


def test_a_call_whose_dead_letter_is_gone_is_not_made_again_unasked(stream: Stream, app: Ems) -> None:
    stream.worker(APP)
    handle = flows.mendable_child.start(10, id="x")
    with pytest.raises(FlowFailed):
        handle.get(60)
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_dead") == 2, 30, f"a call and a flow; log:\n{stream.logs()}")
    (stream.record.folder / "mended").touch()
    stream.run("DELETE FROM ems_dead")
    with pytest.raises(WrongArguments, match=r"call 1 of step .*mendable_call' is no dead letter any more.*--from 2"):
        handle.retry()
    assert handle.state == "failed"
    assert handle.retry(2)
    assert handle.get(60) == [11, 12, 13]
    assert _effects(stream) == [10, 11, 11, 12, 13, 13], "as was asked for"


@pytest.mark.slow
def test_a_rolling_deploy_runs_each_flow_with_its_version(stream: Stream, app: Ems) -> None:
    old = stream.worker(APP, environ={"EMS_TEST_VERSIONS": "1"})
    handles = [flows.rolling_2.start(n, id=f"new-{n}") for n in range(3)]  # started before anybody knows the version
    flows.rolling_2.version = 1
    handles += [flows.rolling_2.start(n, id=f"old-{n}") for n in range(3, 6)]
    flows.rolling_2.version = 2
    until(lambda: _waits(stream, "old-5") == "signal go", 60, f"the old ones run; log:\n{stream.logs()}")
    until(lambda: _waits(stream, "new-0") == "a worker with version 2", 60, f"new ones wait; log:\n{stream.logs()}")
    stream.worker(APP, environ={"EMS_TEST_VERSIONS": "1,2"})
    for handle in handles:
        app.signal(handle.id, "go")
    until(lambda: all(_ended(stream, one) for one in handles), 120, f"all have ended; log:\n{stream.logs()}")
    assert [handle.get(0) for handle in handles] == [2, 2, 2, 1, 1, 1]
    assert _effects(stream) == [0, 1, 2]
    assert stream.rows("SELECT * FROM ems_dead") == [], "nobody was charged"
    assert old.stop() == 0
