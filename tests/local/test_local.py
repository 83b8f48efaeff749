"""The private servers: what they promise about data, processes and files."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest

from emsworker.local import (
    LocalDatabase,
    LocalStack,
    Redis,
    ServerFailed,
    ServerMissing,
    binaries,
    engines,
    ports,
    process,
)
from emsworker.local.client import run_statements
from emsworker.local.files import ServerState
from tests.support.servers import TestServers, connect


@pytest.fixture
def own(server: LocalDatabase, tmp_path: Path) -> Iterator[LocalDatabase]:
    """A database server that the test may stop and kill; of the same flavor as the shared one."""
    own = LocalDatabase(tmp_path / "own", server.flavor)
    yield own
    own.kill()


@pytest.fixture
def own_redis(redis_server: Redis, tmp_path: Path) -> Iterator[Redis]:
    own = Redis(tmp_path / "redis")
    yield own
    own.kill()


def _row_count(url: str) -> int:
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM kept")
        return int(cursor.fetchall()[0][0])


def _add_row(url: str) -> None:
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS kept (id INT PRIMARY KEY AUTO_INCREMENT)")
        cursor.execute("INSERT INTO kept VALUES (NULL)")
        connection.commit()


def _run_together(count: int, work: Callable[[], None]) -> list[BaseException]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_start_stop_and_crash_keep_committed_rows(own: LocalDatabase) -> None:
    own.start()
    pid, url = own.pid, own.url
    _add_row(own.url)

    own.start()
    assert own.pid == pid, "starting a running server is a no-op"

    own.kill()
    assert not own.alive
    own.start()
    assert own.url == url, "the address survives a crash"
    _add_row(own.url)

    own.stop()
    assert not own.alive
    own.stop()
    own.start()
    assert _row_count(own.url) == 2


def test_a_crash_caused_by_somebody_else_is_survived_at_once(own: LocalDatabase) -> None:
    own.start()
    _add_row(own.url)
    assert own.pid
    os.kill(own.pid, signal.SIGKILL)
    own.start()
    assert _row_count(own.url) == 1


def test_two_starts_at_once_start_one_server(own: LocalDatabase, server: LocalDatabase) -> None:
    errors = _run_together(2, LocalDatabase(own.folder, server.flavor).start)
    assert errors == []
    assert own.alive
    _add_row(own.url)
    starts = (own.folder / "error.log").read_text("utf-8", "replace").count("ready for connections")
    assert starts == 1


def test_another_process_can_use_and_stop_it(own: LocalDatabase) -> None:
    own.start()
    program = (
        "import sys; from emsworker.local import LocalDatabase; d = LocalDatabase(sys.argv[1]); "
        "pid = d.pid; d.start(); assert d.pid == pid; d.stop(); print(d.flavor, d.alive)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(own.folder)], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.split() == [own.flavor, "False"]
    assert not own.alive


def test_durability_and_limits_are_set(server: LocalDatabase) -> None:
    expected = {
        "innodb_flush_log_at_trx_commit": 1,
        "max_allowed_packet": 64 * 1024 * 1024,
        "character_set_server": "utf8mb4",
        "performance_schema": 0,
        "log_bin": 0,
        "bind_address": "127.0.0.1",
    }
    columns = ", ".join(f"@@{name}" for name in expected)
    with connect(server.url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns}")
        assert dict(zip(expected, cursor.fetchall()[0], strict=True)) == expected


def test_only_our_accounts_exist_and_none_without_a_password(server: LocalDatabase) -> None:
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT user, host FROM mysql.user WHERE user NOT LIKE 'mysql.%%' AND user NOT LIKE 'mariadb.%%'"
        )
        accounts = set(cursor.fetchall())
    assert accounts == {(user, host) for user in ("ems", "root") for host in ("localhost", "127.0.0.1")}
    for user in ("ems", "root", ""):
        with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
            connect(f"mysql://{user}:@127.0.0.1:{server.port}/")


def test_the_user_may_create_databases_of_its_own_only(server: LocalDatabase) -> None:
    with connect(server.url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE ems_made_by_ems")
        cursor.execute("DROP DATABASE ems_made_by_ems")
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            cursor.execute("CREATE DATABASE other")


def test_options_win_and_turn_the_binary_log_on(server: LocalDatabase, tmp_path: Path) -> None:
    other = LocalDatabase(tmp_path / "o", server.flavor, options={"log_bin": "binlog", "max_connections": "77"})
    try:
        other.start()
        with connect(other.url) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@log_bin, @@sync_binlog, @@binlog_format, @@max_connections")
            assert cursor.fetchall()[0] == (1, 1, "ROW", 77)
    finally:
        other.kill()


def test_a_folder_may_have_any_name(server: LocalDatabase, tmp_path: Path) -> None:
    """The script that sets MariaDB up does not quote its arguments."""
    odd = LocalDatabase(tmp_path / 'it\'s "mine" & $HOME ü', server.flavor)
    try:
        odd.start()
        _add_row(odd.url)
        assert [row[0] for result in run_statements(odd, "SELECT 1") for row in result.rows] == [1]
    finally:
        odd.kill()


def test_our_own_connections_read_no_certificates(server: LocalDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of its connections PyMySQL reads all that the system trusts, which takes longer than most tests."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection on this machine has read certificates")

    monkeypatch.setattr("ssl.create_default_context", refuse)
    server.start()
    assert [row[0] for result in run_statements(server, "SELECT 1") for row in result.rows] == [1]
    with connect(server.url) as connection, connection.cursor() as cursor:
        assert cursor.execute("SELECT 1") == 1


def test_a_deep_folder_gets_a_short_socket(own_redis: Redis, tmp_path: Path) -> None:
    deep = Redis(tmp_path / ("x" * 100))
    try:
        deep.start()
        folder = Path(json.loads((deep.folder / "state.json").read_text())["socket"]).parent
        assert deep.alive
        assert folder != deep.folder
        deep.stop()
        assert not folder.exists()
    finally:
        deep.kill()


def test_a_taken_port_is_avoided(own_redis: Redis) -> None:
    own_redis.start()
    old = own_redis.port
    own_redis.stop()
    with socket.create_server(("127.0.0.1", old)):
        own_redis.start()
        assert own_redis.port != old


def test_a_free_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fives = (range(first, first + 5) for first in range(18_000, 20_000, 5))
    few = next(five for five in fives if all(map(ports.is_free, five)))
    monkeypatch.setattr(ports, "_PORTS", few)
    given = {ports.free_port() for _ in range(3)}
    assert len(given) == 3
    elsewhere = (
        f"from emsworker.local import ports\nports._PORTS = {few!r}\nprint(ports.free_port(), ports.free_port())\n"
    )
    others = subprocess.run([sys.executable, "-c", elsewhere], capture_output=True, text=True, check=True, timeout=60)
    assert given.union(map(int, others.stdout.split())) == set(few)
    with socket.create_server(("127.0.0.1", min(given))), pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", min(given)))


def test_a_taken_port_that_was_asked_for_is_an_error(own_redis: Redis) -> None:
    with socket.create_server(("127.0.0.1", ports.free_port())) as taken:
        fixed = Redis(own_redis.folder, port=taken.getsockname()[1])
        with pytest.raises(ServerFailed, match="ended while it started"):
            fixed.start()


def test_redis_keeps_its_data_over_a_clean_stop(own_redis: Redis) -> None:
    import redis

    own_redis.start()
    with redis.Redis.from_url(own_redis.url) as client:
        client.set("kept", "1")
        assert client.config_get("appendonly") == {"appendonly": "yes"}
    own_redis.stop()
    own_redis.start()
    with redis.Redis.from_url(own_redis.url) as client:
        assert client.get("kept") == b"1"


def test_redis_wants_a_password(redis_url: str, redis_server: Redis) -> None:
    import redis

    with redis.Redis(port=redis_server.port) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_state_file_is_private(own_redis: Redis) -> None:
    own_redis.start()
    for name in ("state.json", "redis.conf"):
        assert stat.S_IMODE((own_redis.folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(own_redis.folder.stat().st_mode) == 0o700


def test_a_foreign_process_is_never_signalled(tmp_path: Path) -> None:
    ours = Redis(tmp_path / "redis")
    ours.folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as foreign:
        ServerState("redis", 1, str(ours.folder / "s"), "p", "a", pid=foreign.pid).save(ours.folder / "state.json")
        (ours.folder / "server.pid").write_text(str(foreign.pid))
        assert not ours.alive
        ours.stop()
        ours.kill()
        assert foreign.poll() is None
        foreign.communicate(b"\n")
    assert foreign.returncode == 0


def test_a_server_is_known_from_its_first_moment(tmp_path: Path) -> None:
    """Right after exec, on a busy machine, the kernel shows an empty command line for a moment."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        unknown = 0
        for number in range(150):
            argument = f"600.{number}"
            pid = process.spawn(["sleep", argument], tmp_path, tmp_path / "log")
            unknown += not process.runs_with(pid, argument)
            process.send(pid, signal.SIGKILL)
            assert process.wait_gone(pid, 10)
        assert unknown == 0
    finally:
        for other in busy:
            other.kill()
            other.wait()


