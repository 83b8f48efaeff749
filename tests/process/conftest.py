from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker.local import Database
from tests.process.stream import Stream, open_stream
from tests.support.servers import TestServers, chosen_flavors


@pytest.fixture
def stream(server: Database, tmp_path: Path) -> Iterator[Stream]:
    """A stream on each flavor."""
    with open_stream(server, tmp_path) as stream:
        yield stream


@pytest.fixture
def one_stream(servers: TestServers, tmp_path: Path) -> Iterator[Stream]:
    """A stream on one flavor, for what the flavor cannot matter to."""
    with open_stream(servers.database(chosen_flavors()[0]), tmp_path) as stream:
        yield stream
