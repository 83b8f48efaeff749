"""Figures and generated parts of the documentation agree with their source."""

import dataclasses
import re
from pathlib import Path

import pytest

from bench.publish_docs import PARTS, Part
from docs import hooks
from emsworker.core.config import Settings
from emsworker.core.model import Outcome
from tests.docs.snippets import ROOT
from tests.support.worker import LIBRARY

LOGGED = re.compile(
    r"^ *(log\.(?:info|warning|error|exception|log)\(\s*[^\n]*|(?:self\.|\w+\.)_?trouble\.note\([^\n]*)", re.MULTILINE
)


@pytest.mark.parametrize(
    ("part", "page"), [(part, page) for part in PARTS for page in part.pages], ids=lambda found: found.name
)
def test_the_tables_of_figures_are_those_of_the_committed_result(part: Part, page: Path) -> None:
    found = part.marked.search(page.read_text())
    assert found is not None
    assert found[0] == part.text()
    assert not part.file.exists() or found[0].count("|") > 20


def test_the_settings_table_has_every_setting() -> None:
    table = hooks.settings_table()
    for item in dataclasses.fields(Settings):
        assert f"| `{item.name}` | `EMS_{item.name.upper()}` |" in table


def test_the_tables_page_has_every_table_of_the_migrations() -> None:
    page = hooks.tables()
    scripts = [path.read_text() for path in LIBRARY.glob("**/migrations/*.sql")]
    assert page.count("### ems_") == sum(script.count("CREATE TABLE") for script in scripts) > 10
    explained = (ROOT / "docs" / "reference" / "tables.md").read_text()
    for name in hooks._create_statements():
        assert f"| `{name}` |" in explained


def test_the_events_page_has_every_outcome_metric_hook_and_log_line() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text()
    named = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert [name for name in named if not name.startswith("ems_")] == [one.value for one in Outcome]
    for name in ("before_publish", "after_run", "on_process_stop"):
        assert f"| `{name}` |" in hooks.events_table()
    for name in ("ems_sent_total", "ems_runs_total", "ems_run_seconds", "ems_retries_total", "ems_dead_total"):
        assert f"| `{name}` |" in hooks.metrics_table()
    lines = hooks.log_table()
    assert "| warning | `emsworker.consume.attempts` | `{}: attempt {} of {} {}, {}: {} ({}){}` |" in lines
    sources = [path.read_text() for path, _ in hooks.library_modules()]
    assert lines.count("\n") - 1 == len({call for text in sources for call in LOGGED.findall(text)})


def test_every_mark_of_a_generated_part_is_known() -> None:
    marks = {
        line
        for page in (ROOT / "docs").rglob("*.md")
        for line in page.read_text().splitlines()
        if "<!-- generated" in line
    }
    assert marks == set(hooks.GENERATED)
