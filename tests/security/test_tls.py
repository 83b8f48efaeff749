"""TLS to MySQL and Redis with real certificates: who is not who he should be is refused, in one line."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from emsworker import Ems as App
from emsworker.admin.check import check
from emsworker.core.errors import AccessDenied, ConfigError, StoreUnavailable, TlsError
from emsworker.core.url import DatabaseUrl
from emsworker.local import LocalDatabase as Server
from emsworker.local import Redis
from emsworker.publish.redis_connection import connect as connect_redis
from emsworker.store.engine.database import Database
from tests.process.stream import open_stream
from tests.security.certificates import Authority
from tests.support.commands import Ems
from tests.support.prepared import PreparedDatabase
from tests.support.proxy import proxied
from tests.support.roles import users
from tests.support.servers import TestServers, connect

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")


class _Files:
    def __init__(self, folder: Path) -> None:
        self.ca, self.other = Authority.make(folder, "ca"), Authority.make(folder, "other")
        self.cert, self.key = self.ca.sign("server", "IP:127.0.0.1")
        self.client_cert, self.client_key = self.ca.sign("client", "DNS:client")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> _Files:
    return _Files(tmp_path_factory.mktemp("certificates"))


_CERTIFICATES = ("ssl_ca", "ssl_cert", "ssl_key")


def _show(server: Server, values: Sequence[object]) -> list[object]:
    """Have a running server show other certificates; returns those that it had."""
    with connect(server.admin_url, autocommit=True) as root, root.cursor() as cursor:
        cursor.execute(f"SELECT {','.join(f'@@{name}' for name in _CERTIFICATES)}")
        before = list(cursor.fetchone() or ())
        for name, value in zip(_CERTIFICATES, values, strict=True):
            cursor.execute(f"SET GLOBAL {name} = %s", (str(value),))
        cursor.execute("ALTER INSTANCE RELOAD TLS")
    return before


@contextmanager
def _mysql_with(server: Server, files: _Files) -> Iterator[Server]:
    """The shared server with other certificates for a while."""
    before = _show(server, (files.ca.certificate, files.cert, files.key))
    try:
        yield server
    finally:
        _show(server, before)


@pytest.fixture(scope="session")
def tls_server(server: Server, servers: TestServers, files: _Files) -> Iterator[Server]:
    """A server of each flavor with a certificate for 127.0.0.1."""
    if server.flavor == "mysql":
        with _mysql_with(server, files) as same:
            yield same
        return
    options = {"ssl-ca": str(files.ca.certificate), "ssl-cert": str(files.cert), "ssl-key": str(files.key)}
    own = PreparedDatabase(servers.folder / "tls", server.flavor, options=options)
    try:
        own.start(120)
        yield own
    finally:
        own.kill()


@pytest.fixture
def url(tls_server: Server) -> str:
    """Its address."""
    return tls_server.url


def _cipher(url: str) -> str:
    database = Database(url, connect_timeout_s=5, call_timeout_s=0.5)
    try:
        return str(database.call(lambda session: session.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'"))[0][1])
    finally:
        database.thread_session().close()


def test_it_connects_to_who_has_the_right_certificate(url: str, files: _Files) -> None:
    ca = files.ca.certificate
    for options in (
        f"ssl_ca={ca}",
        f"ssl_ca={ca}&ssl_mode=verify_identity",
        f"ssl_ca={ca}&ssl_cert={files.client_cert}&ssl_key={files.client_key}",
        "ssl_mode=required",
        "ssl_mode=preferred",
    ):
        assert _cipher(f"{url}?{options}"), options
    assert _cipher(f"{url}?ssl_mode=disabled") == ""
    assert _cipher(f"{url.replace('127.0.0.1', 'localhost')}?ssl_ca={ca}&ssl_mode=verify_ca")


def test_connections_without_a_demand_share_one_context_and_are_encrypted(url: str) -> None:
    with Database(url).session() as one, Database(url).session() as another:
        contexts = []
        for session in (one, another):
            with session.lend() as connection:
                contexts.append(connection.ctx)  # type: ignore[attr-defined]
            assert session.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1], "encrypted all the same"
    assert contexts[0] is contexts[1]
    assert contexts[0].cert_store_stats()["x509_ca"] == 0, "no certificate of the system is kept for each thread"


def test_it_refuses_everybody_else(url: str, files: _Files) -> None:
    ca, other = files.ca.certificate, files.other.certificate
    with pytest.raises(TlsError, match=r"127\.0\.0\.1 is not trusted: (unable to get local issuer|self.signed)"):
        _cipher(f"{url}?ssl_ca={other}")
    with pytest.raises(TlsError, match="not trusted"):
        _cipher(f"{url}?ssl_mode=verify_identity")  # by the system's CAs
    for host in ("127.0.0.1", "localhost"):  # for any host, but not of any authority
        with pytest.raises(TlsError, match="not trusted"):
            _cipher(f"{url.replace('127.0.0.1', host)}?ssl_ca={other}&ssl_mode=verify_ca")
    with pytest.raises(TlsError, match="not trusted"):
        _cipher(f"{url}?ssl_mode=verify_ca")
    with pytest.raises(TlsError, match="localhost is not trusted: Hostname mismatch"):
        _cipher(f"{url.replace('127.0.0.1', 'localhost')}?ssl_ca={ca}")
    with proxied(url) as (_, downgraded):  # somebody in between who takes TLS out of the server's offer
        assert _cipher(downgraded) == ""
        for options in ("ssl_mode=required", f"ssl_ca={ca}", f"ssl_ca={ca}&ssl_mode=verify_ca"):
            with pytest.raises(TlsError, match="offers no TLS"):
                _cipher(f"{downgraded}?{options}")
    hosts = ",127.0.0.1:1/".join(url.rsplit("/", 1))
    with pytest.raises(StoreUnavailable, match="not trusted"):
        _cipher(f"{hosts}?ssl_ca={other}")


def test_commands_say_it_in_one_line(url: str, files: _Files, tmp_path: Path) -> None:
    done = Ems({}, tmp_path)("topics", "list", url=f"{url}?ssl_ca={files.other.certificate}")
    assert done.code == 1 and len(done.errors) == 1 and "is not trusted" in done.errors[0]
    missing = Ems({}, tmp_path)("topics", "list", url=f"{url}?ssl_ca=/no/such/file")
    assert missing.code == 2 and "/no/such/file" in missing.errors[0] and "cannot be read" in missing.errors[0]


@pytest.mark.parametrize(
    "options",
    ["ssl_mode=on", "ssl_mode=preferred&ssl_ca=/x", "ssl_mode=disabled&ssl_cert=/x", "ssl_key=/x", "ssl_verify=1"],
)
def test_options_that_contradict_each_other_are_refused(options: str) -> None:
    with pytest.raises(ValueError, match="ssl_"):
        DatabaseUrl.parse(f"mysql://u:p@h/d?{options}")


def test_files_that_are_no_certificates_are_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for options in (f"ssl_ca={broken}", f"ssl_mode=required&ssl_cert={broken}"):
        with pytest.raises(ConfigError, match="cannot be read"):
            _cipher(f"mysql://u:p@127.0.0.1:1/d?{options}")


class _TlsRedis(Redis):
    """Redis with TLS on its only port."""

    def __init__(self, folder: Path, files: _Files) -> None:
        super().__init__(folder)
        self._files = files

    def _command(self, state: object) -> list[str]:
        command = super()._command(state)  # type: ignore[arg-type]
        config = Path(command[-1])
        lines = config.read_text().replace("\nport ", "\nport 0\ntls-port ")
        lines += f"tls-cert-file {self._files.cert}\ntls-key-file {self._files.key}\n"
        config.write_text(lines + f"tls-ca-cert-file {self._files.ca.certificate}\ntls-auth-clients no\n")
        return command


@pytest.fixture
def tls_redis(servers: TestServers, files: _Files) -> Iterator[str]:
    """The address of a Redis that speaks TLS only."""
    servers.redis()  # skips where there is none
    server = _TlsRedis(servers.folder / "tls-redis", files)
    try:
        server.start(60)
        yield server.url.replace("redis://", "rediss://")
    finally:
        server.kill()


def test_redis(tls_redis: str, files: _Files) -> None:
    with connect_redis(f"{tls_redis}?ssl_ca_certs={files.ca.certificate}") as client:
        assert client.ping()
    wrong = (
        f"{tls_redis}?ssl_ca_certs={files.other.certificate}",
        f"{tls_redis.replace('127.0.0.1', 'localhost')}?ssl_ca_certs={files.ca.certificate}",
        tls_redis,
    )
    for address in wrong:
        with connect_redis(address) as client, pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            client.ping()
    told = str(check(None, wrong[0], environ={}))
    assert "CERTIFICATE_VERIFY_FAILED" in told and ":***@127.0.0.1" in told
    with connect_redis(tls_redis.replace("rediss://", "redis://")) as client, pytest.raises(redis.ConnectionError):
        client.ping()  # in the clear
    unchecked = f"{tls_redis}?ssl_cert_reqs=none"
    with connect_redis(unchecked) as client:
        assert client.ping(), "the address itself says so"
    password = f"rediss://:ssl_cert_reqs=none@localhost:{urlsplit(tls_redis).port}?ssl_ca_certs={files.ca.certificate}"
    with connect_redis(password) as client, pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        client.ping()  # a password does not switch off the check of the host's name


def test_users_that_must_show_a_certificate(tls_server: Server, files: _Files) -> None:
    ca = f"ssl_ca={files.ca.certificate}"
    with users(tls_server, tls_server.url) as make:
        url = make("admin")
        _alter(tls_server, url, "REQUIRE X509")
        with pytest.raises(AccessDenied, match="denied"):
            _cipher(f"{url}?{ca}")
        assert _cipher(f"{url}?{ca}&ssl_cert={files.client_cert}&ssl_key={files.client_key}")


def _alter(server: Server, url: str, demand: str) -> None:
    name = urlsplit(url).username
    with connect(server.admin_url, autocommit=True) as root, root.cursor() as cursor:
        for host in ("localhost", "127.0.0.1"):
            cursor.execute(f"ALTER USER '{name}'@'{host}' {demand}")


def test_a_worker_and_a_producer_live_on_tls_alone(
    tls_server: Server, tls_redis: str, files: _Files, tmp_path: Path
) -> None:
    """Each connection of theirs: MySQL refuses users without TLS, and Redis has no other port."""
    with open_stream(tls_server, tmp_path) as stream, users(tls_server, stream.url) as make:
        urls = [make("worker", ["auto-create", "beat"]), make("producer", ["auto-create"])]
        for url in urls:
            _alter(tls_server, url, "REQUIRE SSL")
            with pytest.raises(AccessDenied, match="denied"):
                _cipher(f"{url}?ssl_mode=disabled")
        worker_url, producer_url = (f"{url}?ssl_ca={files.ca.certificate}" for url in urls)
        redis_url = f"{tls_redis}?ssl_ca_certs={files.ca.certificate}"
        settings = {"url": worker_url, "redis_url": redis_url, "allocator": "redis", "result_backend": "redis"}
        worker = stream.worker("tests.process.apps.results:app", settings)
        app = App("sender", url=producer_url, redis_url=redis_url, allocator="redis", result_backend="redis")
        add = app.task(name="add", result=True)(lambda a, b: a + b)
        sent = [add.delay(n, 1) for n in range(5)]
        assert [app.result(one).get(timeout=30) for one in sent] == [1, 2, 3, 4, 5]
        assert worker.stop() == 0
        assert "Redis is unavailable" not in worker.text() and "denied" not in worker.text(), worker.text()
        app.close()
