"""Private servers for the tests: started when first needed, stopped at the end, never one that was there before."""

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

import pymysql
import pytest

from emsworker.local import LocalDatabase, Redis, ServerFailed, ServerMissing
from emsworker.local.engines import Flavor
from emsworker.local.server import Server
from tests.support import hostile
from tests.support.machine import machine_s
from tests.support.prepared import PreparedDatabase

VARIABLE = "EMS_TEST_SERVERS"
FLAVORS = os.environ.get("EMS_TEST_FLAVORS") or "first"
ALL_FLAVORS: tuple[Flavor, ...] = ("mariadb", "mysql")
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
START_TIMEOUT_S = 120


def chosen() -> set[str]:
    """Return the servers named by EMS_TEST_SERVERS; all of them when it is not set."""
    return named() or {*ALL_FLAVORS, "redis"}


def named() -> set[str]:
    """Return the servers that EMS_TEST_SERVERS names itself.

    Raises:
        pytest.UsageError: it names something else.
    """
    names = {name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""}
    if unknown := names - {*ALL_FLAVORS, "redis"}:
        raise pytest.UsageError(f"{VARIABLE} names unknown servers: {', '.join(sorted(unknown))}")
    return names


def chosen_flavors() -> list[Flavor]:
    """Return the database flavors to test on."""
    return [flavor for flavor in ALL_FLAVORS if flavor in chosen()]


def few_flavors() -> list[Flavor]:
    """Return the flavors for tests of what lies above the store: the first, or what EMS_TEST_FLAVORS says.

    Raises:
        pytest.UsageError: it says neither first nor others nor every.
    """
    kept = {"first": slice(1), "others": slice(1, None), "every": slice(None)}
    if FLAVORS not in kept:
        raise pytest.UsageError(f"EMS_TEST_FLAVORS is {FLAVORS!r}: use {', '.join(kept)}")
    return chosen_flavors()[kept[FLAVORS]]


def must_run(name: str) -> bool:
    """Tell whether a server that does not start fails the run instead of leaving out a leg."""
    return bool(os.environ.get("CI")) or name in named()


class TestServers:
    """The private servers of one test session."""

    __test__ = False

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ems-tests-"))
        self.left_out: dict[str, str] = {}
        self._running: dict[str, Server] = {}

    def database(self, flavor: Flavor) -> LocalDatabase:
        """Return the database server of a flavor; skips the test, or ends the run, when it does not start."""
        options = hostile.AT_START if hostile.wanted() else None
        server = self._running.get(flavor) or PreparedDatabase(self.folder / flavor, flavor, options=options)
        assert isinstance(server, LocalDatabase)
        self._start(flavor, server)
        return server

    def redis(self) -> Redis:
        """Return the Redis server; skips the test, or ends the run, when it does not start."""
        server = self._running.get("redis") or Redis(self.folder / "redis")
        assert isinstance(server, Redis)
        self._start("redis", server)
        return server

    def _start(self, name: str, server: Server) -> None:
        if name in self.left_out:
            self._give_up(name)
        # Before the start, so that a server that hangs in it is stopped as well.
        self._running[name] = server
        try:
            server.start(START_TIMEOUT_S)
        except (ServerMissing, ServerFailed) as error:
            self.left_out[name] = str(error)
        if name in self.left_out:
            self._give_up(name)

    def _give_up(self, name: str) -> NoReturn:
        if not must_run(name):
            pytest.skip(f"no {name} server")
        text = f"{name} cannot be started: {self.left_out[name]}"
        if IS_WORKER:  # one of several processes cannot end the run, but it can fail each of its tests, at once
            pytest.fail(text, pytrace=False)
        pytest.exit(text, returncode=pytest.ExitCode.USAGE_ERROR)

    def close(self) -> None:
        """Stop every server, the hard way: nobody needs the data, and a test may have left one in any state."""
        for server in self._running.values():
            server.kill()
        self._running.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