def test_a_server_of_another_folder_is_never_signalled(redis_server: Redis, tmp_path: Path) -> None:
    impostor = Redis(tmp_path / "copy")
    impostor.folder.mkdir()
    (impostor.folder / "state.json").write_bytes((redis_server.folder / "state.json").read_bytes())
    impostor.kill()
    assert redis_server.alive


def test_a_missing_program_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "search_path", lambda: str(tmp_path))
    monkeypatch.delenv(engines.MYSQL_ROOT_VARIABLE, raising=False)
    for flavor, package in (("mariadb", "mariadb-server"), ("mysql", "mysql-server"), (None, "mariadb-server")):
        with pytest.raises(ServerMissing, match=rf"apt-get install.*{package}.*\n?.*brew install"):
            LocalDatabase(tmp_path / "d", flavor).start()  # type: ignore[arg-type]
    with pytest.raises(ServerMissing, match="apt-get install redis-server"):
        Redis(tmp_path / "r").start()


def test_setting_up_uses_no_temporary_folder_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(_: object, data: Path) -> list[str]:
        return ["/bin/sh", "-c", f'mkdir {data} && echo "$TMPDIR" > {tmp_path}/told && false']

    monkeypatch.setattr(engines.MariaDB, "initialize_command", tell)
    with pytest.raises(ServerFailed, match="cannot be set up"):
        LocalDatabase(tmp_path / "d", "mariadb").start()
    assert Path((tmp_path / "told").read_text().strip()) == tmp_path / "d" / "tmp"


