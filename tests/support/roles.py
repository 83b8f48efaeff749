"""Users with the privileges of a role, as ``ems grants`` gives them."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence

from emsworker.core.extension import Extension, extensions
from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.grants import Grants
from emsworker.store.engine.tables import create_statements
from tests.support.servers import connect

# As both, because a server may know its own host by either name.
_HOSTS = ("localhost", "127.0.0.1")
MakeUser = Callable[..., str]


@contextlib.contextmanager
def users(server: Server, url: str) -> Iterator[MakeUser]:
    """Makes users: ``make(role, allow)`` returns the address of the stream as such a user's; dropped at the end.

    Args:
        url: of the stream, as an administrator's.
    """
    made: list[str] = []
    database = url.rsplit("/", 1)[1]

    def make(role: str, allow: Sequence[str] = (), also: Sequence[str] = ()) -> str:
        """``also``: more privileges, as text before the TO of a GRANT."""
        name = f"{role}_{os.urandom(4).hex()}"
        for host in _HOSTS:
            made.append(f"'{name}'@'{host}'")
            more = [f"GRANT {text} TO {made[-1]}" for text in also]
            create = f"CREATE USER {made[-1]} IDENTIFIED BY 'pw'"
            _run(
                server,
                [create, *Grants(_used(server, database)).statements(role, database, f"{name}@{host}", allow), *more],
            )
        return re.sub(r"//.*@", f"//{name}:pw@", url)

    try:
        yield make
    finally:
        _run(server, [f"DROP USER {account}" for account in made])


def _used(server: Server, database: str) -> list[Extension]:
    """The extensions whose tables, if they have any, are in the database: no right is granted on a missing one."""
    with connect(server.admin_url) as root, root.cursor() as cursor:
        cursor.execute(f"SHOW TABLES FROM `{database}`")
        there = {row[0] for row in cursor.fetchall()}
    return [one for one in extensions().values() if set(create_statements(one.package)) <= there]


def _run(server: Server, texts: Sequence[str]) -> None:
    """On a connection of its own: a test may have killed the server in between."""
    with connect(server.admin_url, autocommit=True) as root, root.cursor() as cursor:
        for text in texts:
            cursor.execute(text)
