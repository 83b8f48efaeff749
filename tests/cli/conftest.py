from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker import Ems as App
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from tests.support.commands import Ems
from tests.support.recycling import recycled_database
from tests.support.servers import TestServers, few_flavors
from tests.support.tables import migrate


@pytest.fixture
def bare(tmp_path: Path) -> Ems:
    """The command without any stream."""
    return Ems({"EMS_LOCAL_DIR": str(tmp_path / "local")}, tmp_path)


@pytest.fixture(scope="session", params=few_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """One flavor: the store's tests run every statement on both, and a command prints what the store has found."""
    return servers.database(request.param)


@pytest.fixture
def clean(server: LocalDatabase) -> Iterator[str]:
    """The address of a database with empty tables."""
    with recycled_database(server) as url:
        yield url


@pytest.fixture
def stream(clean: str) -> Iterator[Database]:
    """A migrated database."""
    stream = Database(clean)
    stream.call(migrate)
    yield stream
    stream.thread_session().close()


@pytest.fixture
def url(clean: str, stream: Database) -> str:
    """Its address."""
    return clean


@pytest.fixture
def ems(url: str, tmp_path: Path) -> Ems:
    """The command on a migrated stream."""
    return Ems({"EMS_URL": url}, tmp_path)


@pytest.fixture
def app(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An app of the test itself on the same stream, for sending."""
    app = App("test", url=url)
    yield app
    app.close()
    app.stream.database.thread_session().close()
