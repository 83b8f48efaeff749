"""URLs of a stream as kombu and Celery hand them over, and the options in them."""

import subprocess
import sys

import kombu
import pytest

from emsworker.core.errors import ConfigError
from emsworker.core.url import DatabaseUrl
from emsworker.integrations.celery import registration
from emsworker.integrations.celery.options import StreamOptions, _tell_ignored
from emsworker.integrations.celery.url import StreamUrl


def of(url: str, **arguments: object) -> StreamUrl:
    return StreamUrl.of_connection(kombu.Connection(url, **arguments))


def test_a_url_with_a_prefix_keeps_servers_tls_and_options() -> None:
    assert registration.SCHEMES
    url = of("ems+mysql://me:p%40ss@db1:3307,db2/shop?ssl_ca=/ca.pem&lease_s=30&redis_url=redis://:s@r:6379/0")
    database = DatabaseUrl.parse(url.database)
    assert database.servers == (("db1", 3307), ("db2", 3306))
    assert (database.user, database.password, database.database) == ("me", "p@ss", "shop")
    assert database.options == {"ssl_ca": "/ca.pem"}
    options = StreamOptions.load(url.options, {"lease_s": 5, "delivery_limit": 3, "visibility_timeout": 60})
    assert (options.lease_s, options.redis_url, options.delivery_limit) == (30, "redis://:s@r:6379/0", 3)
    assert "p@ss" not in url.shown() and "p%40ss" not in url.shown()


def test_a_url_that_kombu_takes_apart_is_put_together_again() -> None:
    url = of("ems://me:p%40ss%2F@db1:3307/shop?ssl_ca=/ca.pem")
    database = DatabaseUrl.parse(url.database)
    assert (database.host, database.port, database.user, database.password) == ("db1", 3307, "me", "p@ss/")
    assert database.options == {"ssl_ca": "/ca.pem"}


def test_a_connection_that_switched_to_its_alternate_has_the_alternates_address() -> None:
    connection = kombu.Connection("ems+mysql://me:a@db1/shop;ems+mysql://you:b@db2:3307/other")
    connection.maybe_switch_next()
    for one in (connection, connection.clone()):
        database = DatabaseUrl.parse(StreamUrl.of_connection(one).database)
        assert (database.host, database.port, database.user, database.database) == ("db2", 3307, "you", "other")


def test_tls_as_celery_asks_for_it() -> None:
    assert DatabaseUrl.parse(of("ems+mysql://db/shop", ssl=True).database).options == {"ssl_mode": "required"}
    wanted = {"ca_certs": "/ca.pem", "certfile": "/c.pem", "keyfile": "/k.pem"}
    options = DatabaseUrl.parse(of("ems+mysql://db/shop", ssl=wanted).database).options
    assert options == {"ssl_ca": "/ca.pem", "ssl_cert": "/c.pem", "ssl_key": "/k.pem"}


@pytest.mark.parametrize(
    "url", ["ems+redis://db/shop", "mysql:/db", "ems+mysql://db", "ems+mysql://me:secret@db:port/x"]
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"stream|://") as refused:
        StreamUrl.parse(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["socket_timeout", "lease", "fanout_prefix"])
def test_an_unknown_option_is_refused_wherever_it_stands(name: str) -> None:
    for in_url, given in (({name: "3"}, {}), ({}, {name: 3})):
        with pytest.raises(ConfigError, match=f"{name} = .*there is no such option"):
            StreamOptions.load(in_url, given)


def test_the_visibility_timeout_is_ignored_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for in_url, given in (({"visibility_timeout": "60"}, {}), ({}, {"visibility_timeout": 60})):
        caplog.clear()
        _tell_ignored.cache_clear()
        assert StreamOptions.load(in_url, given) == StreamOptions()
        StreamOptions.load(in_url, given)
        assert [one.message for one in caplog.records if "visibility_timeout" in one.message] != []
        assert len(caplog.records) == 1


def test_what_kombu_reads_itself_stands_in_the_transport_options_alone() -> None:
    assert StreamOptions.load({}, {"max_retries": 3, "interval_start": 0}) == StreamOptions()
    with pytest.raises(ConfigError, match="max_retries"):
        StreamOptions.load({"max_retries": "3"}, {})


def test_all_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError) as refused:
        StreamOptions.load({"lease": "5", "delivery_limit": "many"}, {"beats": True})
    assert [one.name for one in refused.value.problems] == ["beats", "lease", "delivery_limit"]
    with pytest.raises(ConfigError, match="lease_s"):
        StreamOptions(lease_s=0.1)


@pytest.mark.parametrize(
    "imports",
    ["import kombu.serialization", "from kombu import Queue", "import emsworker.integrations.celery.registration"],
)
def test_kombu_alone_finds_the_transport(imports: str) -> None:
    """It has no entry point for transports; what it loads for its serializers, or the program itself, registers ours."""
    text = f"{imports}\nfrom kombu import Connection\nprint(Connection('ems+mysql://db/shop').transport.driver_type)"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "ems\n"), ran.stderr
