"""Steps of coroutines side by side have their places in their own branch, in whichever order the branches go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from emsworker import Ems
from emsworker.flows import AsyncFlow
from emsworker.flows.branches import is_within
from emsworker.testing import TestApp


@pytest.fixture
def app() -> Ems:
    return Ems("branches", url="mysql://nobody@127.0.0.1:1/none")


@pytest.fixture
def test(app: Ems) -> Iterator[TestApp]:
    with app.test() as test:
        yield test


def _crossing(app: Ems, test: TestApp, order: str) -> list[list[str]]:
    """Run a flow whose branches, and the branches of these, go on in an order that signals decide."""

    @app.task(name="echo")
    def echo(text: str) -> str:
        return text

    @app.flow
    async def crossing(flow: AsyncFlow) -> list[list[str]]:
        async def below(name: str) -> str:
            await flow.sleep(0.01)
            return await flow.call(echo.s(name))

        async def one(name: str) -> list[str]:
            await flow.wait_for(name)
            first = await flow.call(echo.s(name))
            return [first, *await asyncio.gather(*(below(f"{name}{n}") for n in range(2)))]

        return await asyncio.gather(*map(one, "abc"))

    handle = crossing.start(id="x")
    test.run()
    for name in order:
        app.signal("x", name)
        test.run()
    return handle.get(0)


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_each_branch_gets_what_it_has_asked_for(app: Ems, test: TestApp, order: str) -> None:
    assert _crossing(app, test, order) == [[name, f"{name}0", f"{name}1"] for name in "abc"]


def test_a_branch_knows_by_itself_whether_it_is_replayed(app: Ems, test: TestApp) -> None:
    asked: list[tuple[str, bool]] = []

    @app.flow
    async def patching(flow: AsyncFlow) -> None:
        async def one(name: str) -> None:
            await flow.wait_for(name)
            asked.append((name, flow.patched("new")))
            await flow.wait_for(f"{name} again")

        await asyncio.gather(one("a"), one("b"))

    patching.start(id="p")
    test.run()
    for name in ("b", "a", "a again", "b again"):
        app.signal("p", name)
        test.run()
    assert {is_new for _, is_new in asked} == {True} and {name for name, _ in asked} == {"a", "b"}


def test_what_is_within_a_branch() -> None:
    assert is_within("1.0", "") and is_within("1.0", "1") and is_within("1", "1")
    assert not is_within("10", "1") and not is_within("1", "1.0") and not is_within("", "1")
