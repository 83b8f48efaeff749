"""Settings: where they come from, and how wrong ones are told."""

import math
import pwd
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from emsworker.core import config
from emsworker.core.config import Settings, unknown_variables
from emsworker.core.errors import ConfigError
from emsworker.core.options import options_of
from emsworker.core.url import DatabaseUrl, redact
from emsworker.local.stack import default_folder

URL = "mysql://user:secret@db.example:3307/stream"


def problems(**given: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        Settings.load(environ={}, **given)
    assert "secret" not in str(caught.value)
    return {problem.name: problem.fix for problem in caught.value.problems}


def test_settings_win_over_the_environment_and_that_over_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ems_settings_of_test.py").write_text(
        "import os\nbatch = 1\nthreads = 1\nprocesses = 1\naccept = ['yaml']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    environ = {"EMS_CONFIG": "ems_settings_of_test", "EMS_BATCH": "2", "EMS_THREADS": "2", "EMS_TEST_SERVERS": "mysql"}
    settings = Settings.load(environ=environ, batch=3)
    assert (settings.batch, settings.threads, settings.processes, settings.accept) == (3, 2, 1, ("yaml",))
    assert Settings.load("ems_settings_of_test", environ={}).batch == 1
    sys.modules.pop("ems_settings_of_test")


def test_the_environment_is_read_by_type() -> None:
    environ = {
        "EMS_URL": URL,
        "EMS_AUTO_CREATE": "off",
        "EMS_POLL_MIN_S": "20ms",
        "EMS_ACCEPT": "json, msgpack,",
        "EMS_COMPRESSION": "",
    }
    settings = Settings.load(environ=environ)
    assert settings.url == URL
    assert settings.auto_create is False
    assert settings.poll_min_s == pytest.approx(0.02)
    assert settings.accept == ("json", "msgpack")
    assert settings.compression is None


def test_all_problems_are_told_at_once() -> None:
    environ = {"EMS_BATCH": "many", "EMS_PUBLISHING": "perhaps", "EMS_TIMEOUT_S": "soon"}
    with pytest.raises(ConfigError) as caught:
        Settings.load("no.such.module", environ, threads=0, colour="red", allocator="redis", lease_s=1.0)
    names = {problem.name for problem in caught.value.problems}
    assert names == {
        "EMS_CONFIG", "EMS_BATCH", "EMS_PUBLISHING", "EMS_TIMEOUT_S", "threads", "colour", "redis_url", "lease_s",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("url", "postgres://user:secret@h/d", "mysql://"),
        ("url", "mysql://user:secret@h", "names no database"),
        ("url", "mysql://user:secret@h:99999/d", "port"),
        ("url", "mysql://user:secret@h\u2100st/d", "host is malformed"),
        ("url", "mysql://user:secret@h/d?colour=red", "colour"),
        ("url", "mysql://user@h/d?password=secret", "password"),
        ("url", "mysql://user:secret@h/d?read_timeout_s=-1", "read_timeout_s"),
        ("redis_url", "http://:secret@h", "redis://"),
        ("allocator", "zookeeper", "mysql, redis"),
        ("topic", "no blanks", "valid name"),
        ("ladder", "1s often", "'often'"),
        ("ladder", "1s " * 400, "characters"),
        ("compression", "rar", "zlib"),
        ("jitter", 2.0, "between 0 and 1"),
        ("timeout_s", math.inf, "100 years"),
        ("timeout_s", math.nan, "between 100ms"),
        ("max_attempts", 70000, "65535"),
        ("batch", True, "whole number"),
        ("threads", 1.5, "whole number"),
        ("accept", "json", "tuple"),
        ("lease_s", "long", "number of seconds"),
        ("poll_max_s", 0.001, "poll_min_s"),
        ("beat_lease_s", 1.0, "beat_s"),
    ],
)
def test_a_wrong_setting_is_named_with_its_fix(name: str, value: object, fix: str) -> None:
    assert fix in problems(**{name: value})[name]


def test_secrets_are_hidden_everywhere() -> None:
    settings = Settings(url=URL, redis_url="redis://:secret@h:6379/0")
    assert "secret" not in repr(settings)
    assert "secret" not in repr(DatabaseUrl.parse(URL))
    with pytest.raises(ConfigError) as caught:
        Settings.load(environ={"EMS_URL": "postgres://u:hunter2@h/d"}, password="hunter2", uri="mysql://u:hunter2@h/d")
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).count("***") == 3


def test_the_url_of_a_dead_mans_switch_is_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(environ={"EMS_DEAD_MAN_URL": "hc-ping.com/hunter2"})
    assert "hunter2" not in str(caught.value) and "dead_man_url" in str(caught.value)


