"""An extension of somebody else: one folder, found by its entry point, with nothing changed elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase
from tests.support.commands import environment
from tests.support.roles import users
from tests.support.servers import connect, fresh_database
from tests.support.waiting import until

ACME = Path(__file__).parent / "acme"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages in which the extension is installed."""
    folder = tmp_path / "site"
    shutil.copytree(ACME, folder / "acme", ignore=shutil.ignore_patterns("__pycache__"))
    about = folder / "acme_ems-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-ems\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ems.extensions]\nacme = acme.extension:EXTENSION\n")
    return folder


@pytest.fixture
def url(server: LocalDatabase) -> Iterator[str]:
    with fresh_database(server) as made:
        yield made


@pytest.fixture
def run(site: Path, url: str, tmp_path: Path) -> Run:
    def run(*words: str, code: int = 0, **changes: str) -> subprocess.CompletedProcess[str]:
        environ = environment(
            {"EMS_URL": url, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **changes}
        )
        command = [sys.executable, "-m", "emsworker", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=60)
        assert done.returncode == code and "Traceback" not in done.stderr, done
        return done

    return run


def _tables(url: str) -> set[str]:
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        return {row[0] for row in cursor.fetchall()}


def test_its_tables_are_made_when_they_are_asked_for(run: Run, url: str) -> None:
    run("migrate")
    assert not {one for one in _tables(url) if one.startswith(("acme", "ems_celery", "ems_queue"))}
    done = run("notes", "list", code=1)
    assert done.stderr == "Error: the database has no tables of acme; run `ems migrate --with acme`\n"
    assert "Those of acme are of version 1 now." in run("migrate", "--with", "acme").stdout
    assert json.loads(run("migrate", "--json").stdout) == {
        "applied": [],
        "restored": [],
        "version": 1,
        "extensions": {"acme": 1},
    }
    assert "acme_note" in _tables(url)


def test_its_commands_rights_and_page_are_there(run: Run, url: str, server: LocalDatabase, site: Path) -> None:
    run("migrate", "--with", "acme")
    run("topics", "create", "orders")
    assert "Leave notes on topics, and list them." in run("--help").stdout
    run("notes", "add", "orders", "the <b>first</b>")
    assert json.loads(run("notes", "list", "--json").stdout) == [{"topic": "orders", "text": "the <b>first</b>"}]
    granted = run("grants", "beat", "--user", "b@h", "--with", "acme").stdout
    assert "GRANT SELECT (id, expires_at), DELETE ON" in granted and "acme_note" in granted
    assert "acme_note" not in run("grants", "beat", "--user", "b@h").stdout
    with (
        users(server, url) as make,
        _dashboard(make("viewer", also=[f"SELECT ON {url.rpartition('/')[2]}.acme_note"]), site) as address,
    ):
        page = urllib.request.urlopen(f"{address}/notes", timeout=30).read().decode()
    assert "orders: the &lt;b&gt;first&lt;/b&gt;" in page and ">Notes</a>" in page


def test_its_service_runs_once_the_tables_are_there(run: Run, url: str, site: Path, tmp_path: Path) -> None:
    run("migrate")
    with _started(site, ["beat"], tmp_path / "beat.log", EMS_URL=url, EMS_BEAT_S="0.1") as beat:
        run("migrate", "--with", "acme")
        run("topics", "create", "orders")
        run("notes", "add", "orders", "gone at once", "--keep", "1ms")
        run("notes", "add", "orders", "stays")
        until(
            lambda: json.loads(run("notes", "list", "--json").stdout) == [{"topic": "orders", "text": "stays"}],
            60,
            "the sweep",
        )
    assert beat.returncode == 0 and "Traceback" not in (tmp_path / "beat.log").read_text()


