"""The snippets of the pages about Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, blocks, needs_spark, pages
from tests.spark.conftest import SETTINGS, spark_environment
from tests.support.streams import Stream

_PAGES = [page for page in pages() if needs_spark(page)]


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(ROOT)) for page in _PAGES])
def test_the_snippets_of_the_page_run_and_print_what_it_says(page: Path, stream: Stream, tmp_path: Path) -> None:
    """In one process, as in a notebook: each start of Java takes seconds."""
    found = blocks(page)
    assert {block.language for block in found} <= {"python", "text", "console", "ini"}
    code = "\n".join(block.text for block in found if block.language == "python")
    expected = "".join(block.text for block in found if (block.language, block.title) == ("text", "prints"))
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in SETTINGS.items()))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    environment = plain | spark_environment() | {"EMS_URL": stream.url, "SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == expected