def test_the_prefix_of_a_variable_is_no_likeness() -> None:
    assert unknown_variables({"EMS_NO_SUCH": "1", "EMS_RENEW": "1"}) == {
        "EMS_NO_SUCH": "there is no such setting",
        "EMS_RENEW": "there is no such setting; did you mean 'EMS_RENEW_S'?",
    }


# What Kubernetes puts into every pod of a namespace with the Services `ems`, `ems-monitoring` and `ems-http`.
SERVICES = {
    "EMS_SERVICE_HOST": "10.0.0.7",
    "EMS_SERVICE_PORT": "80",
    "EMS_SERVICE_PORT_HTTP": "80",
    "EMS_PORT": "tcp://10.0.0.7:80",
    "EMS_PORT_80_TCP": "tcp://10.0.0.7:80",
    "EMS_PORT_80_TCP_PROTO": "tcp",
    "EMS_PORT_80_TCP_PORT": "80",
    "EMS_PORT_80_TCP_ADDR": "10.0.0.7",
    "EMS_MONITORING_SERVICE_HOST": "10.0.0.8",
    "EMS_MONITORING_PORT_9100_UDP_ADDR": "10.0.0.8",
    "EMS_HTTP_PORT": "tcp://10.0.0.9:9000",
}


def test_variables_of_kubernetes_are_no_settings(caplog: pytest.LogCaptureFixture) -> None:
    assert Settings.load(environ=SERVICES) == Settings()
    assert unknown_variables(SERVICES) == {}
    assert caplog.records == []


def test_no_setting_looks_like_a_variable_of_kubernetes() -> None:
    settings = {f"EMS_{name.upper()}": "" for name in options_of(Settings)}
    assert not any(config._OF_KUBERNETES.fullmatch(variable) for variable in settings)


def test_an_unknown_variable_is_told_once_and_ignored(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "_TOLD", set())
    environ = {"EMS_SERIALISER": "mysql://u:secret@h/d", "EMS_BATCH": "7"}
    for _ in range(3):
        assert Settings.load(environ=environ) == Settings(batch=7)
    (line,) = (record.getMessage() for record in caplog.records)
    assert line == "EMS_SERIALISER is ignored: there is no such setting; did you mean 'EMS_SERIALIZER'?"


@pytest.mark.parametrize(
    "text",
    [
        "mysql://u:secret@h/d",
        "mysql://u:se@secret@h/d",
        "mysql://u:my secret@h/d",
        "redis://:secret@h",
        "cannot connect to 'mysql://u:secret@h/d' (110)",
        "mysql://h/d?user=u&password=secret&x=1",
    ],
)
def test_a_url_is_shown_without_its_password(text: str) -> None:
    shown = redact(text)
    assert "secret" not in shown
    assert "***" in shown


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    for text in ("http://example.org:80/a", "mysql://u@h/d", "Access denied for user 'u'@'h'"):
        assert redact(text) == text


@pytest.mark.parametrize("password", ["a@b", "a@b/c", "a/b@c", "1/b", "a@b?c", "a@b/c?d", "a#b", "a@b#c", "a@b/c#d"])
def test_a_sign_that_must_be_encoded_is_told(password: str) -> None:
    with pytest.raises(ValueError, match="%40") as told:
        DatabaseUrl.parse(f"mysql://u:{password}@h:3306/d")
    assert str(told.value).startswith(("it has an unencoded sign", "its port is not a number"))
    encoded = f"mysql://u:{quote(password, safe='')}@h:3306/d?ssl_ca=/a@b"
    assert DatabaseUrl.parse(encoded).password == password


def test_urls_are_unquoted() -> None:
    url = DatabaseUrl.parse("mysql://u%40x:p%2Fw@h/d?unix_socket=%2Ftmp%2Fs&connect_timeout_s=2")
    assert (url.user, url.password, url.port, url.database) == ("u@x", "p/w", 3306, "d")
    assert url.options == {"unix_socket": "/tmp/s", "connect_timeout_s": "2"}


def test_a_url_may_name_several_servers() -> None:
    url = DatabaseUrl.parse("mysql://u:p%2C@h1:3307,h2,[::1]:3309/d?connect_timeout_s=2")
    assert url.servers == (("h1", 3307), ("h2", 3306), ("::1", 3309))
    assert (url.user, url.password, url.database) == ("u", "p,", "d")
    for wrong in ("mysql://u@h1,/d", "mysql://u@h1,h2:x/d", "mysql://u@h1,h2/d?unix_socket=/s"):
        with pytest.raises(ValueError, match=r"one of its servers|its port|unix_socket"):
            DatabaseUrl.parse(wrong)


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "EMS_LOCAL_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as in a container with any number as its user
    with pytest.raises(ConfigError, match=r"no home folder.* set EMS_URL"):
        default_folder()
