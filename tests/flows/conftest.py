"""Streams with the tables of flows, and the app of these tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker import Ems
from emsworker.flows.extension import EXTENSION
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.process.stream import Stream, open_stream
from tests.support.servers import TestServers, few_flavors

SHOP = "tests.flows.shop:app"


@pytest.fixture(scope="session", params=few_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """One flavor."""
    return servers.database(request.param)


@pytest.fixture
def stream(server: LocalDatabase, tmp_path: Path) -> Iterator[Stream]:
    """A stream with the tables of flows."""
    with open_stream(server, tmp_path) as stream:
        with Database(stream.url).session() as session:
            migrate(session, [EXTENSION])
        yield stream


@pytest.fixture
def shop(stream: Stream) -> Iterator[Ems]:
    """The app of these tests, on that stream."""
    from tests.flows.shop import app

    before = app.settings.url
    app.reconfigure(url=stream.url)
    yield app
    app.close()
    app.reconfigure(url=before)
