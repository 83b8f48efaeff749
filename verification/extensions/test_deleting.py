"""Each extension is deleted from a copy of the library, and the rest works: its modules, commands, a worker, its tests.

EMS_TEST_LONG=1 runs all the fast tests of the rest; without it those of `_FEW`.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pytest

import emsworker
import emsworker.cli
from emsworker.local import LocalDatabase
from tests.support.commands import Ems, environment
from tests.support.servers import fresh_database
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
LIBRARY, COMMANDS = Path(emsworker.__file__).parent, Path(emsworker.cli.__file__).parent
_LONG = os.environ.get("EMS_TEST_LONG") == "1"
_FEW = [
    "tests/unit/test_declaring.py",
    "tests/unit/test_rights.py",
    "tests/unit/test_executor.py",
    "tests/unit/test_config.py",
]


@dataclass(frozen=True)
class Deleted:
    """What is deleted with an extension; the tests named are those that use it.

    Args:
        name: of the case.
        packages: its packages and modules.
        tests: files and folders in ``tests``.
    """

    name: str
    packages: list[str]
    tests: list[str]


def _deleted(name: str, packages: str, tests: str) -> Deleted:
    return Deleted(name, packages.split(), tests.split())


_SPARK = """
    arrow spark cli/test_help.py cli/test_terminal.py security/test_grants.py security/test_parsers.py
    alarms/test_machine.py unit/test_counted.py unit/test_extras.py unit/test_job_times.py
"""
_WEB = """
    web celery/test_operators.py cli/test_help.py extending process/test_hostile_names.py process/test_worst_night.py
    security/test_one_row.py security/test_payloads.py unit/test_options.py
"""
_ALARMS = """
    alarms/test_alarms.py flows/test_alarms.py cli/test_alarms.py cli/test_starts.py process/test_alarms.py security/test_secrets.py store/test_capped_lists.py
"""
_SCANS = "store/test_cancel.py store/test_fillers.py store/test_flat_cost.py store/test_high_watermark.py"
_TOP = """
    cli/test_help.py cli/test_looking.py cli/test_servers.py cli/test_top.py security/test_grants.py
    store/test_capped_lists.py store/test_group_states.py
"""
_MONITORING = """
    cli/test_help.py cli/test_monitoring.py extending flows/test_counts.py monitoring store/test_demand.py store/test_holds.py
    store/test_skipping.py unit/test_extras.py
"""
_DELETED = [
    _deleted("alarms", "emsworker.alarms emsworker.spark pyspark_ems", f"{_ALARMS} {_SPARK}"),
    _deleted("celery", "emsworker.integrations.celery", "celery security/test_grants.py store/test_celery_results.py"),
    _deleted("chaos", "emsworker.chaos", "cli/test_chaos.py cli/test_help.py"),
    _deleted("spark", "emsworker.spark pyspark_ems", _SPARK),
    _deleted("arrow", "emsworker.arrow emsworker.spark pyspark_ems", f"{_SPARK} {_SCANS} unit/test_options.py"),
    _deleted("http", "emsworker.http", "cli/test_help.py cli/test_starts.py http"),
    _deleted("monitoring", "emsworker.monitoring", _MONITORING),
    _deleted("top", "emsworker.top", _TOP),
    _deleted(
        "web",
        "emsworker.web emsworker.flows.operating.pages emsworker.http",
        f"{_WEB} http flows/test_pages.py flows/test_values.py flows/test_hostile.py",
    ),
    _deleted("django", "emsworker.integrations.django emsworker.django", "frameworks celery/test_django.py"),
    _deleted(
        "flows",
        "emsworker.flows",
        "cli/test_bounds.py cli/test_help.py cli/test_starts.py flows http/shop.py http/test_following.py sample "
        "security/test_grants.py",
    ),
    _deleted("flask", "emsworker.integrations.flask", "frameworks unit/test_integrations.py"),
    _deleted(
        "opentelemetry",
        "emsworker.integrations.opentelemetry",
        "process/apps/traced.py process/test_otel.py unit/test_otel.py",
    ),
    _deleted("starlette", "emsworker.integrations.starlette", "frameworks unit/test_integrations.py"),
    # Its servers are those of the tests, so these do not run without it.
    _deleted("local", "emsworker.local", ""),
]
_ENTRANCES = {
    "flows": {"app.py", "tasks/task.py", "docs/test_errors.py"},
    "web": {"flows/extension.py"},
}
"""What names an extension in a function, a declaration or for type checkers: it is read when a user asks for it."""

_IMPORT_ALL = """
import importlib, pkgutil, sys
import emsworker
from emsworker.core.errors import ExtraMissing
failed = 0
for found in pkgutil.walk_packages(emsworker.__path__, "emsworker.", onerror=lambda name: None):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ExtraMissing:
        pass
    except ImportError as error:
        if (error.name or "emsworker").startswith("emsworker"):
            failed += 1
            print(found.name, repr(error), file=sys.stderr)
sys.exit(failed > 0)
"""

# An editable installation would find in the checkout what the copy does not have.
_SITECUSTOMIZE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "__editable__" not in getattr(one, "__module__", "")]
"""

_TASKS = """
from pathlib import Path
from emsworker import Ems

app = Ems("rest")

@app.task(name="write")
def write(text):
    Path("effects.txt").write_text(text)
"""


@dataclass(frozen=True)
class Rest:
    """A copy of the library and the tests without one extension."""

    deleted: Deleted
    site: Path
    tree: Path

    def environment(self, **changes: str) -> dict[str, str]:
        environ = environment({"PYTHONPATH": str(self.site), **changes})
        # Each of many processes would compile what it imports of the copy.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        return {name: value for name, value in environ.items() if not name.startswith("PYTEST_")}

    def python(self, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=self.environment(**changes),
            cwd=self.tree,
            capture_output=True,
            text=True,
            timeout=3600 if _LONG else 300,
        )


