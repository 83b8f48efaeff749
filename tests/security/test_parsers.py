"""What people and programs hand over as options, cursors, predicates and calls: understood, or an error of ours."""

import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emsworker import Ems
from emsworker.admin.selection import Choice, Selection
from emsworker.arrow.options import read_options
from emsworker.broker.results import read_row
from emsworker.cli.selection import read_after
from emsworker.console.options import read_duration
from emsworker.core.alarms import Metric, Rule
from emsworker.core.codec import Decoder, encode_headers
from emsworker.core.errors import ConfigError, DecodeError, EmsError
from emsworker.core.limits import Limit
from emsworker.core.model import Message
from emsworker.core.selection.parser import parse_predicate
from emsworker.spark.options import write_options
from tests.security import nasty

_DIGITS = st.sampled_from(["0", "1", "-1", "9" * 30, "9" * 5000, "\u0663", "\u00b2", " 1 ", "1_0", "+1", "1e9", ""])


@dataclass
class _Stored:
    """What a predicate looks at, with a body of somebody else's making."""

    body: Any
    id: str = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"
    key: bytes | None = b"\xff"
    tag: bytes | None = None
    partition: int = 0
    offset: int = 1
    size: int = 1
    producer: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    born_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


_fields = st.sampled_from(
    ["id", "key", "tag", "offset", "born_at", "header('a')", "body", "body.a", "body[0]", "body.a['b']"]
)
_literals = st.one_of(
    nasty.texts.map(lambda text: "'" + text.replace("'", "''") + "'"),
    _DIGITS,
    st.sampled_from(["true", "null", "-0.0", "1e999"]),
)
_conditions = st.builds(
    "{} {} {}".format,
    _fields,
    st.sampled_from(["=", "<>", "<", ">=", "like", "in", "between", "is", "not in"]),
    _literals,
)


@nasty.few(10)
@given(nasty.texts | _conditions | st.lists(_conditions, max_size=4).map(" and not ".join), nasty.plain)
def test_predicates(text: str, body: Any) -> None:
    with suppress(EmsError):
        predicate = parse_predicate(text)
        assert predicate.matches(_Stored(body)) in (True, False)
        assert predicate.bounds is not None


def test_deep_and_long_predicates_are_refused_and_patterns_cost_little() -> None:
    for text in (
        "(" * 5000 + "tag = 'a'" + ")" * 5000,
        "not " * 5000 + "tag = 'a'",
        "tag = 'a' and " * 5000,
        "body" + ".a" * 9000,
    ):
        with pytest.raises(EmsError):
            parse_predicate(text)
    began = time.process_time()
    hard = parse_predicate("body.a like '" + "%a" * 25 + "%b'")
    assert not hard.matches(_Stored({"a": "a" * 100_000}))
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("", "", True), ("", "a", False), ("%", "", True), ("%%", "ab", True), ("_", "", False), ("_", "\n", True),
        ("a%", "ab\nc", True), ("%a", "aba", True), ("%a", "ab", False), ("a%a", "a", False), ("a%a", "aa", True),
        ("%ab%ab%", "abab", True), ("%ab%ab%", "aba", False), ("%_b%c_", "xbxcc", True), ("a_c%", "abcd", True),
        (r"\%%", "%x", True), (r"\%%", "x%", False), (r"a\_b", "a_b", True), (r"a\_b", "axb", False), (r"\\", "\\", True),
        ("%aab", "aaab", True), ("%a_b", "aaxaab", True), ("%.%", "a.b", True), ("%.%", "ab", False), ("_%_", "a", False),
    ],
)  # fmt: skip
def test_like(pattern: str, text: str, matches: bool) -> None:
    assert parse_predicate(f"body.a like '{pattern}'").matches(_Stored({"a": text})) is matches


@nasty.few(10)
@given(st.text("ab%_", max_size=7), st.text("ab", max_size=8))
def test_like_is_what_a_regular_expression_would_say(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern.replace("%", ".*").replace("_", "."), text) is not None
    assert parse_predicate(f"body.a like '{pattern}'").matches(_Stored({"a": text})) is expected


@nasty.few(6)
@given(nasty.texts | _DIGITS, nasty.texts | _DIGITS)
def test_cursors_places_and_durations_of_commands(one: str, other: str) -> None:
    for read in (read_after, read_duration):
        for text in (one, f"{one}/{other}"):
            with suppress(click.BadParameter):
                read(None, None, text)  # type: ignore[arg-type]
    with suppress(EmsError):
        Choice(Selection(start=one, end=other, keys=(one,), tags=(other,), where=None))


@nasty.few(6)
@given(nasty.names, st.sampled_from([*Metric]), nasty.numbers, nasty.texts | st.just("http://["), nasty.texts)
def test_alarm_rules_and_limits(name: str, metric: Metric, number: Any, webhook: str, command: str) -> None:
    with suppress(EmsError):
        Rule(name, metric, number, number, number, webhook=webhook, command=command)
    for rate in (name, f"{number}/s", f"{webhook}/m"):
        with suppress(EmsError):
            assert Limit(rate, number).capacity >= 1


_places = st.dictionaries(nasty.names, st.dictionaries(_DIGITS, nasty.plain, max_size=2) | nasty.plain, max_size=2).map(
    json.dumps
)
_OPTIONS = [
    "subscribe", "subscribePattern", "assign", "dataset", "startingOffsets", "endingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "minPartitions", "fetchBytes", "maxTriggerDelay", "maxOffsetsPerTrigger", "topic", "jobId",
]  # fmt: skip


@nasty.few(10)
@given(
    st.dictionaries(st.sampled_from(_OPTIONS) | nasty.texts, nasty.texts | _places | _DIGITS, max_size=4), st.booleans()
)
def test_options_of_spark(given: dict[str, str], streaming: bool) -> None:
    for read in (read_options, write_options):
        more = {"overwrite": False} if read is write_options else {}
        with suppress(ConfigError):
            read(given, streaming=streaming, **more)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["assign", "startingOffsets"])
def test_deep_options_of_spark(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_options({"subscribe": "a", name: '{"a":' * 100_000}, streaming=True)


app = Ems("parsers")


@app.task(name="double")
def double(n: int = 0, **more: Any) -> int:
    return 2 * n


@nasty.few(8)
@given(nasty.plain)
def test_calls_that_are_none(body: Any) -> None:
    if isinstance(body, list) and len(body) == 2 and isinstance(body[0], list) and isinstance(body[1], dict):
        return
    message = Message(
        "t",
        0,
        (1, bytes(16), None, None, encode_headers({}), json.dumps(body).encode(), "2026-01-01"),
        Decoder(("json",)),
    )
    with pytest.raises(DecodeError, match="not a call of a task"):
        double.call(message)


@nasty.few(6)
@given(st.lists(nasty.raw | nasty.plain.map(lambda one: json.dumps(one).encode()), min_size=1, max_size=5))
def test_results_that_somebody_else_wrote_into_redis(spoiled: list[bytes]) -> None:
    for value in spoiled:
        with suppress(DecodeError):
            row = read_row(bytes(16), value)
            assert row.body is None or isinstance(row.body, bytes)