def test_a_wrong_mysql_root_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engines.MYSQL_ROOT_VARIABLE, str(tmp_path))
    with pytest.raises(ServerMissing, match=str(tmp_path)):
        LocalDatabase(tmp_path / "d", "mysql").start()


def test_an_unused_folder_has_no_url_and_nothing_to_stop(tmp_path: Path) -> None:
    unused = Redis(tmp_path / "never")
    unused.stop()
    assert not unused.alive
    with pytest.raises(ServerFailed, match="never been started"):
        _ = unused.url


def test_a_folder_of_the_other_flavor_is_refused(own_redis: Redis, tmp_path: Path) -> None:
    ServerState("mysql", 1, "s", "p", "a").save(tmp_path / "state.json")
    with pytest.raises(ServerFailed, match="made with mysql"):
        LocalDatabase(tmp_path, "mariadb").start()


def test_the_stack_runs_both_and_hides_passwords(servers: TestServers, tmp_path: Path) -> None:
    servers.redis()
    stack = LocalStack(tmp_path / "stack")
    try:
        stack.start()
        status = json.dumps(stack.status())
        assert status.count('"running": true') == 2
        assert stack.url.startswith("mysql://ems:")
        assert stack.redis_url
        for url in (stack.url, stack.redis_url):
            assert url.split(":")[2].split("@")[0] not in status
        stack.stop()
        assert LocalStack(stack.folder).redis_url is None
        assert json.dumps(stack.status()).count('"running": false') == 2
    finally:
        stack.redis.kill()
        stack.database.kill()


def test_the_stack_runs_without_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: LocalDatabase) -> None:
    stack = LocalStack(tmp_path / "stack")
    stack.database = LocalDatabase(tmp_path / "stack" / "database", server.flavor)

    def missing(redis: Redis) -> str:
        raise ServerMissing("no Redis server found")

    monkeypatch.setattr(Redis, "version", property(missing))
    try:
        stack.start()
        assert stack.database.alive
        assert stack.redis_url is None
        assert stack.status()["redis"] == {"running": False, "missing": "no Redis server found"}
    finally:
        stack.database.kill()
