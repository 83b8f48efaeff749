"""Pages that promise versions and trust: what they name exists, and what they promise is what the project does."""

import ast
import re
from configparser import ConfigParser
from pathlib import Path

from tests.docs.snippets import ROOT
from verification.celery.sources import CELERY, KOMBU

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_PLATFORMS = ROOT / "docs" / "how-to" / "platforms.md"


def _config() -> ConfigParser:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def _row(name: str) -> str:
    (row,) = [line for line in _PLATFORMS.read_text().splitlines() if line.startswith(f"| {name}")]
    return row


def _tests_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {one.name for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_line_of_trust_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "discussions" / "threats.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| party"))]
    named = [_TEST.findall(row) for row in rows]
    assert len(rows) > 30
    assert [row for row, found in zip(rows, named, strict=True) if not found] == []
    missing = [
        f"{file}::{test}"
        for found in named
        for file, test in found
        if not (ROOT / file).is_file() or test not in _tests_of(ROOT / file)
    ]
    assert missing == []


def test_the_parties_of_the_list_of_trust_are_the_roles_and_more() -> None:
    page = (ROOT / "docs" / "discussions" / "threats.md").read_text().lower()
    for party in ("publisher", "producer", "worker", "beat", "celery", "viewer", "reader", "operator", "sink", "admin"):
        assert re.search(rf"\b{party}\b", page), party


def test_the_versions_of_python_are_those_of_the_package() -> None:
    classifiers = re.findall(r"Python :: (3\.\d+)", _config()["metadata"]["classifiers"])
    assert set(re.findall(r"3\.\d+", _row("Python"))) == set(classifiers)
    newest = re.search(r"^python_next=(\S+)$", (ROOT / "dev").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == classifiers[-1]


def test_the_versions_of_celery_are_those_whose_suites_are_run() -> None:
    row = _row("Celery")
    for sources in (CELERY, KOMBU):
        assert {one.version.rpartition(".")[0] for one in sources} == set(re.findall(r"\b5\.\d\b", row))
    script = (ROOT / "dev").read_text()
    assert all(f"test_celery --celery {minor}" in script for minor in ("5.6", "5.5"))


def test_the_oldest_packages_are_those_of_the_package() -> None:
    config = _config()
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| (always|extra `(\w+)`)", _PLATFORMS.read_text(), re.MULTILINE)
    assert len(rows) > 10
    for name, oldest, when, extra in rows:
        wanted = config["options.extras_require"][extra] if extra else config["options"]["install_requires"]
        assert re.search(rf"^{name}(\[\w+\])?>={re.escape(oldest)}(,|$)", wanted, re.MULTILINE), (name, oldest, when)
    always = {name for name, _, when, _ in rows if when == "always"}
    assert always == {re.split(r"[\[>]", line)[0] for line in config["options"]["install_requires"].split()}


def test_the_commands_of_dev_that_the_page_names_exist() -> None:
    usage = (ROOT / "dev").read_text().partition("cat <<'END'")[2].partition("\nEND")[0]
    named = set(re.findall(r"`\./dev ([\w-]+)", _PLATFORMS.read_text()))
    assert {"test-python", "test-mariadb", "test-django", "test-celery", "test-airflow"} <= named
    assert all(f"\n  {command} " in usage for command in named)
