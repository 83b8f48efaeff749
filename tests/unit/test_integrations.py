"""What the integrations ask for and refuse, without a server."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import flask
import pytest
from fastapi import FastAPI

from emsworker import ConfigError, Ems, EmsError, StoreUnavailable
from emsworker.integrations.flask import init_app
from emsworker.integrations.starlette import ems_of, lifespan


@pytest.mark.parametrize("name", ["starlette", "flask"])
def test_an_integration_asks_for_its_extra(name: str) -> None:
    code = f"import sys; sys.modules['{name}'] = None\nfrom emsworker import Ems\nimport emsworker.integrations.{name} as it\nit.init_app(None, Ems())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"pip install 'emsworker[{name}]'" in done.stderr.splitlines()[-1]


def test_settings_of_flask_are_settings_of_the_app() -> None:
    ems, app = Ems("shop"), flask.Flask("shop")
    app.config.update(EMS_THREADS=7, EMS_TOPIC="shop", EMS_ACCEPT=["json", "msgpack"])
    init_app(app, ems)
    assert (ems.settings.threads, ems.settings.topic, ems.settings.accept) == (7, "shop", ("json", "msgpack"))
    app.config.update(EMS_THREADZ=7, EMS_BATCH="many")
    with pytest.raises(ConfigError) as caught:
        init_app(app, Ems("shop"))
    assert [problem.name for problem in caught.value.problems] == ["threadz", "batch"]


def test_a_task_runs_in_a_context_of_the_application_that_came_last() -> None:
    ems = Ems("shop")
    ended: list[str] = []
    seen: list[tuple[str, int]] = []

    @ems.task
    def look(n: int) -> None:
        seen.append((flask.current_app.name, n))

    @ems.task
    async def look_later(n: int) -> None:
        await asyncio.sleep(0)
        seen.append((flask.current_app.name, n))

    def create_app(name: str) -> flask.Flask:
        app = flask.Flask(name)
        app.teardown_appcontext(lambda error: ended.append(name))
        init_app(app, ems)
        return app

    for name in ("first", "second"):
        create_app(name)
        with ems.test() as test:
            look.delay(1)
            look_later.delay(2)
            test.run()
            assert not test.dead
    assert sorted(seen) == [("first", 1), ("first", 2), ("second", 1), ("second", 2)]
    assert ended == ["first"] * 2 + ["second"] * 2


def test_a_web_application_finds_its_app_and_closes_it() -> None:
    ems = Ems("shop")
    web = FastAPI(lifespan=lifespan(ems))
    connection: Any = SimpleNamespace(app=web)

    async def main() -> None:
        with pytest.raises(EmsError, match="lifespan"):
            ems_of(connection)
        async with web.router.lifespan_context(web):
            assert ems_of(connection) is ems
            await ems.asend("orders", 1)

    with ems.test() as test:
        asyncio.run(main())
        assert len(test.sent) == 1


def test_a_wrong_address_is_found_when_the_web_application_starts() -> None:
    ems = Ems("shop", url="mysql://nobody@127.0.0.1:9/nowhere", publish_timeout_s=0.2)

    async def main(connect: bool) -> None:
        async with lifespan(ems, connect=connect)(FastAPI()):
            pass

    with pytest.raises(StoreUnavailable):
        asyncio.run(main(connect=True))
    asyncio.run(main(connect=False))
