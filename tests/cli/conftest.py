from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker import Ems as App
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.support.commands import Ems


@pytest.fixture
def bare(tmp_path: Path) -> Ems:
    """The command without any stream."""
    return Ems({"EMS_LOCAL_DIR": str(tmp_path / "local")}, tmp_path)


@pytest.fixture
def stream(database: str) -> Iterator[Database]:
    """A migrated database."""
    stream = Database(database)
    stream.call(migrate)
    yield stream
    stream.thread_session().close()


@pytest.fixture
def url(database: str, stream: Database) -> str:
    """Its address."""
    return database


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
