"""The fixtures of this tier."""

import pytest

from emsworker.local import LocalDatabase
from tests.support.servers import TestServers, few_flavors
from tests.support.streams import stream

__all__ = ["stream"]


@pytest.fixture(scope="session", params=few_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """One flavor; `./dev verify` takes the others."""
    return servers.database(request.param)
