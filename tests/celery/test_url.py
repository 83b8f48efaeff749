"""URLs of a stream as kombu and Celery hand them over, and the options in them."""

import re
import subprocess
import sys
from pathlib import Path

import kombu
import pytest

from emsworker.core.errors import ConfigError
from emsworker.core.url import DatabaseUrl
from emsworker.integrations.celery import registration
from emsworker.integrations.celery.options import _KOMBUS, _TLS, StreamOptions, _tell_ignored
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


@pytest.mark.parametrize("scheme", ["ems", "ems+mysql"])
def test_the_info_of_a_connection_has_the_port_and_the_user_of_its_url(scheme: str) -> None:
    connection = kombu.Connection(f"{scheme}://me:a@db1:3307/shop")
    for one in (connection, connection.clone()):
        assert (one.info()["port"], one.info()["userid"]) == (3307, "me")
        assert DatabaseUrl.parse(StreamUrl.of_connection(one).database).password == "a"


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


@pytest.mark.parametrize("name", ["lease", "conect_timeout_s", "queue"])
def test_an_unknown_option_is_refused_wherever_it_stands(name: str) -> None:
    for in_url, given in (({name: "3"}, {}), ({}, {name: 3})):
        with pytest.raises(ConfigError, match=f"{name} = .*there is no such option"):
            StreamOptions.load(in_url, given)


def _options_of_kombu() -> set[str]:
    """Options that the transports of the installed kombu read, as far as their sources can be searched for them."""
    found: set[str] = set()
    for module in Path(kombu.__file__).parent.glob("transport/**/*.py"):
        text = module.read_text(encoding="utf-8")
        found.update(re.findall(r"\btransport_options\.get\(\s*['\"]([\w-]+)", text))
        for names in re.findall(r"from_transport_options = (?:[\w.+\s(]*)((?:'\w+',?\s*)+)", text):
            found.update(re.findall(r"'(\w+)'", names))
    return found


def test_options_of_other_brokers_are_ignored_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    foreign = _options_of_kombu() - _KOMBUS - _TLS - {"confirm_publish"}
    assert {"priority_steps", "sep", "visibility_timeout", "wait_time_seconds", "region"} <= foreign
    for in_url, given in ((dict.fromkeys(foreign, "60"), {}), ({}, dict.fromkeys(foreign, 60))):
        caplog.clear()
        _tell_ignored.cache_clear()
        assert StreamOptions.load(in_url, given) == StreamOptions()
        StreamOptions.load(in_url, given)
        assert sorted(one.getMessage().split()[2] for one in caplog.records) == sorted(foreign)


def test_an_option_for_tls_is_never_ignored() -> None:
    for name in _TLS:
        for in_url, given in (({name: "true"}, {}), ({}, {name: True})):
            with pytest.raises(ConfigError, match=f"{name} = .*ssl_ca into the URL"):
                StreamOptions.load(in_url, given)


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


def _driver_type(url: str, first: str = "") -> str:
    text = f"{first}\nfrom kombu import Connection\nprint(Connection({url!r}).transport.driver_type)"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("scheme", registration.SCHEMES)
def test_kombu_alone_finds_the_transport(scheme: str) -> None:
    """It has no entry point for transports; a .pth file has ours registered as soon as kombu has made its table."""
    assert _driver_type(f"{scheme}://db/shop") == "ems"


@pytest.mark.parametrize(
    "imports",
    ["import kombu.serialization", "from kombu import Queue", "import emsworker.integrations.celery.registration"],
)
def test_the_transport_is_found_where_no_pth_file_was_read(imports: str) -> None:
    """What kombu loads for its serializers, or the program itself, registers it."""
    without = "sys.meta_path[:] = [one for one in sys.meta_path if one.__module__ != 'emsworker_kombu']"
    assert _driver_type("ems+mysql://db/shop", f"import sys\n{without}\n{imports}") == "ems"
