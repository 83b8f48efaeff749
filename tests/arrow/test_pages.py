"""Reports as pages in a real browser: everything fits, and the pictures of the documentation.

``EMS_TEST_WRITE_IMAGES=1`` writes the pictures anew (docs/img).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.spark.worked import Worked, worked_stream
from tests.support.browser import browser, set_scheme, set_width
from tests.support.servers import TestServers, few_flavors

__all__ = ["browser"]

pytest.importorskip("polars")
pytestmark = pytest.mark.slow
IMAGES = Path(__file__).parents[2] / "docs" / "img"
OPTIONS = {"latency": {}, "lag": {"every": 0.2, "topic": ("orders", "invoices", "mails")}}
# Texts of charts outside of their drawing, and tables wider than their place.
_CUT = """
return [...document.querySelectorAll("svg text")].filter((one) => {
  const box = one.getBoundingClientRect(), around = one.closest("svg").getBoundingClientRect();
  return box.left < around.left - 1 || box.right > around.right + 1 || box.bottom > around.bottom + 1;
}).map((one) => one.textContent).concat(
  [...document.querySelectorAll(".wide")].filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)
);
"""


@pytest.fixture(scope="module", params=few_flavors())
def worked(
    request: pytest.FixtureRequest, servers: TestServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worked]:
    with worked_stream(servers.database(request.param), tmp_path_factory.mktemp("worked")) as made:
        yield made


@pytest.mark.parametrize("name", OPTIONS)
def test_a_report_fits_its_page_and_its_picture_is_in_the_documentation(
    worked: Worked, browser: webdriver.Chrome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    from emsworker.spark.jobs import load
    from emsworker.spark.jobs.output import write

    monkeypatch.setenv("EMS_URL", worked.stream.url)
    job = load(name)
    result = job.run(None, job.options(**OPTIONS[name]))
    assert result.report is not None
    (page,) = write(result.report, "html", tmp_path / f"{name}.html", result.summary)
    for scheme in ("dark", "light"):
        set_scheme(browser, scheme)
        set_width(browser, 1180, 900)
        browser.get(f"file://{page}")
        assert len(browser.find_elements("tag name", "svg")) == len(result.report.charts) > 0
        assert browser.execute_script(_CUT) == []
    folder = IMAGES if os.environ.get("EMS_TEST_WRITE_IMAGES") else tmp_path
    assert browser.save_screenshot(str(folder / f"report-{name}.png"))
    assert 10_000 < (IMAGES / f"report-{name}.png").stat().st_size < 150_000
