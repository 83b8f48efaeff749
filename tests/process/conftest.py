from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase
from tests.process.stream import Stream, open_stream
from tests.support.servers import TestServers, chosen_flavors


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of each file runs with the privileges of roles; with EMS_TEST_ROLES=1 all do, which takes longer."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent:
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
    with open_stream(servers.database(chosen_flavors()[0]), tmp_path, as_roles=_as_roles(request)) as stream:
        yield stream


def _as_roles(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("as_roles") is not None