@pytest.fixture(scope="module", params=_DELETED, ids=lambda deleted: deleted.name)
def rest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    folder = tmp_path_factory.mktemp(request.param.name)
    yield Rest(request.param, _copy_library(folder / "site", request.param), _copy_rest(folder / "tree", request.param))
    shutil.rmtree(folder)


def _copy_library(site: Path, deleted: Deleted) -> Path:
    # With what Python has compiled, which it takes for files of the same time and size.
    shutil.copytree(LIBRARY, site / "emsworker")
    shutil.copytree(Path(emsworker.cli.__file__).parent, site / "emsworker" / "cli", dirs_exist_ok=True)
    for package in deleted.packages:
        _delete(site.joinpath(*package.split(".")))
    installed, about = distribution("emsworker"), site / "emsworker-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(installed.read_text("METADATA") or "")
    (about / "entry_points.txt").write_text(_without_entries(installed.read_text("entry_points.txt") or "", deleted))
    (site / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    return site


def _copy_rest(tree: Path, deleted: Deleted) -> Path:
    tree.mkdir()
    for name in ("conftest.py", "pyproject.toml", "setup.cfg"):
        (tree / name).write_text(_without_entries((ROOT / name).read_text(), deleted))
    for name in ("docs", "sample_app", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in {"docs", *deleted.tests}:  # the documentation has pages of all
        _delete(tree / "tests" / name)
    return tree


def _without_entries(text: str, deleted: Deleted) -> str:
    """Leave out the lines of entry points that lead into what was deleted."""
    gone = "|".join(map(re.escape, deleted.packages))
    return re.sub(rf"^.*= ?({gone})[.:].*\n", "", text, flags=re.MULTILINE)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.suffix:
        path.unlink()
    else:
        path.with_suffix(".py").unlink(missing_ok=path.name == "pyspark_ems")


@cache
def _names(folder: Path) -> Mapping[Path, set[str]]:
    """Every module that each file of a folder imports, at its top or later, or names by a string."""
    files = (path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)
    return {path.relative_to(folder): set(_names_in(path)) for path in files}


def _names_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("emsworker."):
            yield node.value.partition(":")[0]


def _users(folder: Path, copy: Path, deleted: Deleted) -> list[str]:
    """Return the files that are still in a copy of a folder and name what was deleted."""
    gone = re.compile(rf"({'|'.join(map(re.escape, deleted.packages))})(\.[\w.]+)?")
    return [
        f"{path}: {name}"
        for path, names in _names(folder).items()
        if (copy / path).exists() and path.as_posix() not in _ENTRANCES.get(deleted.name, ())
        for name in names
        if gone.fullmatch(name)
    ]


def test_nothing_else_names_it(rest: Rest) -> None:
    assert _users(LIBRARY, rest.site / "emsworker", rest.deleted) == []
    assert _users(COMMANDS, rest.site / "emsworker" / "cli", rest.deleted) == []
    if rest.deleted.tests:
        assert _users(ROOT / "tests", rest.tree / "tests", rest.deleted) == []


def test_every_other_module_is_imported(rest: Rest) -> None:
    gone = rest.python("-c", f"import {rest.deleted.packages[0]}")
    assert "ModuleNotFoundError" in gone.stderr, gone
    done = rest.python("-c", _IMPORT_ALL)
    assert done.returncode == 0, done.stderr


def test_commands_and_a_worker_work(rest: Rest, server: LocalDatabase, tmp_path: Path) -> None:
    with fresh_database(server) as url:
        ems = Ems({**rest.environment(), "EMS_URL": url}, tmp_path)
        _works(ems, rest, tmp_path)


def _works(ems: Ems, rest: Rest, folder: Path) -> None:
    shown = _run(ems, "--help")
    assert "worker" in shown and ("\n  web " in shown) == (rest.deleted.name != "web")
    _run(ems, "migrate", *([] if rest.deleted.name == "celery" else ["--with", "celery"]))
    ems.write("rest.py", _TASKS)
    with ems.running("worker", "-A", "rest", "-p", "1", "-t", "1") as worker:
        worker.wait_ready()
        _run(ems, "send", "default", '["done"]', "--task", "write")
        until(
            lambda: (folder / "effects.txt").exists() and (folder / "effects.txt").read_text() == "done", 60, "the run"
        )
        assert worker.stop() == 0
        assert "is left out" not in worker.tell() and "Traceback" not in worker.tell()
    if rest.deleted.name != "web":
        with ems.running("web", "--port", "0") as web:
            until(lambda: "http://" in web.tell(), 60, "the dashboard")
            address = web.tell().partition("The dashboard is at ")[2].split()[0]
            assert "Overview" in urllib.request.urlopen(address, timeout=30).read().decode()


def _run(ems: Ems, *words: str) -> str:
    """Run a command of the copy in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "emsworker", *words],
        env=environment(ems.environ),
        cwd=ems.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "is left out" not in done.stderr, done
    return done.stdout


def test_the_tests_of_the_rest_pass(rest: Rest) -> None:
    if not rest.deleted.tests:
        pytest.skip("the tests have their servers from it")
    marks = "not alone and not few and not slow"
    servers = {name: value for name, value in os.environ.items() if name.startswith("EMS_") and name.endswith("_ROOT")}
    servers["EMS_TEST_SERVERS"] = os.environ.get("EMS_TEST_SERVERS", "mariadb,redis")
    what = ["tests", "-n", "2"] if _LONG else _FEW
    done = rest.python("-m", "pytest", "-q", "-m", marks, *what, **servers)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
