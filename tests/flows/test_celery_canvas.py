"""The cases of Celery's own integration suite of canvases (t/integration/test_canvas.py), in words of ours.

96 of its 171 tests are here; those of chords that are upgraded from groups have smaller shapes. Not translated, because EMS
has no words for them: the replacement of a task by a canvas (``self.replace``, ``add_to_chord``: 33), stamping (12),
signatures that tasks return and build again (9), ids of parent and root and ``freeze`` (5), ``apply()`` and eager
canvases (5), ``task_allow_error_cb_on_chord_header`` (4), channels and counters of Redis and RabbitMQ (3), message
protocol 2 (1), a soft time limit of one call (1), a header that is read while it runs (1). A group without parts that is
started by itself is refused here (1): see ``test_bad_input``.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emsworker import TaskFailed
from emsworker.flows import FlowFailed, FlowHandle, chain, chord, group
from emsworker.testing import TestApp
from tests.flows.canvas_app import (
    add,
    add_to_all,
    app,
    echo,
    fail,
    heard,
    heard_at_last,
    heard_error,
    heard_id,
    priority,
    same,
    total,
)

MANY = 42


@pytest.fixture(autouse=True)
def test() -> Iterator[TestApp]:
    heard.clear()
    with app.test() as test:
        yield test


def ones() -> Any:
    return group(add.s(1), add.s(1))


def chord_of_ones() -> Any:
    return chord(ones(), total.s())


def echoes() -> Any:
    return group(echo.si("a"), echo.si("a"))


VALUES: dict[str, tuple[Callable[[], Any], Any]] = {
    # chains
    "simple chain": (lambda: add.s(4, 4) | add.s(8) | add.s(16), 32),
    "single chain": (lambda: chain(add.s(3, 4)), 7),
    "complex chain": (
        lambda: add.s(2, 2) | (add.s(4) | add.s(8) | add.s(16) | add.s(32)) | group(add.s(i) for i in range(4)),
        [64, 65, 66, 67],
    ),
    "group in a chain in a group": (lambda: group(add.s(1, 2) | group(add.s(1), add.s(2))), [[4, 5]]),
    "chain of a chain of a task": (lambda: chain([chain(same.s(42))]), 42),
    "chain in a group gets arguments": (lambda: add.s(5, 6) | group((add.s(1) | add.s(2), add.s(3))), [14, 14]),
    "group within a group of a chain": (
        lambda: group(same.si(1), same.si(2), chain(same.si(5), group([same.si(3), same.si(4)]))),
        [1, 2, [3, 4]],
    ),
    "a task, a group and a chord": (lambda: add.si(1, 0) | ones() | group(total.s(), total.s()) | total.s(), 8),
    "groups that are chords, and two tasks": (
        lambda: add.si(1, 0) | ones() | total.s() | add.s(1) | ones() | total.s(),
        12,
    ),
    "chords with two tasks": (lambda: add.si(1, 0) | ones() | total.s() | add.s(1) | chord_of_ones(), 12),
    "explicit chords": (
        lambda: (
            chain(
                chord(group(add.si(1, 0), add.si(1, 0)), total.s()),
                chord_of_ones(),
                chord(group(add.s(0), add.s(0)), total.s()),
            )
            | chain(
                chord(group(add.s(10), add.s(10)), total.s()),
                chord(group(add.s(0), add.s(0)), total.s()),
                chord_of_ones(),
            )
        ),
        178,
    ),
    "nine chords": (
        lambda: chain(
            chord(group([add.si(1, 0)] * 3), total.s()),
            *(chord(group([add.s(1)] * 3), total.s()) for _ in range(7)),
            chord(group([add.s(0)] * 3), total.s()),
        ),
        29520,
    ),
    "a chord, a task and a group": (lambda: group(add.s(1, 1), add.s(1, 1)) | total.s() | add.s(1) | ones(), [6, 6]),
    "a chord and a group with two tasks": (
        lambda: add.si(1, 0) | ones() | total.s() | add.s(1) | ones(),
        [6, 6],
    ),
    "a chord, two tasks and a group": (
        lambda: group(add.s(1, 1), add.s(1, 1)) | total.s() | add.s(1) | add.s(1) | ones(),
        [7, 7],
    ),
    "a chord, three tasks and a group": (
        lambda: group(add.s(1, 1), add.s(1, 1)) | total.s() | add.s(1) | add.s(1) | add.s(1) | ones(),
        [8, 8],
    ),
    "a lone group in a chain": (lambda: chain(group(same.s(42), same.s(42))), [42, 42]),
    "a group in the middle of a chain": (lambda: chain(same.s(42), group(same.s(), same.s()), same.s()), [42, 42]),
    "a group at the end of a chain": (lambda: chain(same.s(42), group(same.s(), same.s())), [42, 42]),
    "a group in the centre, tasks without s()": (
        lambda: chord(
            [add.s(0, 1)],
            chord([total, total], chain(total.s(), group(add.s(8), add.s(16)), total.s() | add.s(32))),
        ),
        60,
    ),
    "groups upgraded to chords": (
        lambda: chain(group([add.s(1, 1)] * 3), group([total.s()] * 2), group([total.s()] * 2), total.s()),
        24,
    ),
    "chords upgraded from groups, a chord first": (
        lambda: chain(chord(group([add.s(1, 1)] * 3), total.s()), group([add.s(1)] * 2), total.s(), add.s(1)),
        15,
    ),
    "a mixed canvas of upgraded chords": (
        lambda: chain(
            group(add.s(1, 1), chord([add.s(1, 1)] * 2, total.s())), total.s(), group(add.s(1), add.s(2)), total.s()
        ),
        15,
    ),
    # groups
    "nested group": (
        lambda: group(add.si(1, 10), group(add.si(1, 100), group(add.si(1, 1000), add.si(1, 2000)))),
        [11, [101, [1001, 2001]]],
    ),
    "large group": (lambda: group(same.si(i) for i in range(1000)), [*range(1000)]),
    "lone group": (lambda: group(same.s(42), same.s(42)), [42, 42]),
    "a group of one group": (lambda: group(group(same.s(42), same.s(42))), [42, 42]),
    "a chord in a group": (lambda: group((chord((same.si(42),), same.s()),)), [[42]]),
    "a chord of a chain in a group": (lambda: group(chord((chain([same.si(1337)] * MANY),), same.s())), [[1337]]),
    "a chord of a group in a group": (
        lambda: group((chord((group([same.si(1337)] * MANY),), same.s()),)),
        [[1337] * MANY],
    ),
    "a chord of a chord in a group": (
        lambda: group((chord((chord([same.si(1337)] * MANY, same.si(31337)),), same.s()),)),
        [[31337]],
    ),
    "a chord of everything in a group": (
        lambda: group(
            chord(
                (
                    same.si(42),
                    chain([same.si(42)] * MANY),
                    group([same.si(42)] * MANY),
                    chord([same.si(42)] * MANY, same.si(1337)),
                ),
                same.s(),
            )
        ),
        [[42, 42, *([42] * MANY), 1337]],
    ),
    "a chord whose body is a chain in a group": (lambda: group((chord(same.si(42), chain((same.s(),))),)), [[42]]),
    # chords
    "order of a chord": (lambda: chord((same.si(i) for i in range(10)), same.s()), [*range(10)]),
    "group and chain": (
        lambda: add.s(2, 2) | group(add.s(i) for i in range(4)) | add_to_all.s(8),
        [12, 13, 14, 15],
    ),
    "nested group and chain": (
        lambda: chain(
            add.si(1, 0),
            group(add.si(1, 100), chain(add.si(1, 200), group(add.si(1, 1000), add.si(1, 2000)))),
            add.si(1, 10),
        ),
        11,
    ),
    "a header of one task": (lambda: chord([add.s(2, 5)], body=add_to_all.s(9)), [16]),
    "a header of one task, by |": (lambda: group([add.s(2, 5)]) | add_to_all.s(9), [16]),
    "an empty header": (lambda: chord([], body=add_to_all.s(9)), []),
    "an empty header, by |": (lambda: group([]) | add_to_all.s(9), []),
    "nested chord": (
        lambda: chord(
            [chord([add.s(1, 2), add.s(3, 4)], add.s([5])), chord([add.s(6, 7)], add.s([10]))], add_to_all.s(["A"])
        ),
        [[3, 7, 5, "A"], [13, 10, "A"]],
    ),
    "nested chord, by |": (
        lambda: (
            group([group([add.s(1, 2), add.s(3, 4)]) | add.s([5]), group([add.s(6, 7)]) | add.s([10])])
            | add_to_all.s(["A"])
        ),
        [[3, 7, 5, "A"], [13, 10, "A"]],
    ),
    "deeply nested chord": (
        lambda: group([group([group([group([add.s(1, 2)]) | add.s([3])]) | add.s([4])]) | add.s([5])]) | add.s([6]),
        [[[[3, 3], 4], 5], 6],
    ),
    "parallel chords": (lambda: group([chord(group(add.s(1, 2), add.s(3, 4)), total.s())] * 2), [10, 10]),
    "chords in chords with chains": (
        lambda: chord(
            group([chain(add.si(1, 2), chord(group([add.si(1, 2), add.si(1, 2)]), add.si(1, 2)))] * 2), add.si(2, 2)
        ),
        4,
    ),
    "chain, chord, chain, chord": (
        lambda: chain(
            same.si(1),
            chord([same.si(2), chain(same.si(3), chord([same.si(4), same.si(5)], same.si(6)))], same.si(7)),
        ),
        7,
    ),
    "large header": (lambda: group(same.si(i) for i in range(1000)) | total.s(), 499500),
    "a chain to a large header": (lambda: same.si(1) | group(same.s() for _ in range(1000)) | total.s(), 1000),
    "priority": (lambda: chain(priority.s().set(priority=3)), "3"),
    "priorities of a chain": (lambda: priority.s().set(priority=3) | priority.s().set(priority=5), "5"),
    "a group in a chord": (lambda: chord((group(same.s(42), same.s(42)),), same.s()), [42, 42]),
    "a group at the end of a chain in a chord": (
        lambda: chord(group(chain(same.s(42), group(same.s(), same.s()))), same.s()),
        [[42, 42]],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_value(name: str, test: TestApp) -> None:
    make, value = VALUES[name]
    handle = make()()
    test.run()
    assert handle.get(1) == value


@pytest.mark.parametrize(
    ("make", "args", "kwargs", "value"),
    [
        pytest.param(lambda: chain(same.s(), same.s()), (1,), {}, 1, id="chain in a chain"),
        pytest.param(
            lambda: chain(chord([same.s(), same.s()], same.s()), same.s()), (1,), {}, [1, 1], id="chord in a chain"
        ),
        pytest.param(
            lambda: add.s(2, 2) | group(add.s(i) for i in range(4)) | add_to_all.s(8),
            (),
            {"z": 1},
            [13, 14, 15, 16],
            id="names",
        ),
        pytest.param(
            lambda: group(add.s(i) for i in range(4)) | add_to_all.s(8),
            (4,),
            {"z": 1},
            [13, 14, 15, 16],
            id="places and names",
        ),
    ],
)
def test_arguments(make: Any, args: Any, kwargs: Any, value: Any, test: TestApp) -> None:
    handle = make().apply_async(args, kwargs)
    test.run()
    assert handle.get(1) == value


def failed_with(test: TestApp, canvas: Any) -> FlowHandle[Any]:
    """Run a canvas that must fail as the task ``fail`` does."""
    handle: FlowHandle[Any] = canvas.delay()
    test.run()
    with pytest.raises(FlowFailed) as failed:
        handle.get(1)
    assert (failed.value.error_type, failed.value.message) == ("ValueError", "meant to fail")
    return handle


def some_fail() -> Any:
    return group(*(same.si(42) for _ in range(24)), *(fail.s() for _ in range(MANY)))


def broken() -> Any:
    return chain(same.si(42), fail.s(), same.si(42))


FAILURES: dict[str, Callable[[], Any]] = {
    "chain": lambda: chain(add.s(1, 2), fail.s(), add.s(3, 4)),
    "a group after it": lambda: add.s(1, 1) | fail.s() | ones(),
    "a group in which it is": lambda: add.s(1, 1) | add.s(1) | group(add.s(1), fail.s()),
    "header": lambda: chord((fail.s(),), same.s()),
    "body": lambda: chord((same.si(42),), fail.s()),
    "chain in a header": lambda: chord((broken(),), same.s()),
    "chain as a body": lambda: chord((same.si(42),), broken()),
    "end of a chain in a header": lambda: chord((chain(same.si(42), fail.s()),), same.s()),
    "end of a chain as a body": lambda: chord((same.si(42),), chain(same.si(42), fail.s())),
    "group in a header": lambda: chord((group(same.si(42), fail.s()),), same.s()),
    "group as a body": lambda: chord((same.si(42),), group(same.si(42), fail.s())),
    "body is a task": lambda: chain(group([add.si(15, 7), fail.si()]), same.si(42)),
    "body is a chain": lambda: chain(group([add.si(15, 7), fail.si()]), chain(same.si(42), same.s())),
    "body is a group": lambda: chain(group([add.si(15, 7), fail.si()]), group(same.si(42), same.si(1))),
    "body is a chord": lambda: chain(group([add.si(15, 7), fail.si()]), chord([same.si(42)], same.s())),
    "nested chain": lambda: chain(chain(group(add.si(1, 1), fail.si()), same.s()), same.s()),
    "member of a nested chain": lambda: chain(
        group(same.si(1), chain(fail.si(), group(same.si(2), same.si(3)), same.si(4))), same.s()
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure(name: str, test: TestApp) -> None:
    handle = failed_with(test, FAILURES[name]())
    assert handle.ready and handle.failed


@pytest.mark.parametrize(
    ("make", "times"),
    [
        pytest.param(lambda: chain(fail.s("test")), 1, id="a task"),
        pytest.param(broken, 1, id="a chain"),
        pytest.param(lambda: group(fail.s(), same.si(42)), 1, id="the first of a group"),
        pytest.param(lambda: group(same.si(42), fail.s()), 1, id="the last of a group"),
        pytest.param(some_fail, MANY, id="many of a group"),
        pytest.param(lambda: chord((fail.s(),), same.s()), 1, id="a header"),
        pytest.param(lambda: chord((same.si(42),), fail.s()), 1, id="a body"),
        pytest.param(lambda: chord((broken(),), same.s()), 1, id="a chain in a header"),
        pytest.param(lambda: chord((same.si(42),), broken()), 1, id="a chain as a body"),
        pytest.param(lambda: chord((chain(same.si(42), fail.s()),), same.s()), 1, id="the end of a chain in a header"),
        pytest.param(lambda: chord((same.si(42),), chain(same.si(42), fail.s())), 1, id="the end of a body"),
        pytest.param(lambda: chord((group(same.si(42), fail.s()),), same.s()), 1, id="a group in a header"),
        pytest.param(lambda: chord((same.si(42),), group(same.si(42), fail.s())), 1, id="a group as a body"),
        pytest.param(lambda: chord((some_fail(),), same.s()), 1, id="many of a header"),
        pytest.param(lambda: chord((same.si(42),), some_fail()), MANY, id="many of a body"),
    ],
)
@pytest.mark.parametrize("errback", [heard_id.s, heard_error.s, lambda: echo.si("called")], ids=["old", "new", "si"])
def test_errback_is_called(make: Any, times: int, errback: Any, test: TestApp) -> None:
    canvas = make()
    canvas.link_error(errback())
    failed_with(test, canvas)
    assert len(heard) == times


def test_errback_of_a_call(test: TestApp) -> None:
    failed_with(test, chain(fail.s("test").on_error(heard_error.s())))
    assert heard[0][:2] == ["tests.flows.canvas_app.fail", {"type": "ValueError", "message": "meant to fail"}]


def test_errback_that_is_retried(test: TestApp) -> None:
    failed_with(test, chain(fail.s("test").on_error(heard_at_last.s())))
    assert heard == ["at last"]


def test_errback_given_with_the_start(test: TestApp) -> None:
    chain(fail.s("test")).apply_async(link_error=echo.si("called"))
    test.run()
    assert heard == ["called"]


def test_errback_of_a_chords_body(test: TestApp) -> None:
    header = [add.s(1, 2), add.s(3, 4), fail.s()]
    handle = failed_with(test, chord(header, echo.s().on_error(heard_id.s())))
    assert len(heard) == 1, "as if the body had failed, which was not called"
    assert [one.state for one in handle.results] == ["done", "done", "failed"]
    assert [one.get() for one in handle.children[:2]] == [3, 7] and handle.completed_count == 2


def test_errback_of_an_outer_chord(test: TestApp) -> None:
    inner = chord([same.si("t1"), fail.si()], same.si("t2"))
    outer = chord(group([same.si("t3"), inner]), echo.si("body"))
    outer.link_error(echo.si("errback"))
    failed_with(test, outer)
    assert heard == ["errback"]


def test_errbacks_of_children_of_a_chain(test: TestApp) -> None:
    child = fail.si()
    child.link_error(echo.si("child"))
    failed_with(test, chain(child for _ in range(MANY)))
    assert heard == ["child"], "only the first of them ran"


def test_errbacks_of_children_of_a_group(test: TestApp) -> None:
    child = fail.si()
    child.link_error(echo.si("child"))
    failed_with(test, group(child for _ in range(MANY)))
    assert heard == ["child"] * MANY


def test_callbacks_of_children_of_a_chain(test: TestApp) -> None:
    child = same.si(1337)
    child.link(echo.si("child"))
    handle = chain(child for _ in range(MANY))()
    test.run()
    assert handle.get(1) == 1337 and heard == ["child"] * MANY


def test_callbacks_of_children_of_a_group(test: TestApp) -> None:
    child = same.si(1337)
    child.link(echo.si("child"))
    handle = group(child for _ in range(MANY))()
    test.run()
    assert handle.get(1) == [1337] * MANY and heard == ["child"] * MANY


def test_callback_of_a_group(test: TestApp) -> None:
    canvas = group(same.si(42), same.si(1337))
    canvas.link(echo.si("callback"))
    handle = canvas.delay()
    test.run()
    assert handle.get(1) == [42, 1337] and heard == ["callback"]


def test_callback_of_a_chain(test: TestApp) -> None:
    canvas = chain(same.s("Hello "), add.s("world"))
    canvas.link(echo.s())
    handle = canvas.delay()
    test.run()
    assert handle.get(1) == "Hello world" and heard == ["Hello world"]


def test_a_chain_in_a_chain_keeps_its_callbacks(test: TestApp) -> None:
    inner = chain(same.s("a"), add.s("b"))
    inner.link(echo.si("linked"))
    inner.link_error(echo.si("not called"))
    handle = chain(inner, add.s("c")).delay()
    test.run()
    assert handle.get(1) == "abc" and heard == ["linked"]


def test_order_of_groups_and_the_task_between_them(test: TestApp) -> None:
    before = group(echo.si(f"before {i}") for i in range(3))
    after = group(echo.si(f"after {i}") for i in range(2))
    (before | echo.si("connect") | after).delay()
    test.run()
    assert heard == ["before 0", "before 1", "before 2", "connect", "after 0", "after 1"]


def test_each_part_of_a_chord_in_a_chain_runs_once(test: TestApp) -> None:
    handle = chain(echoes() | echoes(), echo.si("a") | echo.si("b")).apply_async()
    test.run()
    assert handle.get(1) == "b" and heard == ["a"] * 5 + ["b"]


def test_errback_of_a_canvas_that_starts_later(test: TestApp) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=10)
    canvas = chain(group(add.s(1, 2), add.s(3, 4)), total.s()).on_error(echo.si("not called"))
    handle = canvas.apply_async(eta=eta)
    assert test.run_due() and handle.state == "waiting"
    test.run()
    assert handle.get(1) == 10 and test.now >= eta and heard == []


def test_a_result_is_found_by_its_id(test: TestApp) -> None:
    first = group(add.s(1, 1), add.s(2, 2)).delay()
    test.run()
    found = app.find_flow(first.id)
    assert found.get(1) == [2, 4] and [one.get() for one in found.results] == [2, 4]


def test_ready_with_an_exception(test: TestApp) -> None:
    handle = group([add.s(1, 2), fail.s()]).apply_async()
    assert not handle.ready
    test.run()
    assert handle.ready


def test_set_of_results(test: TestApp) -> None:
    kept = app.task(name="kept", result=True)(lambda x, y: x + y)
    bad = app.task(name="bad", result=True, max_attempts=1)(lambda: 1 / 0)
    try:
        results = app.results([kept.delay(1, 1), kept.delay(2, 2), bad.delay()])
        test.run()
        values = results.get(1, raises=False)
        assert values[:2] == [2, 4] and isinstance(values[2], TaskFailed)
    finally:
        for name in ("kept", "bad"):
            del app.registry.route("default", "workers").tasks[name]
