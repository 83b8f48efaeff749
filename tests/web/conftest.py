"""Fixtures of the dashboard's tests: a furnished stream, and clients of the application in this process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from emsworker.local import LocalDatabase
from emsworker.web import Visitor, ems_web
from tests.support.recycling import recycled_database
from tests.support.streams import Stream, open_stream
from tests.web.stage import furnish

Visiting = Callable[..., TestClient]


@pytest.fixture(scope="module")
def stream(server: LocalDatabase) -> Iterator[Stream]:
    """A furnished stream on each server, for all tests of a file: furnishing takes longer than looking."""
    with recycled_database(server) as url, open_stream(url) as made:
        furnish(made)
        yield made


@pytest.fixture
def visit(stream: Stream) -> Iterator[Visiting]:
    """Makes a client of the dashboard at a level; its requests come from the dashboard's own pages."""
    opened = []

    def make(level: Any = "operator", url: str | None = None, **options: Any) -> TestClient:
        options = {"operator_url": stream.url, **options}
        app = ems_web(url or stream.url, access=lambda request: level and Visitor("ann", level), **options)
        client = TestClient(app, "http://localhost", headers={"sec-fetch-site": "same-origin"}, follow_redirects=False)
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.close()
