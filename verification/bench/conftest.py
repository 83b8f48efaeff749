"""The benchmark's own private servers, once for all of its tests."""

from collections.abc import Iterator

import pytest

from bench.stage import Servers
from emsworker.local import ServerFailed, ServerMissing
from tests.support.servers import chosen_flavors, must_run


@pytest.fixture(scope="package")
def bench_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A database of the first flavor that is tested, and Redis."""
    flavor = chosen_flavors()[0]
    servers = Servers(tmp_path_factory.mktemp("bench"), flavor)
    try:
        servers.__enter__()
    except (ServerMissing, ServerFailed) as error:
        if must_run(flavor):
            raise
        pytest.skip(str(error))
    yield servers
    servers.__exit__()
