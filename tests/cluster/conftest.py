"""One cluster of each engine, for all tests: starting one takes longer than most of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from emsworker import Ems
from emsworker.local import ServerMissing
from emsworker.store.engine.database import Database
from tests.support.clusters import Cluster, Engine, Galera, GroupReplication, clustered
from tests.support.servers import chosen, must_run
from tests.support.tables import migrate


@dataclass
class On:
    """A cluster, and the stream on it.

    Args:
        cluster: all of whose nodes take part when a test begins.
        url: of all nodes.
    """

    cluster: Cluster
    url: str

    def app(self, url: str = "", **settings: Any) -> Ems:
        """An app on all nodes, or on some."""
        return Ems("test", url=url or self.url, **settings)


def _one(engine: Engine, flavor: str) -> Iterator[Cluster]:
    if flavor not in chosen():
        pytest.skip(f"no {flavor} server")
    try:
        with clustered(engine) as cluster:
            yield cluster
    except ServerMissing as error:
        if must_run("clusters"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def group() -> Iterator[Cluster]:
    """Group Replication, with a single primary."""
    yield from _one("group-replication", "mysql")


@pytest.fixture(scope="session")
def galera() -> Iterator[Cluster]:
    """Galera."""
    yield from _one("galera", "mariadb")


def _prepared(cluster: Cluster) -> On:
    cluster.wait_whole()
    with Database(cluster.url).session() as session:
        migrate(session)
    return On(cluster, cluster.url)


@pytest.fixture
def on_group(group: GroupReplication) -> On:
    """A stream on a replication group."""
    return _prepared(group)


@pytest.fixture
def on_galera(galera: Galera) -> On:
    """A stream on a Galera cluster."""
    return _prepared(galera)
