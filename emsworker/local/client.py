"""SQL on a private database: execution of statements, and the command line of an interactive client."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.local.binaries import find_programs
from emsworker.local.database import LocalDatabase
from emsworker.local.engines import Flavor
from emsworker.local.errors import ServerMissing, StatementFailed
from emsworker.local.files import write_private

# Each server's own client first: the other may not support the authentication of its users.
_PROGRAMS: dict[Flavor, tuple[str, ...]] = {"mariadb": ("mariadb", "mysql"), "mysql": ("mysql", "mariadb")}
_MISSING = (
    "no mariadb or mysql client found. Install one: Debian/Ubuntu `apt-get install mariadb-client`, Fedora "
    "`dnf install mariadb`, macOS `brew install mariadb`; or give statements with -e or on standard input, which "
    "needs none"
)


@dataclass(frozen=True)
class ClientResult:
    """Rows that one statement returned.

    Attributes:
        columns: the names of the columns.
        rows: the rows, with a value for each column.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def client_command(database: LocalDatabase) -> list[str]:
    """Return the command line of an interactive client, as the user `ems` in the database `ems`.

    The password is in a file that only its owner can read, and never on the command line.

    Raises:
        ServerMissing: no client is installed; the message says what to install.
    """
    program = next(find_programs(_PROGRAMS[database.flavor]), None)
    if program is None:
        raise ServerMissing(_MISSING)
    options = database.folder / "client.cnf"
    write_private(options, f'[client]\nsocket="{_escaped(database.socket)}"\nuser=ems\npassword={database.password}\n')
    return [str(program), f"--defaults-file={options}", "ems"]


def run_statements(database: LocalDatabase, text: str) -> Iterator[ClientResult]:
    """Run statements, separated by semicolons, and yield the results of those that return rows.

    Each statement is committed by itself. After an error the rest is not run.

    Raises:
        StatementFailed: a statement failed.
    """
    from pymysql import MySQLError, connect
    from pymysql.constants import CLIENT

    if not text.strip():
        return
    try:
        connection = connect(
            unix_socket=database.socket, user="ems", password=database.password, database="ems", charset="utf8mb4",
            autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS,
            ssl_disabled=True,  # PyMySQL would first read all certificates that the system trusts
        )  # fmt: skip
        with connection, connection.cursor() as cursor:
            cursor.execute(text)
            more: bool | None = True
            while more:
                if cursor.description is not None:
                    yield ClientResult([column[0] for column in cursor.description], cursor.fetchall())
                more = cursor.nextset()
    except MySQLError as error:
        raise StatementFailed(" ".join(map(str, error.args))) from error


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"')
