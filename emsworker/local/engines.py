"""MariaDB and MySQL: their location, their set-up, and the differences of their options."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from emsworker.extending.processes import lazy
from emsworker.local.binaries import find_programs, version_line, version_number
from emsworker.local.errors import ServerFailed, ServerMissing

Flavor = Literal["mariadb", "mysql"]

MYSQL_ROOT_VARIABLE = "EMS_MYSQL_ROOT"
MARIADB_ROOT_VARIABLE = "EMS_MARIADB_ROOT"

_MARIADB_MISSING = (
    "no MariaDB server found. Install one: Debian/Ubuntu `apt-get install mariadb-server`, "
    "Fedora `dnf install mariadb-server`, macOS `brew install mariadb`"
)
_MYSQL_MISSING = (
    "no MySQL server found. Install one: Debian (unstable) `apt-get install mysql-server-core`, "
    "Ubuntu `apt-get install mysql-server-core-8.0` or later, Fedora `dnf install mysql-server`, "
    f"macOS `brew install mysql`; or set {MYSQL_ROOT_VARIABLE} to a folder that MySQL was unpacked in"
)
# What mariadb-install-db does, for a server that runs by a loader of its own, which that script knows nothing of.
_BOOTSTRAP = r"""
mkdir -p "$1/mysql"
{
  printf '%s\n' 'USE mysql;' 'SET @auth_root_socket = NULL;'
  cd "$2"
  cat mariadb_system_tables.sql mariadb_performance_tables.sql mariadb_system_tables_data.sql fill_help_tables.sql \
    maria_add_gis_sp_bootstrap.sql
} | {
  shift 2
  exec "$@"
}
"""


class Engine(ABC):
    """Installed database server.

    Args:
        command: the program, with the arguments that must come before any option.
        version: its version.
        install_options: options with the locations of the program's own files.
    """

    flavor: ClassVar[Flavor]

    def __init__(self, command: Sequence[str], version: str, install_options: Sequence[str] = ()) -> None:
        self.version = version
        self._command = tuple(command)
        self._install_options = tuple(install_options)

    @classmethod
    @abstractmethod
    def find(cls) -> Self:
        """Return the installed server.

        Raises:
            ServerMissing: it is not installed; the message says what to install.
        """

    @abstractmethod
    def initialize_command(self, data: Path) -> list[str]:
        """Return the command that fills a new data folder.

        Args:
            data: the folder, which does not exist yet.
        """

    @property
    @abstractmethod
    def own_options(self) -> Sequence[str]:
        """Server options that only this engine has."""

    @property
    @abstractmethod
    def clean_up_statements(self) -> Sequence[str]:
        """SQL that removes the unneeded accounts of a new data folder."""

    @lazy
    def base_command(self) -> list[str]:
        """Command line of the program with its fixed options; no configuration file of the system is read."""
        # Servers refuse to run as root without this option.
        user = ["--user=root"] if os.geteuid() == 0 else []
        return [*self._command, "--no-defaults", *self._install_options, *user]


class MariaDB(Engine):
    """MariaDB: as distributions install it, or unpacked in a folder."""

    flavor = "mariadb"
    _messages: Path | None = None

    @classmethod
    def find(cls) -> Self:
        """Return the MariaDB in the folder that EMS_MARIADB_ROOT names, or else the installed one.

        Raises:
            ServerMissing: it is not installed; the message says what to install.
            ServerFailed: the one in EMS_MARIADB_ROOT cannot be run.
        """
        if root := os.environ.get(MARIADB_ROOT_VARIABLE):
            return cls.in_root(Path(root).resolve())
        for program in find_programs(("mariadbd", "mysqld")):
            if "MariaDB" in (line := version_line([str(program)])):
                return cls([str(program)], version_number(line))
        raise ServerMissing(_MARIADB_MISSING)

    @classmethod
    def in_root(cls, root: Path) -> Self:
        """Return the MariaDB that was unpacked in a folder, with the libraries that it needs; see MySQL's.

        Args:
            root: a folder like `/` (with `usr/sbin/mariadbd`).

        Raises:
            ServerMissing: there is no mariadbd in it.
            ServerFailed: it cannot be run.
        """
        program = root / "usr/sbin/mariadbd"
        if not program.exists():
            raise ServerMissing(f"no usr/sbin/mariadbd in {root} ({MARIADB_ROOT_VARIABLE}); {_MARIADB_MISSING}")
        command, messages = [*loader_of(root), str(program)], root / "usr/share/mariadb"
        options = [
            f"--basedir={root / 'usr'}",
            f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
            f"--lc-messages-dir={messages}",
            f"--character-sets-dir={messages / 'charsets'}",
        ]
        engine = cls(command, version_number(version_line(command)), options)
        engine._messages = messages
        return engine

    def initialize_command(self, data: Path) -> list[str]:
        """Return the command that fills a new data folder.

        Args:
            data: the folder, which does not exist yet.

        Raises:
            ServerMissing: the set-up script is not installed.
        """
        if self._messages is not None:
            server = [*self.base_command, "--bootstrap", f"--datadir={data}", "--skip-log-bin"]
            return ["/bin/sh", "-euc", _BOOTSTRAP, "bootstrap", str(data), str(self._messages), *server]
        script = next(find_programs(("mariadb-install-db", "mysql_install_db")), None)
        if script is None:
            raise ServerMissing(f"mariadb-install-db is missing: {_MARIADB_MISSING}")
        options = ["--skip-test-db", "--skip-name-resolve", "--auth-root-authentication-method=normal"]
        user = ["--user=root"] if os.geteuid() == 0 else []
        return [str(script), "--no-defaults", f"--datadir={data}", *options, *user]

    @property
    def own_options(self) -> Sequence[str]:
        """No options."""
        return ()

    @property
    def clean_up_statements(self) -> Sequence[str]:
        """Remove anonymous accounts, and root's for other hosts."""
        return (
            "DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> 'localhost')",
            "FLUSH PRIVILEGES",
        )


