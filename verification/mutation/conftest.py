"""The fixtures of this tier: on the first flavor, for what finds a fault on one finds it on the other."""

from collections.abc import Iterator

import pytest

from tests.support.recycling import prepare_stream
from tests.support.servers import TestServers, chosen_flavors, fresh_database
from tests.support.streams import Stream, open_stream


@pytest.fixture
def stream(servers: TestServers) -> Iterator[Stream]:
    """A migrated database."""
    with fresh_database(servers.database(chosen_flavors()[0])) as url:
        prepare_stream(url)
        with open_stream(url) as made:
            yield made
