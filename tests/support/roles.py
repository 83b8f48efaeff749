"""Users with the privileges of a role, as ``ems grants`` gives them."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence

from emsworker.local import Database as Server
from emsworker.store.grants import statements
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
    with connect(server.admin_url, autocommit=True) as root, root.cursor() as cursor:

        def make(role: str, allow: Sequence[str] = (), also: Sequence[str] = ()) -> str:
            """``also``: more privileges, as text before the TO of a GRANT."""
            name = f"{role}_{os.urandom(4).hex()}"
            for host in _HOSTS:
                cursor.execute(f"CREATE USER '{name}'@'{host}' IDENTIFIED BY 'pw'")
                made.append(f"'{name}'@'{host}'")
                for statement in statements(role, database, f"{name}@{host}", allow):
                    cursor.execute(statement)
                for text in also:
                    cursor.execute(f"GRANT {text} TO '{name}'@'{host}'")
            return re.sub(r"//.*@", f"//{name}:pw@", url)

        try:
            yield make
        finally:
            for account in made:
                cursor.execute(f"DROP USER {account}")
