"""What an operator reads of a worker: the banner, failed attempts, dead letters and the end, as text and as JSON."""

import json
import re
from typing import Any

import pytest

from tests.docs.snippets import ROOT, blocks
from tests.support.commands import Ems, wait_for

PAGE = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "logs.md") if block.title}
_MASKS = (
    (r"mysql://\S+", "URL"),
    (r"(MariaDB|MySQL) \S+", "SERVER"),
    (r"worker \S+$", "worker NAME"),
    (r'File "[^"]+"', "FILE"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"),
    (r"\d[\d.,:]*", "N"),
    (r"N (ms|s|m)\b( N s)?", "SPAN"),
)


def masked(text: str) -> list[str]:
    """The lines with everything that differs from run to run masked."""
    for pattern, name in _MASKS:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text.splitlines()


def log_of(ems: Ems, *options: str) -> tuple[str, str]:
    """Run the page's app, one message well and one to its death; return what the worker printed and logged."""
    ems.write("app.py", PAGE["app.py"])
    with ems.running("worker", "-A", "app", "--processes", "1", "--threads", "1", "--log-done", *options) as worker:
        worker.wait_ready()
        ems.ok("send", "default", "[2]", "--task", "charge")
        ems.ok("send", "default", "[3]", "--task", "charge")
        wait_for(lambda: "now a dead letter" in worker.err.read_text(), worker.tell)
        wait_for(lambda: ems.ok("groups", "list", "--json").json[0]["dead"] == 1, worker.tell)
        assert worker.stop() == 0
        return worker.out.read_text(), worker.err.read_text()


def test_the_lines_are_those_of_the_page(ems: Ems, url: str) -> None:
    out, err = log_of(ems)
    written, shown = masked(err), masked(PAGE["what the worker logs"])
    assert [line for line in shown if line not in written] == [], err
    assert err.count("Traceback") == 1, "only the dead letter's"
    assert url.split(":")[2].split("@")[0] not in out + err
    assert out.startswith("Ready: ")


def test_json_has_the_same_in_fields(ems: Ems) -> None:
    out, err = log_of(ems, "--log-format", "json")
    assert json.loads(out)["message"].startswith("Ready: shop with 1 x 1 thread")
    lines = [json.loads(line) for line in err.splitlines()]
    by_logger: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        assert {"time", "level", "message", "process"} <= line.keys()
        by_logger.setdefault(line["logger"], []).append(line)
    (banner,) = by_logger["emsworker.worker.banner"]
    assert banner["consumes"] == ["default/workers, timeout 60 s: charge"] and banner["processes"] == "1 x 1 thread"
    assert "\n" not in banner["message"]
    place = {"topic": "default", "partition": 0, "offset": 2, "task": "charge", "group": "workers"}
    own = [line for line in by_logger["shop"] if line["message"] == "charging order 3"]
    assert [line.items() >= (place | {"attempt": attempt}).items() for attempt, line in enumerate(own, 1)] == [True] * 2
    done, retried, dead = by_logger["emsworker.consume.attempts"]
    assert (done["level"], done["offset"], done["outcome"]) == ("info", 1, "done")
    assert retried.items() >= (place | {"level": "warning", "attempt": 1, "attempts": 2}).items()
    assert retried["next_at"] > retried["time"] and 0.2 <= retried["retry_in_s"] <= 0.22
    assert "traceback" not in retried and retried["error"] == "ConnectionError: the bank is away"
    assert dead.items() >= (place | {"level": "error", "attempt": 2, "dead": "used up its 2 attempts"}).items()
    assert dead["traceback"].startswith("Traceback") and "\n" not in dead["message"]
    assert dead["id"] == retried["id"] == own[0]["id"]
    assert [lines[-1][name] for name in ("messages", "failed_attempts", "dead_letters")] == [3, 2, 1]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_beat_says_where_it_runs_and_that_it_ended(ems: Ems, form: str) -> None:
    with ems.running("beat", "--log-format", form) as beat:
        beat.wait_ready()
        assert beat.stop() == 0
    first, *_, last = beat.err.read_text().splitlines()
    if form == "json":
        first, last = json.loads(first)["message"], json.loads(last)["message"]
    assert first.endswith("EMS 0.1.0, beat") and "stopped after " in last


def test_only_the_processes_that_load_the_app_log_by_its_configuration(ems: Ems) -> None:
    ems.write("own.py", PAGE["own.py"])
    ems.write(
        "told.py", "import logging\nfrom own import app\n@app.task\ndef hear(n):\n    logging.info('heard %s', n)\n"
    )
    with ems.running("worker", "-A", "told", "--processes", "1") as worker:
        worker.wait_ready()
        ems.ok("send", "default", "[2]", "--task", "told.hear")
        wait_for(lambda: re.search(r"^INFO told.hear \S+ heard 2$", worker.err.read_text(), re.MULTILINE), worker.tell)
        assert worker.stop() == 0
    assert re.search(r"^\d{4}-.* emsworker\.worker\.supervisor: stopped after ", worker.err.read_text(), re.MULTILINE)
