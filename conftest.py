"""Fixtures for all tests: private database servers and Redis.

The environment variable EMS_TEST_SERVERS names the servers to test on ("mariadb,mysql,redis", which is also the
default). A server that cannot be started fails the run when it was named, or when CI is set; otherwise its tests
are skipped, and the summary says so. With several test processes (pytest -n) each has private servers of its own.
"""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import hypothesis
import pytest

from emsworker.local import LocalDatabase, Redis
from tests.support.own_process import run_if_marked
from tests.support.servers import ALL_FLAVORS, FLAVORS, IS_WORKER, TestServers, chosen_flavors, fresh_database

_SERVERS = pytest.StashKey[TestServers]()
_LEFT_OUT = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    chosen_flavors()
    hypothesis.settings.register_profile("beside_others", deadline=None)
    hypothesis.settings.load_profile("beside_others")
    # By default SIGTERM ends Python at once, with the servers left behind.
    signal.signal(signal.SIGTERM, _interrupt)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With EMS_TEST_FLAVORS=others leave out what no flavor changes: it runs with the first one."""
    for item in items:
        _check_marks(item)
    if FLAVORS == "others":
        config.hook.pytest_deselected(items=[item for item in items if not _has_flavor(item)])
        items[:] = [item for item in items if _has_flavor(item)]


def _check_marks(item: pytest.Item) -> None:
    """Refuse a mark that `./dev verify` would not find: it looks for these in the text of the files."""
    for name in ("alone", "few"):
        if item.get_closest_marker(name) and f"pytest.mark.{name}" not in item.path.read_text():
            raise pytest.UsageError(f"{item.nodeid} has the mark {name} from elsewhere: write pytest.mark.{name} there")


def _has_flavor(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "server" in getattr(item, "fixturenames", ()) or any(one in ALL_FLAVORS for one in parameters.values())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_if_marked(pyfuncitem)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def pytest_unconfigure(config: pytest.Config) -> None:
    if servers := config.stash.get(_SERVERS, None):
        servers.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (servers := session.config.stash.get(_SERVERS, None)) and IS_WORKER:
        cast(Any, session.config).workeroutput["left_out"] = servers.left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A test process has ended: what it left out goes into the summary of the whole run."""
    node.config.stash.setdefault(_LEFT_OUT, {}).update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    servers = config.stash.get(_SERVERS, None)
    left_out = servers.left_out if servers else config.stash.get(_LEFT_OUT, {})
    for name, reason in left_out.items():
        terminalreporter.write_line(f"WARNING: the {name} leg did not run: {reason}", yellow=True)


@pytest.fixture(autouse=True)
def process_is_left_as_it_was() -> Iterator[None]:
    """Fail a test that leaves the process changed: another test would depend on whether that one ran before it."""
    before = _of_process()
    yield
    after = _of_process()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    logging.root.setLevel(before["level of the root logger"])
    logging.disable(before["logging.disable"])
    assert not changed, f"before and after: {changed}"


def _of_process() -> dict[str, Any]:
    ours = logging.getLogger("emsworker")
    return {
        "level of the root logger": logging.root.level,
        "logging.disable": logging.root.manager.disable,
        "the logger emsworker": (ours.level, ours.propagate, ours.disabled, list(ours.handlers)),
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "folder": Path.cwd(),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)},
    }


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[TestServers]:
    """The private servers of this session."""
    servers = request.config.stash[_SERVERS] = TestServers()
    yield servers
    servers.close()


@pytest.fixture(scope="session", params=chosen_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """A running database server; a test that uses it runs once per flavor."""
    return servers.database(request.param)


@pytest.fixture
def database(server: LocalDatabase) -> Iterator[str]:
    """The URL of a new, empty database, dropped afterwards."""
    with fresh_database(server) as url:
        yield url


@pytest.fixture(scope="session")
def redis_server(servers: TestServers) -> Redis:
    """A running Redis."""
    return servers.redis()


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """The URL of an empty Redis."""
    import redis

    redis_server.start()  # a test may have stopped it
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url