def test_it_checks_and_is_measured_where_its_tables_are(
    run: Run, url: str, server: LocalDatabase, site: Path, tmp_path: Path
) -> None:
    run("migrate")
    assert "acme" not in run("check").stdout
    run("migrate", "--with", "acme")
    run("topics", "create", "orders")
    run("notes", "add", "orders", "late", "--keep", "1ms")
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE acme_note SET expires_at = NOW(6) - INTERVAL 2 HOUR")
        connection.commit()
    found = {one["name"]: one for one in json.loads(run("check", "--json").stdout)}
    assert (found["acme_note"]["severity"], found["acme_note"]["value"]) == ("warning", "1 expired")
    with _monitoring(url, site) as address:
        assert "\nacme_notes_expired 1.0\n" in urllib.request.urlopen(address, timeout=30).read().decode()
    with users(server, url) as make, _monitoring(make("viewer"), site) as address:
        served = urllib.request.urlopen(address, timeout=30).read().decode()
        assert "acme" not in served and "ems_group_dead" in served


def test_a_check_and_a_metric_that_fail_hide_no_other(run: Run, url: str, site: Path) -> None:
    for part in ("checks", "metrics"):
        (site / "acme" / f"{part}.py").write_text(f"def fail(*_):\n    1 / 0\n\n\ndef {part}():\n    return [fail]\n")
    run("migrate", "--with", "acme", "--with", "celery")
    found = {one["name"]: one for one in json.loads(run("check", "--json", code=1).stdout)}
    assert found["extension acme"]["severity"] == "error" and "division by zero" in found["extension acme"]["fix"]
    assert found["ems_celery_result"]["severity"] == found["disk"]["severity"] == "ok"
    with _monitoring(url, site) as address:
        assert "ems_group_dead" in urllib.request.urlopen(address, timeout=30).read().decode()


@pytest.mark.parametrize("broken", ["import nothing_of_this_name", "raise RuntimeError('no')", "EXTENSION = 1"])
def test_one_that_is_broken_stops_nothing(run: Run, site: Path, broken: str) -> None:
    (site / "acme" / "extension.py").write_text(broken + "\n")
    done = run("migrate")
    assert "extension 'acme' is left out" in run("--help").stderr + done.stderr
    run("topics", "create", "orders")
    assert "no such extension is installed" in run("migrate", "--with", "acme", code=2).stderr


def test_parts_that_are_broken_stop_nothing_else(run: Run, url: str, site: Path, tmp_path: Path) -> None:
    for part in ("services", "pages", "checks", "commands"):
        (site / "acme" / f"{part}.py").write_text("import nothing_of_this_name\n")
    run("migrate", "--with", "acme")
    assert "nothing_of_this_name" in run("notes", "list", code=1).stderr
    assert "checks of extension 'acme' are left out" in run("check").stderr
    log = tmp_path / "beat.log"
    with _started(site, ["beat"], log, EMS_URL=url):
        until(
            lambda: "services of extension 'acme' are left out" in log.read_text() and "leads" in log.read_text(),
            60,
            "the beat",
        )
    with _dashboard(url, site) as address:
        assert "Overview" in urllib.request.urlopen(address, timeout=30).read().decode()


class _started:
    """A process with the extension installed, ended by SIGTERM."""

    def __init__(self, site: Path, words: Sequence[str], log: Path, **environ: str) -> None:
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "emsworker", *words],
            stdout=self._log,
            stderr=self._log,
            env=environment({"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environ}),
            cwd=log.parent,
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()


class _dashboard(_started):
    """A dashboard; gives its address."""

    def __init__(self, url: str, site: Path) -> None:
        self._path = site.parent / "web.log"
        super().__init__(site, ["web", "--port", "0"], self._path, EMS_URL=url)

    def __enter__(self) -> str:  # type: ignore[override]
        until(lambda: "http://" in self._path.read_text(), 60, "the dashboard")
        return self._path.read_text().partition("The dashboard is at ")[2].split()[0].rstrip("/")


class _monitoring(_started):
    """The metrics of the stream; gives their address."""

    def __init__(self, url: str, site: Path) -> None:
        self._path = site.parent / "monitoring.log"
        super().__init__(site, ["monitoring", "serve", "0"], self._path, EMS_URL=url)

    def __enter__(self) -> str:  # type: ignore[override]
        until(lambda: "/metrics" in self._path.read_text(), 60, "the metrics")
        return self._path.read_text().partition("Ready: ")[2].split()[0]
