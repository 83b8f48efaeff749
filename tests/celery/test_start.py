"""Wrong addresses and options at the start of a worker and of other programs: one clear line, and no secret in it."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import kombu
import pytest
from celery import Celery

from emsworker.core.errors import AccessDenied, ConfigError
from tests.celery.brokers import Broker
from tests.celery.project import Project
from tests.support.waiting import until

SECRET = "s3cr3t"


# Without its banner a worker makes no backend before it is connected.
_COMMANDS = [
    ("worker", "-P", "solo"), ("worker", "-c", "1"), ("-q", "worker", "-P", "solo"), ("-q", "worker", "-c", "1")
]  # fmt: skip


def _with_password(url: str, password: str) -> str:
    return re.sub(r"(://[^:]*:)[^@]*@", lambda found: f"{found[1]}{password}@", url)


def _worker(broker: Broker, folder: Path, *options: str, **urls: str) -> subprocess.CompletedProcess[str]:
    urls = {"url": broker.url, "backend": broker.backend, **urls}
    with Project(Broker("ems", dead=broker.dead, **urls), folder) as project:
        return project.celery(*options)


@pytest.mark.parametrize("options", _COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("backend",), "password of result_backend,"),
        (("url",), "password of broker_url,"),
        (("url", "backend"), "password of broker_url"),
    ],
    ids=["backend", "broker", "both"],
)
def test_a_wrong_password_ends_a_worker_with_one_line(
    broker: Broker, tmp_path: Path, options: tuple[str, ...], wrong: tuple[str, ...], named: str
) -> None:
    ended = _worker(broker, tmp_path, *options, **dict.fromkeys(wrong, _with_password(broker.url, SECRET)))
    assert ended.returncode == 1, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if "cannot start" in line)
    assert "Access denied" in line and named in line and "EMS_URL" not in line, line
    assert "Traceback" not in ended.stderr and SECRET not in ended.stderr + ended.stdout


@pytest.mark.parametrize("password", ["a@b", f"a@{SECRET}/b", f"a@b/{SECRET}", f"1/{SECRET}", f"a#{SECRET}"])
@pytest.mark.parametrize(
    ("wrong", "setting", "scheme"),
    [("backend", "result_backend", "ems+mysql"), ("url", "broker_url", "ems+mysql"), ("url", "broker_url", "ems")],
)
def test_a_sign_that_must_be_encoded_is_told_without_the_password(
    broker: Broker, tmp_path: Path, wrong: str, setting: str, scheme: str, password: str
) -> None:
    url = _with_password(broker.url, f"{SECRET}{password}").replace("ems+mysql", scheme)
    ended = _worker(broker, tmp_path, "worker", "-P", "solo", **{wrong: url})
    assert ended.returncode == 1, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if "cannot start" in line)
    assert f"{setting} = " in line and "%40" in line, line
    assert "Traceback" not in ended.stderr and SECRET not in ended.stderr + ended.stdout


@pytest.mark.parametrize("password", [f"{SECRET}@b", f"a@{SECRET}/b", f"a@b/{SECRET}", f"1/{SECRET}"])
@pytest.mark.parametrize("scheme", ["ems+mysql", "ems"])
def test_nothing_that_kombu_and_celery_show_has_a_part_of_the_password(scheme: str, password: str) -> None:
    url = f"{scheme}://u:{password}@127.0.0.1:1/db"
    connection = kombu.Connection(url, connect_timeout=0.1)
    app = Celery("shown", broker=url, backend=url.replace("ems:", "ems+mysql:"), set_as_current=False)
    said = f"{connection!r} {connection.as_uri()} {app.connection_for_read()!r}"
    for work in (connection.connect, lambda: app.backend):
        with pytest.raises((ConfigError, OSError, Exception)) as told:
            work()
        said += f"{told.value} {told.value!r}"
    assert SECRET not in said


def test_a_password_with_every_sign_works_if_it_is_encoded(broker: Broker) -> None:
    url = _with_password(broker.url, quote("p@/#?:%&=", safe=""))
    with pytest.raises(AccessDenied):
        kombu.Connection(url).connect()


def test_a_server_that_is_away_ends_no_worker(broker: Broker, tmp_path: Path) -> None:
    with Project(Broker("ems", broker.dead, broker.dead, broker.dead), tmp_path) as project:
        worker = project.worker("-P", "solo")
        until(lambda: "Trying again" in worker.text, 60, "it waits for the server")
        assert worker.process.poll() is None


def test_a_refusal_after_the_start_ends_nothing(start: Callable[..., Project]) -> None:
    project = start()
    program = """
    from celery.signals import worker_ready
    import kombu, re
    @worker_ready.connect
    def connect(**_):
        try:
            kombu.Connection(re.sub("(://[^:]*:)[^@]*@", r"\\1other@", app.conf.broker_url)).connect()
        except Exception as error:
            print(f"refused: {type(error).__name__}", flush=True)
            raise SystemExit(5) from None
    app.worker_main(["worker", "-P", "solo"])
    """
    ended = project.program("\n".join(line[4:] for line in program.splitlines()))
    out, err = ended.communicate(timeout=60)
    assert "refused: LoginRefused" in err and "cannot start" not in err, out + err


@pytest.mark.parametrize("name", ["max_decoded", "redis_ulr"])
def test_an_unknown_option_of_the_backend_is_refused(broker: Broker, name: str) -> None:
    app = Celery("unknown", broker=broker.url, backend=broker.url, set_as_current=False)
    app.conf.result_backend_transport_options = {name: 3}
    with pytest.raises(ConfigError, match=f"{name} = .*there is no such option"):
        _ = app.backend


def test_options_of_other_backends_are_ignored(broker: Broker) -> None:
    app = Celery("other", broker=broker.url, backend=broker.url, set_as_current=False)
    app.conf.result_backend_transport_options = {
        "retry_policy": {"timeout": 5.0}, "visibility_timeout": 3, "global_keyprefix": "x", "max_retries": 3,
        "connect_timeout_s": 1.5,
    }  # fmt: skip
    assert app.backend.get_result("nothing") is None
    assert sys.modules["emsworker.integrations.celery.startup"]._started == []
    app.close()
