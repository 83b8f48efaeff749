from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase
from tests.process.stream import Stream, open_stream
from tests.support.servers import FLAVORS, TestServers, chosen_flavors, few_flavors


@pytest.fixture(scope="session", params=few_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """One flavor; `./dev verify` takes each."""
    return servers.database(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of each file runs with the privileges of roles; with EMS_TEST_ROLES=1 all do, which takes longer."""
    mark_first(items, Path(__file__).parent)


def mark_first(items: list[pytest.Item], folder: Path) -> None:
    """Let the first test of each file of a folder run with the privileges of roles."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == folder:
            first = next((name for name in vars(item.module) if name.startswith("test_")), None)
            if item.originalname == first:
                item.add_marker(pytest.mark.as_roles)


@pytest.fixture
def stream(request: pytest.FixtureRequest, server: LocalDatabase, tmp_path: Path) -> Iterator[Stream]:
    """A stream on each flavor."""
    with open_stream(server, tmp_path, as_roles=_as_roles(request)) as stream:
        yield stream


@pytest.fixture
def one_stream(request: pytest.FixtureRequest, servers: TestServers, tmp_path: Path) -> Iterator[Stream]:
    """A stream on one flavor, for what the flavor cannot matter to."""
    if FLAVORS == "others":
        pytest.skip("it has run on the first flavor")
    with open_stream(servers.database(chosen_flavors()[0]), tmp_path, as_roles=_as_roles(request)) as stream:
        yield stream


def _as_roles(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("as_roles") is not None
