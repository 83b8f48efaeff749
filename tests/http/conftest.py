"""Streams and servers of HTTP for these tests."""

from collections.abc import Iterator

import pytest

from emsworker.local import LocalDatabase
from tests.http.calling import Server, serving
from tests.process.stream import Stream, open_stream
from tests.support.servers import TestServers, few_flavors


@pytest.fixture(scope="session", params=few_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """One flavor."""
    return servers.database(request.param)


@pytest.fixture(scope="module")
def stream(server: LocalDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """A stream for all tests of a file, whose programs have the privileges of their roles alone; its beat runs."""
    with open_stream(server, tmp_path_factory.mktemp("stream"), as_roles=True) as stream:
        stream.beat()
        yield stream


@pytest.fixture(scope="module")
def site(stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for all tests of a file, each of which has a topic of its own."""
    with serving(stream, tmp_path_factory.mktemp("http"), "--auto-create", "--in-hand", "50") as site:
        yield site
