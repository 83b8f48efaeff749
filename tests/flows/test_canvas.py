"""Chains, groups, chords: in memory, and on real servers."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from emsworker import ConfigError, Ems, EncodeError
from emsworker.core.errors import InvalidName, WrongArguments
from emsworker.flows import FlowExists, FlowFailed, FlowHandle, chain, chord, chunks, group
from emsworker.flows.memory import MemoryFlowStore
from emsworker.testing import TestApp
from tests.flows import canvas_app as tasks
from tests.flows.canvas_app import add, echo, fail, heard, same, total
from tests.process.stream import Stream
from tests.support.waiting import until

CANVAS = "tests.flows.canvas_app:app"


@pytest.fixture
def test() -> Iterator[TestApp]:
    heard.clear()
    with tasks.app.test() as test:
        yield test


def value_of(test: TestApp, canvas: Any, *args: Any, **kwargs: Any) -> Any:
    handle: FlowHandle[Any] = canvas.delay(*args, **kwargs)
    test.run()
    return handle.get(1)


# -- what is run -------------------------------------------------------------------------------------------------------


def test_tasks_of_all_kinds_are_parts(test: TestApp) -> None:
    assert value_of(test, tasks.later.s(1) | add.s(2)) == 12
    assert value_of(test, tasks.fail_once.s("x") | add.s("y")) == "xy"
    assert value_of(test, tasks.doubled.s(4) | tasks.doubled.s()) == 16
    assert value_of(test, group(tasks.doubled.s(1), tasks.later.s(2), add.s(1, 2))) == [2, 20, 3]


def test_parts_of_other_topics_and_groups(test: TestApp) -> None:
    assert value_of(test, add.s(1, 2) | tasks.elsewhere.s() | add.s(3)) == 1006
    handle = chain(tasks.elsewhere.s(1), add.s(2), group(tasks.elsewhere.s(), add.s(1))).delay()
    assert {message.topic for message in test.sent if message.headers.get("ems-flow")} >= {"other"}
    test.run()
    assert handle.get(1) == [2003, 1004]


def test_a_canvas_is_run_by_the_group_of_its_first_task_alone() -> None:
    app = Ems("groups", url="mysql://nobody@127.0.0.1:1/none")
    left = app.task(group="left", name="left")(lambda x: x + 1)
    right = app.task(group="right", name="right")(lambda x: x * 2)
    with app.test() as test:
        handle = (left.s(1) | right.s() | left.s()).delay()
        runs = test.run()
        assert handle.get(1) == 5 and not test.dead
        assert runs == 14, "each of 7 messages once by its group, and passed over once by the other"


def test_deep_nesting(test: TestApp) -> None:
    canvas: Any = add.s(1)
    for _ in range(20):
        canvas = group(canvas | same.s(), same.s())
    handle = canvas.delay(0)
    test.run()
    value = handle.get(1)
    for _ in range(20):
        value, kept = value
        assert kept == 0
    assert value == 1


def test_chord_of_a_thousand(test: TestApp) -> None:
    assert value_of(test, chord((add.s(i, i) for i in range(1000)), total.s())) == 999_000


def test_a_long_chain_reads_each_value_once(test: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    before = MemoryFlowStore.ends_of

    def ends_of(self: Any, flow: Any, step: Any) -> Any:
        read.append(step.number)
        return before(self, flow, step)

    monkeypatch.setattr(MemoryFlowStore, "ends_of", ends_of)
    assert value_of(test, chain(add.s(0, 1), *(add.s(1) for _ in range(199)))) == 200
    assert read == [*range(1, 201)]


def test_map_starmap_and_chunks(test: TestApp) -> None:
    assert value_of(test, chain(total.map([[1, 2], [3]]))) == [3, 3]
    assert value_of(test, chain(add.starmap([(1, 2), (3, 4)])) | total.s()) == 10
    assert value_of(test, add.chunks(zip(range(5), range(5), strict=True), 2)) == [[0, 2], [4, 6], [8]]
    assert value_of(test, chunks(add, [(1, 1)] * 3, 3) | same.s()) == [[2, 2, 2]]
    assert value_of(test, chain(tasks.later.map([1, 2]))) == [10, 20]
    assert value_of(test, chain(tasks.own_id.map([1, 2]))) != []
    sent = [message for message in test.sent if message.headers["ems-task"].startswith("ems.starmap:")]
    assert len(sent) == 8, "one message for each map and chunk"


def test_a_map_is_retried_as_its_task(test: TestApp) -> None:
    assert value_of(test, chain(tasks.fail_once.map(["a", "b"]))) == ["a", "b"]
    with pytest.raises(FlowFailed, match="meant to fail"):
        value_of(test, chain(fail.map([1])))
    assert [dead.attempt for dead in test.dead][:1] == [1]


def test_options_are_of_the_calls_with_which_it_begins(test: TestApp) -> None:
    handle = (tasks.priority.s() | group(same.s(), tasks.priority.s())).apply_async(priority=7)
    test.run()
    assert handle.get(1) == ["7", None]
    late = (group(add.s(1, 1), add.s(2, 2)) | total.s()).apply_async(countdown=50)
    assert test.run_due() == 1 and late.state == "waiting"
    test.run()
    assert late.get(1) == 6


def test_an_immutable_part_takes_nothing(test: TestApp) -> None:
    assert value_of(test, add.s(1, 1) | add.si(5, 5) | add.s(1)) == 11
    assert value_of(test, add.si(1, 1) | same.s(), 100, z=5) == 2


def test_parts_can_be_used_again(test: TestApp) -> None:
    start = add.s(1, 1)
    double = start | add.s(1)
    triple = double | add.s(1)
    assert [value_of(test, one) for one in (chain(start), double, triple, double)] == [2, 3, 4, 3]


# -- in flows ----------------------------------------------------------------------------------------------------------


def test_a_flow_calls_canvases(test: TestApp) -> None:
    handle = tasks.canvas_inside.start(1)
    test.run()
    assert handle.get(1) == [4, [3, 7, 8]]


def test_a_canvas_undoes_a_step(test: TestApp) -> None:
    handle = tasks.undone.start()
    test.run()
    assert handle.state == "failed" and heard == ["first", "second"]


# -- starting ----------------------------------------------------------------------------------------------------------


def test_an_id_starts_once(test: TestApp) -> None:
    canvas = add.s(1, 2) | echo.s()
    first = canvas.apply_async(id="order-7", attributes={"customer": 17})
    assert first.created and not canvas.apply_async(id="order-7").created
    test.run()
    assert first.get(1) == 3 and heard == [3]
    with pytest.raises(FlowExists):
        (add.s(1, 3) | echo.s()).apply_async(id="order-7")


def test_started_by_a_coroutine(test: TestApp) -> None:
    handle = asyncio.run(chain(add.s(1), add.s(2)).adelay(4))
    test.run()
    assert handle.get(1) == 7


def test_a_canvas_has_a_deadline(test: TestApp) -> None:
    handle = (add.s(1, 1).set(countdown=60) | add.s(1)).apply_async(timeout="10s")
    test.run()
    with pytest.raises(FlowFailed, match="FlowTimeout"):
        handle.get(1)


def test_a_failed_canvas_is_retried_from_its_failure(test: TestApp) -> None:
    app = tasks.app
    broken = [True]

    def mended(x: int) -> int:
        if broken[0]:
            raise ValueError("not mended")
        return x + 1

    task = app.task(name="mended", max_attempts=1)(mended)
    try:
        handle = (echo.s(1) | task.s() | echo.s()).on_error(tasks.heard_id.s()).delay()
        test.run()
        assert handle.failed and len(heard) == 2
        broken[0] = False
        assert handle.retry()
        test.run()
        assert handle.get(1) == 2 and [heard[0], heard[2]] == [1, 2] and len(heard) == 3
    finally:
        del app.registry.route("default", "workers").tasks["mended"]


def test_results_tell_of_each_part(test: TestApp) -> None:
    handle = group(add.s(1, 1), fail.s(), add.s(2, 2).set(countdown=60)).delay()
    test.run_due()
    assert [one.state for one in handle.results] == ["done", "failed", "pending"]
    assert handle.completed_count == 1 and not handle.ready
    assert handle.results[0].get() == 2
    with pytest.raises(TimeoutError):
        handle.results[2].get()
    test.run()
    assert [one.state for one in handle.children] == ["done", "failed", "done"]


# -- bad input: a clear error, and nothing is started ------------------------------------------------------------------


def cycle() -> Any:
    canvas = chain(add.s(1, 1))
    canvas.link_error(canvas)
    return canvas


def deep() -> Any:
    canvas: Any = add.s(1, 1)
    for _ in range(200):
        canvas = group(canvas, canvas.tasks[0] if isinstance(canvas, group) else canvas)
    return canvas


OTHER = Ems("other-app", url="mysql://nobody@127.0.0.1:1/none")
foreign = OTHER.task(name="foreign")(lambda x: x)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (chain, WrongArguments, "calls no task"),
        (lambda: chain(add.s(1, 1), chain()), None, ""),
        (lambda: group([]), WrongArguments, "calls no task"),
        (lambda: chain(group(add.s(1, 1)), group(chain(group([])))), None, ""),
        (lambda: chord([add.s(1, 1)]), WrongArguments, "has no body"),
        (lambda: chord([], None), WrongArguments, "calls no task"),
        (cycle, WrongArguments, "is a part of itself"),
        (deep, WrongArguments, "nested more than 100 levels"),
        (lambda: add.s(1) | add.s(2), WrongArguments, "missing a required argument"),
        (lambda: add.s(1, 2) | add.s(1, 2, 3), WrongArguments, "too many positional"),
        (lambda: add.s(1, 2) | add.s(x=1), WrongArguments, "multiple values|missing a required"),
        (lambda: add.s(1, 2) | same.s(nonsense=1), WrongArguments, "nonsense"),
        (lambda: chain(add.s(1, object())), EncodeError, "cannot be kept"),
        (lambda: chain(add.s(1, "x" * 2_000_000)), EncodeError, "over the limit"),
        (lambda: add.s(1, 1) | foreign.s(), WrongArguments, "is of app 'other-app'"),
        (lambda: chain(add.s(1, 1).set(task_id="0192f3a4-0000-7000-8000-000000000000")), ConfigError, "task_id"),
        (lambda: chain(add.s(1, 1).set(priority=12)), Exception, "priority"),
        (lambda: chain(add.s(1, 1).set(countdown=1, delay="2s")), ConfigError, "either"),
        (lambda: chain(add.s(1, 1), 7), WrongArguments, "7 is no part of a canvas"),
        (lambda: chain(add.s(1, 1)).on_error(group([])), WrongArguments, "calls nothing"),
        (lambda: chain(add.s(1, 1)).on_error(tasks.undone.s()), WrongArguments, "cannot be called"),
        (lambda: tasks.together.map([1]), WrongArguments, "in batches"),
        (lambda: tasks.doubled.map([1]), WrongArguments, "is a flow"),
        (lambda: add.map([1]), WrongArguments, "missing a required argument"),
        (lambda: add.chunks([(1, 1)], 0), WrongArguments, "whole number from 1"),
    ],
)
def test_bad_input(make: Any, error: type[Exception] | None, text: str, test: TestApp) -> None:
    if error is None:
        make().delay()
        return
    with pytest.raises(error, match=text):
        make().delay()
    assert test.sent == []


def test_a_call_with_callbacks_is_no_single_message(test: TestApp) -> None:
    call = add.s(1, 1)
    call.link_error(echo.si("failed"))
    with pytest.raises(WrongArguments, match=r"chain\(\.\.\.\)\.delay\(\)"):
        call.delay()
    with pytest.raises(WrongArguments):
        add.delay_many([call])
    with pytest.raises(WrongArguments, match="missing a required argument"):
        add.s(1).delay()
    assert test.sent == []


def test_a_task_that_no_worker_knows_any_more(test: TestApp) -> None:
    gone = tasks.app.task(name="gone")(lambda x: x)
    handle = (echo.s(1) | gone.s()).delay()
    del tasks.app.registry.route("default", "workers").tasks["gone"]
    test.run()
    with pytest.raises(FlowFailed, match="task 'gone' of default/workers, which a canvas calls, is not known"):
        handle.get(1)


def test_a_long_name_is_refused_where_it_is_used() -> None:
    app = Ems("long", url="mysql://nobody@127.0.0.1:1/none")
    task = app.task(name="n" * 185)(lambda x: x)
    with pytest.raises(InvalidName):
        task.map([1])


# -- on real servers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def app(stream: Stream) -> Iterator[Ems]:
    app = tasks.app
    before = app.settings.url
    app.reconfigure(url=stream.url)
    yield app
    app.close()
    app.reconfigure(url=before)


def test_canvases_on_a_server(stream: Stream, app: Ems) -> None:
    stream.worker(CANVAS)
    long = chain(add.s(0, 1), *(add.s(1) for _ in range(19))).delay()
    wide = group(tasks.book.s(n) for n in range(500)).delay()
    joined = (group(add.s(n, n) for n in range(300)) | total.s()).delay()
    nested = chain(
        add.s(1, 1), group(add.s(1), group(add.s(2), add.s(3) | same.s()), chord([add.s(4), add.s(5)], total.s()))
    ).delay()
    mapped = chain(tasks.book.starmap([[n] for n in range(1000, 1010)]), total.s()).delay()
    failing = chain(add.s(1, 1), group(fail.s(), same.s()), same.s()).on_error(tasks.heard_error.s()).delay()
    assert long.get(60) == 20
    assert wide.get(60) == [*range(500)]
    assert joined.get(60) == 89_700
    assert nested.get(60) == [3, [4, 5], 13]
    assert mapped.get(60) == sum(range(1000, 1010))
    with pytest.raises(FlowFailed, match="ValueError: meant to fail"):
        failing.get(60)
    until(lambda: stream.record.events("said"), 30, stream.logs())
    assert stream.rows("SELECT COUNT(*), COUNT(DISTINCT n) FROM effect") == [(510, 510)]
    assert stream.rows("SELECT COUNT(*) FROM ems_flow WHERE state NOT IN ('done', 'failed')") == [(0,)]
    assert wide.completed_count == 500


def test_a_canvas_starts_with_the_callers_commit(stream: Stream, app: Ems) -> None:
    stream.worker(CANVAS)
    with pytest.raises(RuntimeError), app.transaction() as transaction:
        transaction.execute("INSERT INTO effect (n, pid) VALUES (1, 0)")
        (add.s(1, 1) | tasks.book.s()).apply_async(id="undone", transaction=transaction)
        raise RuntimeError
    with app.transaction() as transaction:
        transaction.execute("INSERT INTO effect (n, pid) VALUES (2, 0)")
        handle = (add.s(1, 2) | tasks.book.s()).apply_async(id="done", transaction=transaction)
    assert handle.get(30) == 3
    assert stream.rows("SELECT n FROM effect ORDER BY n") == [(2,), (3,)]
    assert stream.rows("SELECT `key` FROM ems_flow") == [("done",)]


def test_a_group_is_joined_once_though_its_worker_is_killed(stream: Stream, app: Ems) -> None:
    worker = stream.worker(CANVAS, processes=2)
    handle = (group(tasks.book.s(n) for n in range(400)) | total.s() | tasks.book.s()).delay()
    until(lambda: stream.one("SELECT COUNT(*) FROM effect") > 20, 30, stream.logs(), 0.005)
    worker.kill_all()
    stream.worker(CANVAS)
    assert handle.get(90) == sum(range(400))
    assert stream.rows("SELECT COUNT(*), COUNT(DISTINCT n) FROM effect") == [(401, 401)]
