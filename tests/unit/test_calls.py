"""Calls of tasks: their options by name, prepared calls, and coroutines on an app in memory."""

import asyncio
from typing import Any

import pytest

from emsworker import BoundTask, ConfigError, Ems, PreparedTask, Task, WrongArguments
from emsworker.core.errors import InvalidName
from emsworker.publish.outgoing import MESSAGE_OPTIONS, SendOptions
from emsworker.tasks.calls import CALLED_WITH, CallOptions
from emsworker.tasks.options import HandlerOptions, TaskKeywords
from emsworker.tasks.task import CoroutineTask, GivenTask


def test_the_options_that_type_checkers_know_are_those_there_are() -> None:
    assert set(SendOptions.__annotations__) == MESSAGE_OPTIONS
    assert set(CallOptions.__annotations__) == CALLED_WITH
    handlers = set(HandlerOptions.__dataclass_fields__) - {"transactional", "batch"}
    assert set(TaskKeywords.__annotations__) == handlers | {"name", "topic", "group", "order"}


def test_a_prepared_call_carries_its_options() -> None:
    app = Ems("shop")

    @app.task(topic="sums")
    def add(x: int, y: int) -> int:
        return x + y

    with app.test() as test:
        prepared: PreparedTask[Any, int] = add.using(key="ada", headers={"trace": "1"}, priority=None)
        for n in range(2):
            prepared.delay(n, y=2)
        add.using(topic="other").delay(1, 2)
        assert [(one.topic, one.key, one.body) for one in test.sent] == [
            ("sums", "ada", [[0], {"y": 2}]),
            ("sums", "ada", [[1], {"y": 2}]),
            ("other", None, [[1, 2], {}]),
        ]
        assert test.sent[0].headers["trace"] == "1"
    with pytest.raises(ConfigError, match=r"kee.*using\(\) has no such option; did you mean 'key'"):
        add.using(kee="ada")  # type: ignore[call-arg]


def test_coroutines_send_to_an_app_in_memory_and_get_results() -> None:
    app = Ems("shop")

    @app.task(result=True)
    async def double(n: int) -> int:
        return 2 * n

    async def main() -> list[int]:
        receipts = await asyncio.gather(*(double.adelay(n) for n in range(20)))
        await app.asend("plain", 1)
        await app.asend_many("plain", [2, 3])
        assert await app.pool.run(test.run) == 20
        assert await app.result(receipts[3]).aget() == 6
        values = await app.results(receipts).aget(timeout=5)
        await app.aclose()
        return values

    with app.test() as test:
        assert asyncio.run(main()) == [2 * n for n in range(20)]
        assert [one.body for one in test.sent if one.topic == "plain"] == [1, 2, 3]


def test_a_call_by_name_needs_no_declaration() -> None:
    app = Ems("shop")

    @app.task(topic="sums", group="adders", name="add")
    def add(x: int, y: int) -> None: ...

    async def main() -> None:
        await app.asend_task("add", (3,), {"y": 4}, priority=None)
        await app.asend_task("far.away", (3,))

    with app.test() as test:
        app.send_task("add", (1, 2), key="ada")
        app.send_task("far.away", kwargs={"n": 1}, topic="far", group="there", expires=60, headers={"trace": "1"})
        asyncio.run(main())
        assert [(one.topic, one.key, one.body) for one in test.sent] == [
            ("sums", "ada", [[1, 2], {}]),
            ("far", None, [[], {"n": 1}]),
            ("sums", None, [[3], {"y": 4}]),
            ("default", None, [[3], {}]),
        ]
        far, near = test.sent[1].headers, test.sent[3].headers
        assert (far["ems-task"], far["ems-group"], far["trace"]) == ("far.away", "there", "1") and "ems-expires" in far
        assert (near["ems-task"], near["ems-group"]) == ("far.away", "workers")
        with pytest.raises(WrongArguments, match="'add' cannot be called with these arguments"):
            app.send_task("add", (1,))
        with pytest.raises(WrongArguments, match=r"args of task 'far\.away' is a str"):
            app.send_task("far.away", "1")
        with pytest.raises(ConfigError, match=r"kee.*send_task\(\) has no such option; did you mean 'key'"):
            app.send_task("add", (1, 2), kee="ada")  # type: ignore[call-arg]
        with pytest.raises(InvalidName):
            app.send_task("")
        assert len(test.sent) == 4


def test_a_name_that_is_declared_twice_is_chosen_by_its_place() -> None:
    app = Ems("shop")
    for topic in ("one", "two"):
        app.task(topic=topic, name="same")(lambda: None)
    with app.test() as test:
        with pytest.raises(ConfigError, match="is declared in one/workers, two/workers; choose by topic="):
            app.send_task("same")
        app.send_task("same", topic="two")
        assert [one.topic for one in test.sent] == ["two"]


def test_an_eager_app_runs_what_a_coroutine_sends_from_a_coroutine() -> None:
    app = Ems("shop", eager=True)
    ran: list[int] = []

    @app.task
    async def count_down(n: int) -> None:
        ran.append(n)
        if n:
            await count_down.adelay(n - 1)

    async def main() -> None:
        await asyncio.gather(count_down.adelay(3), count_down.adelay(1))

    asyncio.run(main())
    assert sorted(ran) == [0, 0, 1, 1, 2, 3]


def test_the_class_of_a_task_tells_what_a_direct_call_is() -> None:
    app = Ems("shop")

    @app.task
    def plain() -> int:
        return 1

    @app.task
    async def coroutine() -> int:
        return 2

    @app.task(bind=True)
    def bound(self: BoundTask) -> int:
        return 3

    assert [type(one) for one in (plain, coroutine, bound)] == [Task, CoroutineTask, GivenTask]
    assert plain() == 1 and asyncio.run(coroutine()) == 2