# What the tests themselves look with must not depend on what the server's defaults are.
OWN_SETTINGS = (
    "SET SESSION time_zone = 'SYSTEM', SESSION sql_mode = 'STRICT_TRANS_TABLES', SESSION sql_safe_updates = 0, "
    "SESSION sql_select_limit = 18446744073709551615, SESSION wait_timeout = 28800, SESSION net_read_timeout = 60, "
    "SESSION completion_type = 0, SESSION unique_checks = 1, SESSION lock_wait_timeout = 50, "
    "SESSION innodb_lock_wait_timeout = 50 "
    "/*!80000 , SESSION transaction_isolation = 'REPEATABLE-READ', SESSION transaction_read_only = 0 */ "
    "/*M! , SESSION tx_isolation = 'REPEATABLE-READ', SESSION tx_read_only = 0, SESSION idle_transaction_timeout = 0, "
    "SESSION idle_write_transaction_timeout = 0, SESSION max_statement_time = 0 */"
)


def set_globals(server: LocalDatabase, *statements: str) -> None:
    """Change settings of a whole server."""
    with connect(server.admin_url, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def connect(url: str, settings: str = "", **options: object) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    """Return a new PyMySQL connection.

    Args:
        url: as `Database.url` and the `database` fixture give it.
        settings: of the session, further assignments of a SET statement.
        options: further arguments of `pymysql.connect`.
    """
    parts = urlsplit(url)
    arguments: dict[str, object] = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/"),
        # Said outright: PyMySQL goes by flags that MySQL sends before it has read its own setting.
        "init_command": f"{OWN_SETTINGS}, SESSION autocommit = {int(bool(options.get('autocommit')))}"
        f"{settings and f', {settings}'}",
        "autocommit": False,
        # Without TLS, unless an option asks for it: for each connection PyMySQL would read all that the system trusts,
        # which takes 30 ms, and most tests open several.
        "ssl_disabled": not any(name.startswith("ssl") for name in options),
        **options,
    }
    return pymysql.connect(**arguments)  # type: ignore[call-overload, no-any-return]


@contextmanager
def fresh_database(server: LocalDatabase) -> Iterator[str]:
    """Create an empty database, yield its URL, and drop it.

    Args:
        server: a running server.
    """
    make_hostile(server)
    name = create_database(server)
    try:
        yield url_of(server, name)
    finally:
        server.start(START_TIMEOUT_S)  # the test may have killed it on purpose
        drop_database(server, name)


def make_hostile(server: LocalDatabase) -> None:
    """Change the settings of a server if that is wanted; for each test, for one that has started it has lost them."""
    if hostile.wanted():
        set_globals(server, *hostile.statements(server.flavor).values())


def url_of(server: LocalDatabase, name: str) -> str:
    """Return the URL of one of a server's databases."""
    return re.sub(r"/ems$", f"/{name}", server.url)


def create_database(server: LocalDatabase, name: str = "") -> str:
    """Create an empty database and return its name."""
    name = name or f"ems_{secrets.token_hex(6)}"
    _execute(server.admin_url, f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
    return name


def drop_database(server: LocalDatabase, name: str) -> None:
    """Drop a database, whatever still happens in it."""
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        end_connections(cursor, name)
        cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


def _execute(url: str, statement: str) -> None:
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(statement)


def kill_connection(cursor: pymysql.cursors.Cursor, number: int) -> bool:
    """End a connection, and return whether it was still there: between the look for it and this it may have ended."""
    try:
        cursor.execute("KILL %s", (number,))
    except pymysql.err.OperationalError as error:
        if error.args[0] != pymysql.constants.ER.NO_SUCH_THREAD:
            raise
        return False
    return True


def end_connections(cursor: pymysql.cursors.Cursor, database: str) -> None:
    """End what a test left open, but this connection: an open transaction would make DROP DATABASE wait for it."""
    others = "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()"
    deadline = machine_s() + START_TIMEOUT_S
    while cursor.execute(others, (database,)):
        for (number,) in cursor.fetchall():
            kill_connection(cursor, number)
        assert machine_s() < deadline, f"somebody stays connected to {database}"
        time.sleep(0.01)
