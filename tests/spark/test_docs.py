"""The snippets of the pages about Spark."""

import os
import sys
from pathlib import Path

import pytest

from tests.docs import snippets
from tests.docs.snippets import ROOT, Reader, needs_spark, pages
from tests.spark.conftest import SETTINGS, spark_environment
from tests.support.streams import Stream

_PAGES = [page for page in pages() if needs_spark(page)]


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(ROOT)) for page in _PAGES])
def test_every_snippet_of_the_page_runs(
    page: Path, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snippets, "_BLOCK_S", 180.0)  # each block starts a Java of its own
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in SETTINGS.items()))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    paths = os.pathsep.join([str(Path(sys.executable).parent), plain.get("PATH", "")])
    environment = plain | spark_environment() | {"PATH": paths, "EMS_URL": stream.url}
    environment["SPARK_CONF_DIR"] = str(tmp_path)
    Reader(tmp_path, environment, lambda: stream.url).follow(page)
