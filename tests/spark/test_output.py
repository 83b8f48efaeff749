"""What a report looks like on a terminal, in files and as a page: no Spark is started."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

from emsworker.core.errors import ConfigError
from emsworker.spark import commands as command
from emsworker.spark.jobs.job import Job, JobResult, Options
from emsworker.spark.jobs.output import as_json, as_text, write
from emsworker.spark.jobs.report import Chart, JobReport, Table

HOSTILE = "</title></style></svg><script>alert(1)</script>\"' onload=x&amp;<b"
NOW = datetime(2026, 11, 21, 8, 30, 0, 250_000, tzinfo=UTC)


def report() -> JobReport:
    groups = Table(
        "groups",
        f"Groups of {HOSTILE}",
        ("group", "lag", "share", "at", "names", HOSTILE),
        [(HOSTILE, 1200, 0.5, NOW, ["a", HOSTILE], None), ("bäd\nnäme", 7, None, NOW, [], b"\xff<")],
    )
    charts = [
        Chart(f"Lag {HOSTILE}", "bar", [HOSTILE, "b"], {HOSTILE: [120.0, 7.0], "none": [None, None]}),
        Chart("Rate", "line", ["1", "2", "3", "4"], {"g": [1.0, None, 2.0, 3.0]}),
        Chart("Empty", "line", [], {}),
    ]
    return JobReport(HOSTILE, [groups, Table("empty", "Nothing found", ("a",), [])], charts)


class Page(HTMLParser):
    """Elements, their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def html(tmp_path: Path) -> str:
    (path,) = write(report(), "html", tmp_path / "deep" / "page.html", {"topic": HOSTILE, "messages": 3})
    return path.read_text(encoding="utf-8")


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    text = html(tmp_path)
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {
        tag for tag, _ in page.elements
    }
    for tag, attributes in page.elements:
        assert not {"src", "href", "xlink:href", "srcset", "onload", "onclick"} & attributes.keys(), (tag, attributes)
    assert "url(" not in text and "@import" not in text
    assert len(page.named("style")) == 1 and page.named("meta")[0] == {"charset": "utf-8"}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    text = html(tmp_path)
    page = Page(text)
    assert page.texts.count(HOSTILE) >= 4, "the title, a heading, a cell and the name of a column"
    assert page.texts.count(f"Groups of {HOSTILE}") == 1
    assert {"aria-label": f"Lag {HOSTILE}"}.items() <= page.named("svg")[0].items()
    assert "<script" not in text
    assert "bäd\nnäme" in page.texts


def test_the_charts_are_svg_in_the_page(tmp_path: Path) -> None:
    text = html(tmp_path)
    drawn = list(svgs(text))
    assert len(drawn) == 2, "an empty chart is said to be empty"
    bars, line = drawn
    heights = [float(rect.attrib["height"]) for rect in bars.iter("rect")]
    assert len(heights) == 2 and heights[0] / heights[1] == pytest.approx(120 / 7, rel=0.1)
    runs = [element.attrib["points"].split() for element in line.iter("polyline")]
    assert [len(points) for points in runs] == [1, 2], "a gap breaks the line"
    assert all(0 <= float(x) <= 860 and 0 <= float(y) <= 280 for p in runs for x, y in (q.split(",") for q in p))
    assert [hint.text for hint in line.iter("title")] == ["g, 1: 1", "g, 3: 2", "g, 4: 3"]


def test_a_chart_shows_values_that_are_far_apart_and_long_labels(tmp_path: Path) -> None:
    labels = ["orders-of-the-north / billing-and-invoices", *(f"topic-{n} / group" for n in range(5))]
    chart = Chart("Run time", "bar", labels, {"p50": [1.0, 5.0, 640.0, 10.0, None, 70000.0]})
    table = Table("t", "T", ("id", "n", "share"), [("12345", 1234567, 1234.5), ("x", -1234, None)])
    (path,) = write(JobReport("R", [table], [chart]), "html", tmp_path / "page.html", {})
    text = path.read_text(encoding="utf-8")
    (drawn,) = svgs(text)
    heights = [float(rect.attrib["height"]) for rect in drawn.iter("rect")]
    assert min(heights) > 4 and max(heights) == heights[4]
    assert heights[1] - heights[0] == pytest.approx((heights[4] - heights[0]) * 0.699 / 4.845, abs=0.2)
    left, top, width, height = map(float, drawn.attrib["viewBox"].split())
    first = next(one for one in drawn.iter("text") if one.attrib.get("transform"))
    assert first.text is not None and first.text.endswith("…")
    assert float(first.attrib["x"]) - 6 * len(first.text) * 0.906 >= left
    assert float(first.attrib["y"]) + 6 * len(first.text) * 0.423 <= top + height and left + width == 860
    assert {"1,234,567", "1,234.5", "-1,234", "12345"} <= set(Page(text).texts)


