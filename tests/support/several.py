"""Several streams as one app: databases of one server stand for servers where none of them has to die."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from tests.support.servers import fresh_database
from tests.support.tables import migrate


@dataclass(frozen=True)
class Several:
    """A main server and others: their addresses by name."""

    urls: dict[str, str]

    @property
    def url(self) -> str:
        """The main server's address."""
        return self.urls["main"]

    def setting(self, **patterns: str) -> str:
        """Return the setting `servers`, with the patterns of each server."""
        others = {name: url for name, url in self.urls.items() if name != "main"}
        return "\n".join(f"{name}={url} {patterns.get(name, '')}" for name, url in others.items())

    def database(self, name: str) -> Database:
        """Return the database of a server."""
        return Database(self.urls[name])


def migrated(url: str) -> str:
    """Create the tables in a database, and return its address."""
    database = Database(url)
    database.call(migrate)
    database.thread_session().close()
    return url


@contextmanager
def several_databases(server: LocalDatabase, *names: str) -> Iterator[Several]:
    """Yield as many streams as names, all on one server."""
    with ExitStack() as stack:
        yield Several({name: migrated(stack.enter_context(fresh_database(server))) for name in names})
