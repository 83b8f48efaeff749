"""The snippets of the pages about Spark."""

import os
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, Reader, needs_spark, pages
from tests.spark.conftest import spark_environment
from tests.support.streams import Stream

_PAGES = [page for page in pages() if needs_spark(page)]


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(ROOT)) for page in _PAGES])
def test_every_snippet_of_the_page_runs(page: Path, stream: Stream, tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    paths = os.pathsep.join([str(Path(sys.executable).parent), plain.get("PATH", "")])
    Reader(tmp_path, plain | spark_environment() | {"PATH": paths, "EMS_URL": stream.url}, lambda: stream.url).follow(
        page
    )
