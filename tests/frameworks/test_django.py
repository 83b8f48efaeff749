"""Django: a project on one connection of its own, the tests of a project with tasks, and the page of the documentation."""

import http.client
import itertools
import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import django
import pytest

from emsworker.beat.relay import Relay
from emsworker.core.config import Settings
from emsworker.local import LocalDatabase
from emsworker.local.ports import free_port
from tests.docs.snippets import ROOT, Block, Reader, blocks
from tests.support.servers import connect
from tests.support.streams import Stream
from tests.support.waiting import until

ORDERS = 500  # by each of two ways
PAGE = ROOT / "docs/how-to/django.md"


def _get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if answer.status == 200 else {}


@contextmanager
def _gunicorn(stream: Stream, log: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--threads", "4", "--timeout", "120"]
    command += ["--bind", f"127.0.0.1:{port}", "tests.frameworks.shop:application"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env={**os.environ, "EMS_URL": stream.url, "HOME": str(log.parent)}, stdout=out, stderr=out
        )

        def serves() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(serves, 60, "gunicorn serves")
            yield port
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
def test_a_thousand_sends_of_two_web_processes(stream: Stream, tmp_path: Path) -> None:
    stream.rows("CREATE TABLE orders (n INT PRIMARY KEY) ENGINE=InnoDB")
    log = tmp_path / "log"
    with _gunicorn(stream, log) as port, ThreadPoolExecutor(8) as clients:
        paths = [f"/{('on_commit', 'atomic')[n % 2]}/{n}" for n in range(2 * ORDERS)]
        paths += [f"/rolled_back/{n}" for n in range(10_000, 10_020)]
        answers = list(clients.map(lambda path: _get(port, path), paths))
    refused = [path for path, (status, _) in zip(paths, answers, strict=True) if status != 200]
    assert refused == [], log.read_text()[-5000:]
    assert len({body["process"] for _, body in answers}) == 2, "both took part"
    relay = Relay()
    until(
        lambda: relay(stream.session, Settings()) and not stream.value("SELECT COUNT(*) FROM ems_outbox"), 20, "moved"
    )
    assert stream.value("SELECT COUNT(*) FROM orders") == 2 * ORDERS
    found = Counter(
        (topic, int(body))
        for topic, body in stream.rows(
            "SELECT t.name, m.body FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 "
            "WHERE m.kind = 'message' AND t.name <> 'started'"
        )
    )
    assert found == Counter((("on_commit", "atomic")[n % 2], n) for n in range(2 * ORDERS))
    ids = {body["id"] for _, body in answers if "id" in body}
    assert len(ids) == 2 * ORDERS
    producers = {row[0] for row in stream.rows("SELECT DISTINCT producer_id FROM ems_message WHERE kind = 'message'")}
    assert len(producers) == 3, "each process is a producer of its own"


def _environment(url: str, folder: Path) -> dict[str, str]:
    """What the projects read: the database's address in parts, and nothing of EMS."""
    place = urlsplit(url)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EMS_", "DJANGO_"))}
    found = {
        "DB_NAME": place.path[1:],
        "DB_USER": unquote(place.username or ""),
        "DB_PASSWORD": unquote(place.password or ""),
        "DB_HOST": place.hostname or "",
        "DB_PORT": str(place.port),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONUNBUFFERED": "1",
    }
    return kept | found


@pytest.mark.parametrize("driver", ["pymysql", pytest.param("mysqlclient", marks=pytest.mark.slow)])
def test_the_tests_of_a_project_pass(stream: Stream, driver: str) -> None:
    """Those of webshop/cases.py; `./dev test-django` runs them with the newest Django, this one with the installed."""
    if driver == "mysqlclient" and find_spec("MySQLdb") is None:
        pytest.skip("mysqlclient is not installed")
    environment = _environment(stream.url, Path(__file__).parent)
    environment |= {"DJANGO_SETTINGS_MODULE": "webshop.settings", "DB_DRIVER": driver}
    command = [sys.executable, "-m", "django", "test", "webshop.cases", "--keepdb", "--noinput"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_address_is_told_by_the_settings_of_the_project(stream: Stream) -> None:
    environment = _environment(stream.url, Path(__file__).parent) | {"DJANGO_SETTINGS_MODULE": "webshop.settings"}
    away = str(free_port())
    for command in (["ems", "topics", "list"], ["ems_worker", "-p", "1"], ["ems_migrate"]):
        for wrong in ({"DB_PASSWORD": "wrong"}, {"DB_PORT": away}):
            done = subprocess.run(
                [sys.executable, "-m", "django", *command],
                env=environment | wrong,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode != 0 and "EMS_URL" not in done.stderr and "--url" not in done.stderr, done.stderr
            assert "DATABASES['default']" in done.stderr or command == ["ems_migrate"], (command, done.stderr)


@dataclass
class DjangoReader(Reader):
    """Somebody who follows the page on Django; its ports are free ones."""

    ports: dict[str, int] = field(default_factory=dict)

    def _do(self, block: Block) -> None:
        text = re.sub(r"(?<=[ :])800[01]\b", lambda match: str(self._port(match[0])), block.text)
        if django.VERSION >= (6, 0):
            text = text.replace('"django_tasks", ', "").replace("from django_tasks import", "from django.tasks import")
        if block.language == "python":
            path = self.folder / block.title
            kept = path.read_text() if path.name == "settings.py" else ""
            path.write_text(f"{kept}\n{text}")
        elif block.language == "sh" and block.title:
            self._open_terminal(text)
            until(lambda: self._is_ready(block), 120, f"{block.title} is ready")
        else:
            super()._do(replace(block, text=text))

    def _port(self, name: str) -> int:
        return self.ports.setdefault(name, free_port())

    def _is_ready(self, block: Block) -> bool:
        assert self._terminals[-1].poll() is None, self._output(f"{block.title} has ended")
        if "ems_worker" in block.text:
            return not list(super()._not_ready())
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.ports["8000" if "runserver" in block.text else "8001"])) == 0

    def _not_ready(self) -> Iterator[object]:
        return iter(())  # each terminal was waited for when it was opened


@pytest.mark.slow
def test_the_page_leads_to_a_project_that_loses_nothing(stream: Stream, server: LocalDatabase, tmp_path: Path) -> None:
    folder = tmp_path / "a project"
    folder.mkdir()
    # Django's test runner makes a database, so the user is an administrator.
    environment = _environment(server.admin_url, folder) | {"DB_NAME": stream.url.rsplit("/", 1)[1]}
    reader = DjangoReader(folder, environment, lambda: stream.url)
    with ExitStack() as stack:
        stack.callback(reader._close)
        for block in blocks(PAGE):
            reader._do(block)
        ports = [reader.ports["8000"], reader.ports["8001"]]  # runserver, gunicorn
        clients = stack.enter_context(ThreadPoolExecutor(8))
        amounts = [5000 if number % 50 == 0 else number % 1000 for number in range(1, 1001)]
        asked = zip(amounts, itertools.cycle(ports), strict=False)
        answers = list(clients.map(lambda one: _get(one[1], f"/order/{one[0]}"), asked))
        wrong = [one for one, (status, _) in zip(amounts, answers, strict=True) if (status == 200) != (one < 5000)]
        assert wrong == []
        orders = 1 + sum(one < 5000 for one in amounts)  # and the page's own
        until(lambda: not stream.value("SELECT COUNT(*) FROM shop_order WHERE NOT billed"), 120, "all are billed")
        assert stream.value("SELECT COUNT(*) FROM shop_order") == orders
        assert stream.value("SELECT COUNT(*) FROM ems_message WHERE kind = 'message'") == 2 * orders

        server.stop()
        server.start(120)
        placed = until(lambda: _answer(ports[1], "/order/7"), 60, "an order after the restart")
        state = f"/state/{placed['task']}"
        until(lambda: _get(ports[1], state)[1].get("status") == "SUCCESSFUL", 60, "billed after the restart")
    with connect(stream.url) as sql, sql.cursor() as cursor:
        cursor.execute("SELECT error FROM ems_attempt")
        assert cursor.fetchall() == (), "a run met a connection from before the restart"


def _answer(port: int, path: str) -> dict[str, Any] | None:
    """An answer, if there is one that is no error."""
    status, body = _get(port, path)
    return body if status == 200 else None