class MySQL(Engine):
    """Oracle MySQL 8 or 9: installed on this machine, or unpacked in a folder."""

    flavor = "mysql"

    @classmethod
    def find(cls) -> Self:
        """Return the MySQL in the folder that EMS_MYSQL_ROOT names, or else the installed one.

        Raises:
            ServerMissing: it is not installed; the message says what to install.
            ServerFailed: the one in EMS_MYSQL_ROOT cannot be run.
        """
        if root := os.environ.get(MYSQL_ROOT_VARIABLE):
            return cls.in_root(Path(root).resolve())
        for program in find_programs(("mysqld",)):
            if "MariaDB" not in (line := version_line([str(program)])):
                return cls([str(program)], version_number(line))
        raise ServerMissing(_MYSQL_MISSING)

    @classmethod
    def in_root(cls, root: Path) -> Self:
        """Return the MySQL that was unpacked in a folder, with the libraries that it needs beside it.

        Such a tree may need a newer C library than this machine has. Its own loader runs it with its own
        libraries, without chroot and without privileges.

        Args:
            root: a folder like `/` (with `usr/sbin/mysqld`) or like a MySQL archive (with `bin/mysqld`).

        Raises:
            ServerMissing: there is no mysqld in it.
            ServerFailed: it cannot be run.
        """
        program = next(
            (path for name in ("usr/sbin", "bin", "sbin") if (path := root / name / "mysqld").exists()), None
        )
        if program is None:
            raise ServerMissing(f"no usr/sbin/mysqld in {root} ({MYSQL_ROOT_VARIABLE}); {_MYSQL_MISSING}")
        command = [*loader_of(root), str(program)]
        base = program.parent.parent
        options = [f"--basedir={base}", f"--plugin-dir={base / 'lib/mysql/plugin'}"]
        if (messages := base / "share/mysql").is_dir():
            options += [f"--lc-messages-dir={messages}", f"--character-sets-dir={messages / 'charsets'}"]
        return cls(command, version_number(version_line(command)), options)

    def initialize_command(self, data: Path) -> list[str]:
        """Return the command that fills a new data folder.

        Args:
            data: the folder, which does not exist yet.
        """
        return [*self.base_command, "--initialize-insecure", *self.own_options, f"--datadir={data}"]

    @property
    def own_options(self) -> Sequence[str]:
        """No X protocol port, and no folder for SELECT INTO OUTFILE (the built-in one may not exist)."""
        return ("--mysqlx=OFF", "--secure-file-priv=NULL")

    @property
    def clean_up_statements(self) -> Sequence[str]:
        """No statements: a new data folder has only root@localhost."""
        return ()


def loader_of(root: Path, *folders: str) -> list[str]:
    """Return the dynamic loader of an unpacked tree with its arguments; empty if the tree has none.

    Args:
        root: a folder like `/`.
        folders: of further libraries, as seen from there.
    """
    loader = next(
        (path for folder in ("usr/lib64", "usr/lib") for path in root.glob(f"{folder}/ld-linux-*.so.*")), None
    )
    if loader is None:
        return []
    libraries = [folder for folder in root.glob("usr/lib/*-linux-gnu*") if folder.is_dir()]
    libraries += [root / folder for folder in folders]
    return [str(loader), "--library-path", os.pathsep.join(map(str, libraries))]


def find_engine(flavor: Flavor | None) -> Engine:
    """Return the installed server of a flavor.

    Args:
        flavor: None takes MariaDB, or MySQL if there is no MariaDB.

    Raises:
        ServerMissing: it is not installed; the message says what to install.
        ServerFailed: the flavor is unknown.
    """
    if flavor is None:
        return _find_any()
    engines: dict[str, type[Engine]] = {"mariadb": MariaDB, "mysql": MySQL}
    if flavor not in engines:
        raise ServerFailed(f"unknown database flavor {flavor!r}: use mariadb or mysql")
    return engines[flavor].find()


def _find_any() -> Engine:
    try:
        return MariaDB.find()
    except ServerMissing as no_mariadb:
        try:
            return MySQL.find()
        except ServerMissing as no_mysql:
            raise ServerMissing(f"{no_mariadb}\n{no_mysql}") from no_mysql