def svgs(text: str) -> Iterator[ElementTree.Element]:
    """The charts, by a parser that forgives nothing."""
    for part in text.split("<svg")[1:]:
        yield ElementTree.fromstring("<svg" + part[: part.index("</svg>") + len("</svg>")])


def test_csv_parquet_and_json_have_every_value(tmp_path: Path) -> None:
    paths = write(report(), "csv", tmp_path / "csv", {})
    assert [path.name for path in paths] == ["groups.csv", "empty.csv"]
    with paths[0].open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["group", "lag", "share", "at", "names", HOSTILE]
    assert rows[1] == [HOSTILE, "1200", "0.5", "2026-11-21T08:30:00.250000+00:00", json.dumps(["a", HOSTILE]), ""]
    assert rows[2][0] == "bäd\nnäme" and rows[2][5] == "\\xff<"
    one = JobReport("one", [Table("t", "T", ("n", "at", "names"), [(1, NOW, ["a"]), (None, None, [])])])
    (path,) = write(one, "parquet", tmp_path / "one.parquet", {})
    assert parquet.read_table(path).to_pylist() == one.tables[0].records()
    (path,) = write(report(), "json", tmp_path / "r.json", {"messages": 3, "at": NOW})
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found == json.loads(as_json(report(), {"messages": 3, "at": NOW}))
    assert (found["messages"], found["at"]) == (3, "2026-11-21T08:30:00.250000+00:00")
    assert found["tables"]["groups"][0]["group"] == HOSTILE and found["tables"]["empty"] == []


def test_a_table_on_a_terminal_is_aligned() -> None:
    rows = [("a", 1200, 0.25, NOW), ("long\nname", 7, None, None)]
    table = Table("t", "Groups", ("group", "lag_now", "share", "at"), rows)
    assert as_text(JobReport("R", [table, Table("e", "Dead", ("a",), [])])).splitlines() == [
        "Groups",
        "GROUP        LAG NOW  SHARE  AT",
        "a               1200   0.25  2026-11-21 08:30:00.250Z",
        "long | name        7      -  -",
        "",
        "Dead",
        "  (nothing)",
    ]


def test_text_in_a_file_is_whole(tmp_path: Path) -> None:
    (path,) = write(JobReport("R", [Table("t", "T", ("text",), [("x" * 500,)])]), "table", tmp_path / "r.txt", {})
    assert "x" * 500 in path.read_text()


def test_a_path_that_cannot_be_written_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--output = .*file/page\.html: cannot be written"):
        write(report(), "html", tmp_path / "file" / "page.html", {})


# -- the command around it ---------------------------------------------------------------------------------------------


def run(result: JobResult, *arguments: str) -> Any:
    """A job that does nothing but to give this result, by its command."""
    job = Job("probe", Options, lambda spark, config: result, lambda config: False)
    return CliRunner().invoke(command.command_of(job, "Try."), list(arguments))


def test_the_formats_of_the_command(tmp_path: Path) -> None:
    result = JobResult({"messages": 3, "at": NOW, "none": None}, report())
    done = run(result)
    assert done.exit_code == 0 and "Nothing found\n  (nothing)" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[-7:]] == [
        "job", "started", "seconds", "dry", "messages", "at", "none",
    ]  # fmt: skip
    summary = json.loads(run(result, "--json").stdout)
    assert (summary["job"], summary["messages"], summary["dry_run"]) == ("probe", 3, False)
    assert "tables" not in summary and "tables" in json.loads(run(result, "--format", "json").stdout)
    for format in ("csv", "parquet", "html"):
        done = run(result, "--format", format)
        assert done.exit_code == 2 and f"--format {format} makes files; say where with --output." in done.stderr
    done = run(result, "--format", "html", "--output", str(tmp_path / "p.html"), "--json")
    assert json.loads(done.stdout)["written"] == [str(tmp_path / "p.html")]
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")


def test_exit_codes_of_the_command() -> None:
    done = run(JobResult({"errors": 2}, None, "2 errors were found"))
    assert (done.exit_code, done.stderr) == (1, "Error: 2 errors were found\n")
    assert run(JobResult({}), "--colour", "red").exit_code == 2
    assert run(JobResult({}), "--format", "pdf").exit_code == 2
    done = run(JobResult({}), "--conf", "no-equals-sign")
    assert done.exit_code == 2 and "'no-equals-sign' must be NAME=VALUE." in done.stderr
    told: list[str] = []

    def half(spark: Any, config: Options) -> JobResult:
        config.progress("half")
        return JobResult({})

    job = Job("probe", Options, half, lambda config: False)
    for arguments in ([], ["--quiet"]):
        told.append(CliRunner().invoke(command.command_of(job, "Try."), arguments).stderr)
    assert told == ["half\n", ""]
    assert isinstance(command.command_of(job, "Try."), click.Command)
