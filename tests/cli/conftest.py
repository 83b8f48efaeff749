from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from emsworker import Ems as App
from emsworker.core.ids import new_client_id
from emsworker.local import LocalDatabase
from emsworker.store.cluster import clients
from emsworker.store.engine.database import Database
from tests.cli.test_commands import rows
from tests.support import rows as writing
from tests.support.commands import Ems
from tests.support.recycling import recycled_database
from tests.support.servers import TestServers, few_flavors


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
    """The same as an object."""
    stream = Database(clean)
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


@pytest.fixture
def busy(ems: Ems, app: App, stream: Database, url: str) -> str:
    """A stream with a running message, one that waits for a retry, and a dead one; returns the id of a client."""
    app.send_many("orders", range(20))
    ems.ok("groups", "create", "orders", "mail")
    ems.ok("groups", "create", "orders", "stats")
    client = new_client_id("10.0.0.5")
    stream.call(lambda s: clients.register(s, [client], "p", "host", 300))
    ((mail,),) = rows(url, "SELECT id FROM ems_group WHERE name = 'mail'")
    writing.add_claim(partial(rows, url), mail, 1, 5, client_id=client)
    writing.add_retry(partial(rows, url), mail, 6)
    writing.add_dead(partial(rows, url), mail, 7, task="shop.add", error_type="ValueError", reason="out of attempts")
    writing.set_cursor(partial(rows, url), 8, mail)
    return client
