"""Log records of attempts and of handlers, as text and as JSON."""

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from emsworker import Ems, Ignore, Message
from emsworker.consume.attempts import AttemptRecord, one_line
from emsworker.core.durations import span_text
from emsworker.core.model import Failure, Outcome
from emsworker.observe.logs import JsonFormatter, MessageFields, TextFormatter

ATTEMPT = AttemptRecord("orders", 0, 42, "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70", "charge", "billing", 1, 3)
FAILED = Failure(42, 1, Outcome.FAILED, "Traceback:\nValueError: no", 10.5, None, 0.012)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a handler with the JSON formatter writes."""
    stream, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("failure", "level", "text"),
    [
        (FAILED, "WARNING", "charge: attempt 1 of 3 failed after 12 ms, again in 10.5 s: ValueError: no"),
        (replace(FAILED, retry_in_s=None, dead="why"), "ERROR", "1 of 3 failed after 12 ms, now a dead letter: Val"),
        (replace(FAILED, outcome=Outcome.ORPHANED, ran_s=None), "WARNING", "attempt 1 of 3 lost its worker, again in"),
        (replace(FAILED, outcome=Outcome.IGNORED, retry_in_s=None), "INFO", "12 ms, it is not run again: ValueError"),
        (replace(FAILED, retry_in_s=None), "ERROR", "failed after 12 ms, it is not run again: ValueError: no"),
    ],
)
def test_one_line_an_attempt(failure: Failure, level: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ATTEMPT.log_failure(failure, "ValueError: no")
    (record,) = caplog.records
    assert record.levelname == level and text in record.getMessage()
    assert f"(orders/0@42, group billing, {ATTEMPT.id})" in record.getMessage()
    assert ("Traceback" in record.getMessage()) == (level == "ERROR")
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        ATTEMPT.log_failure(failure, "ValueError: no")
    assert "Traceback" in caplog.text


def test_errors_are_one_line_without_passwords() -> None:
    class _Away(Exception):
        pass

    assert one_line(ValueError("mysql://u:secret@h\nmore")) == "ValueError: mysql://u:***@h"
    assert one_line(KeyError()) == "KeyError" and one_line(Ignore("x")) == "Ignore: x"
    assert one_line(_Away("\n\n gone")).endswith("Away: gone")


def test_what_a_handler_logs_hides_passwords() -> None:
    given = logging.LogRecord("mine", logging.INFO, "", 1, "mysql://u:secret@%s", ("h",), None)
    given.dsn = "redis://:secret@h"
    for formatter in (TextFormatter(), JsonFormatter()):
        text = formatter.format(given)
        assert "mysql://u:***@h" in text and "secret" not in text


def test_json_is_json_whatever_is_logged(lines: io.StringIO) -> None:
    log = logging.getLogger("mine")
    try:
        raise ValueError("é")
    except ValueError:
        log.exception("%s failed", "it", extra={"nan": float("nan"), "thing": object, "fine": [1], "level": "mine"})
    (line,) = read(lines)
    assert (line["message"], line["level"], line["fine"], line["nan"]) == ("it failed", "error", [1], "nan")
    assert line["traceback"].startswith("Traceback") and "task" not in line


def test_a_handlers_own_lines_name_its_message(lines: io.StringIO) -> None:
    app, log = Ems("shop", url="mysql://u:p@localhost/shop"), logging.getLogger("mine")

    @app.task(name="plain")
    def plain() -> None:
        log.info("plain")

    @app.task(name="coroutine")
    async def coroutine(number: int) -> None:
        await asyncio.sleep(0)
        await asyncio.to_thread(log.info, "coroutine %d", number)

    @app.task(name="keyed", topic="in-order", order="key")
    def keyed() -> None:
        log.info("keyed")

    @app.subscribe("batches", group="g", batch=2)
    def batch(messages: list[Message]) -> None:
        log.info("batch")

    with app.test() as test:
        plain.delay()
        coroutine.delay(1), coroutine.delay(2)
        keyed.apply_async(key="a", headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
        app.send_many("batches", [1, 2])
        test.run()
        ids = {message.offset: message.id for message in test.sent if message.topic == "default"}
    log.info("outside")
    own = {line["message"]: line for line in read(lines) if line["logger"] == "mine"}
    assert own["plain"].items() >= {"task": "plain", "topic": "default", "group": "workers", "attempt": 1}.items()
    assert [own[f"coroutine {one}"]["id"] for one in (1, 2)] == [ids[2], ids[3]]
    assert (own["keyed"]["task"], own["keyed"]["trace_id"]) == ("keyed", "ab" * 16)
    assert own["batch"].items() >= {"offset": 1, "last_offset": 2, "group": "g"}.items() and "id" not in own["batch"]
    assert own["batch"]["task"].endswith("batch") and "task" not in own["outside"]


def test_text_begins_with_what_runs(lines: io.StringIO) -> None:
    app, log = Ems("shop"), logging.getLogger("mine")
    (handler,) = (one for one in logging.getLogger().handlers if getattr(one, "stream", None) is lines)
    handler.setFormatter(TextFormatter())

    @app.task(name="plain", max_attempts=2, ladder="1s")
    def plain() -> None:
        log.info("plain %d", 1)
        raise ValueError

    @app.task(name="coroutine")
    async def coroutine(number: int) -> None:
        await asyncio.to_thread(log.info, "coroutine %d", number)

    @app.subscribe("batches", group="g", batch=2)
    def batch(messages: list[Message]) -> None:
        log.info("batch")

    with app.test() as test:
        first, second, third = plain.delay().id, coroutine.delay(1).id, coroutine.delay(2).id
        app.send_many("batches", [1, 2])
        test.run()
        test.advance(60)
        test.run()
    log.info("outside")
    own = {line.partition(" mine: ")[2] for line in lines.getvalue().splitlines()} - {""}
    task = batch.name
    assert own == {
        f"[plain {first} attempt 1] plain 1",
        f"[plain {first} attempt 2] plain 1",
        f"[coroutine {second} attempt 1] coroutine 1",
        f"[coroutine {third} attempt 1] coroutine 2",
        f"[{task} batches/0@1-2] batch",
        "outside",
    }
    assert f"[plain {first}" not in "".join(one for one in lines.getvalue().splitlines() if "plain: attempt" in one)


def test_the_filter_fills_formats_of_ones_own() -> None:
    record = logging.makeLogRecord({"msg": "x"})
    assert MessageFields().filter(record)
    assert logging.Formatter("%(task)s %(message)s").format(record) == "None x"


def test_spans_are_short() -> None:
    spans = [0.00031, 0.0123, 0.99951, 1.234, 59.96, 125, 3600, 3725, 90000]
    texts = ["0.31 ms", "12.3 ms", "1 s", "1.23 s", "1 m", "2 m 5 s", "1 h", "1 h 2 m", "1 d 1 h"]
    assert [span_text(one) for one in spans] == texts


def test_no_error_of_a_handler_controls_the_terminal_that_shows_the_log() -> None:
    try:
        raise ValueError("\x1b[31mred\r\x9b")
    except ValueError:
        record = logging.makeLogRecord({"msg": "no \x07", "exc_info": sys.exc_info(), "levelname": "ERROR"})
    text = TextFormatter().format(record)
    assert "no \\x07\n  Traceback" in text and text.endswith("\n  ValueError: \\x1b[31mred\\r\\x9b")
    assert json.loads(JsonFormatter().format(record))["traceback"].endswith("ValueError: \x1b[31mred\r\x9b")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_long_record_loses_its_middle(formatter: logging.Formatter) -> None:
    more = {"task": "t" * 1_000_000, "details": "", "list": [1] * 100_000}
    text = formatter.format(logging.makeLogRecord({"msg": "begin" + "\x00" * 1_000_000 + "end", **more}))
    assert len(text) < 66_000 and "begin" in text and "end" in text and "characters are left out" in text
