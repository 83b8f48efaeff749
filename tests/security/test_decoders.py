"""Everything that reads text or bytes of the outside: it understands them, or raises an error of ours. Nothing else."""

import json
import os
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emsworker.admin.dead import parse_place
from emsworker.consume.executor import refuse_expired
from emsworker.core.budget import Budget
from emsworker.core.codec import Decoder, decode_headers, encode_body, encode_headers
from emsworker.core.config import Settings
from emsworker.core.durations import parse_duration
from emsworker.core.errors import ConfigError, DecodeError, EmsError, Ignore
from emsworker.core.ids import check_name, encode_key, parse_uid
from emsworker.core.ladder import Ladder
from emsworker.core.model import Message
from emsworker.core.process.scratch import open_scratch, read_scratch
from emsworker.core.schedule import parse_timetable
from emsworker.core.selection.filters import Filter
from emsworker.core.url import DatabaseUrl, redact
from emsworker.worker.child_spec import ChildSpec
from tests.security import nasty

_ALL = Decoder(("json", "msgpack", "yaml"), Budget(10_000))
_TYPES = ["application/json", "application/x-msgpack", "application/x-yaml", "text/plain", "application/data", "?"]
_PACKED = ["application/x-gzip", "application/x-bz2", "application/x-lzma", "application/zstd", "?"]
_ENCODINGS = ["utf-8", "binary", "zlib", "?"]


def _spoil(raw: bytes, cuts: list[tuple[int, int]]) -> bytes:
    """Some bytes with others in their place."""
    spoiled = bytearray(raw)
    for place, value in cuts:
        if spoiled:
            spoiled[place % len(spoiled)] = value
    return bytes(spoiled)


@nasty.few(8)
@given(
    raw=nasty.raw | nasty.plain.map(lambda body: json.dumps(body).encode()),
    body=nasty.plain,
    how=st.sampled_from(["json", "msgpack", "yaml"]),
    packed=st.sampled_from([None, "zlib", "bzip2", "lzma", "zstd"]),
    cuts=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    headers=st.fixed_dictionaries(
        {},
        optional={
            "content-type": st.sampled_from(_TYPES) | nasty.texts,
            "compression": st.sampled_from(_PACKED) | nasty.texts,
            "content-encoding": st.sampled_from(_ENCODINGS) | nasty.texts,
        },
    ),
)
def test_bodies(raw: bytes, body: Any, how: str, packed: Any, cuts: Any, headers: dict[str, str]) -> None:
    try:
        made, own = encode_body(body, how, packed)
    except EmsError:
        made, own = raw, {}
    for attempt, said in ((raw, headers), (_spoil(made, cuts), own), (made, own | headers)):
        try:
            _ALL.decode(attempt, said)
        except EmsError as error:
            assert len(str(error)) < 100_000


@nasty.few(8)
@given(nasty.raw | st.dictionaries(nasty.texts, nasty.scalars.filter(lambda one: not isinstance(one, bytes))).map(
    lambda one: json.dumps(one).encode()
))  # fmt: skip
def test_headers(block: bytes) -> None:
    try:
        headers = decode_headers(block)
    except DecodeError:
        return
    assert decode_headers(encode_headers(headers)) == headers


class _Claim:
    def server_now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


@nasty.few(8)
@given(nasty.texts | st.datetimes().map(str) | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat))
def test_headers_of_our_own_that_somebody_else_wrote(text: str) -> None:
    block = encode_headers({"ems-expires": text, "ems-priority": text})
    message = Message("t", 0, (1, bytes(16), None, None, block, b"1", "2026-01-01"), _ALL)
    with suppress(DecodeError, Ignore):
        refuse_expired(message, _Claim())  # type: ignore[arg-type]
    with suppress(DecodeError):
        assert message.priority in range(10)


_urls = st.one_of(
    nasty.texts,
    st.builds(
        "{}://{}{}@{}:{}/{}?{}={}".format,
        st.sampled_from(["mysql", "redis", "http", ""]),
        nasty.texts,
        st.just(":p4ss") | nasty.texts,
        st.sampled_from(["h", "[::1]", "[", "h1:1,h2", ""]) | nasty.texts,
        st.sampled_from(["3306", "99999", "x", ""]) | nasty.texts,
        st.sampled_from(["db", ""]) | nasty.texts,
        st.sampled_from([*DatabaseUrl.OPTIONS, "password"]) | nasty.texts,
        st.sampled_from(["1", "nan", "-1", "inf", ""]) | nasty.texts,
    ),
)


@nasty.few(10)
@given(_urls)
def test_urls(text: str) -> None:
    with suppress(ValueError):
        url = DatabaseUrl.parse(text)
        assert url.database and 0 <= url.port < 65536
    redact(text)
    try:
        Settings.load(environ={}, url=text, redis_url=text)
    except ConfigError as error:
        assert {problem.name for problem in error.problems} <= {"url", "redis_url"}


@nasty.few(8)
@given(nasty.texts | nasty.plain.map(json.dumps))
def test_stored_filters(text: str) -> None:
    with suppress(EmsError):
        Filter.from_text(text)


@nasty.few(8)
@given(nasty.anything, nasty.anything)
def test_filters(tags: Any, headers: Any) -> None:
    with suppress(ConfigError):
        wanted = Filter(tags, headers)
        assert Filter.from_text(wanted.to_text()) == wanted
        wanted.matches(b"x", {"a": "b"})


@nasty.few(8)
@given(nasty.anything | st.from_regex(r"[0-9]{1,30}(ms|s|m|h|d)?", fullmatch=True))
def test_durations_ladders_and_names(value: Any) -> None:
    """Of ladders and durations it is ValueError, which whoever asks turns into an error with the setting's name."""
    for read, error in (
        (parse_duration, ValueError),
        (Ladder.parse, ValueError),
        (parse_uid, EmsError),
        (lambda text: check_name("topic", text), EmsError),
        (lambda text: encode_key("key", text), EmsError),
    ):
        with suppress(error):
            read(value)
    if isinstance(value, str):
        for name in ("ladder", "timeout_s", "batch", "accept", "eager"):
            with suppress(ConfigError):
                Settings.load(environ={f"EMS_{name.upper()}": value})
        with suppress(EmsError):
            parse_place(f"{value}/{value}/{value}")
            parse_place(value)


_field = st.sampled_from(["*", "*/5", "1-5", "L", "MON#2", "0", "99", "5-1", "*/0", "JAN", ",", "/", "?"])


@nasty.few(8)
@given(
    nasty.texts | st.lists(_field, min_size=4, max_size=7).map(" ".join) | nasty.numbers.map("every {}".format),
    st.sampled_from(["UTC", "Europe/Berlin", "../../etc/passwd", "/etc/passwd", "\0", ""]) | nasty.texts,
)
def test_timetables(spec: str, zone: str) -> None:
    try:
        timetable = parse_timetable(spec, zone)
    except ValueError:
        return
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert next(timetable.after(now)) > now


_SPEC = ChildSpec("m:app", ("t",), (), 1, "p", "n", "INFO", 3, status=4)


@nasty.few(4)
@given(nasty.texts, st.lists(nasty.texts, max_size=3))
def test_what_a_child_is_told(name: str, topics: list[str]) -> None:
    spec = replace(_SPEC, name=name, app=name, topics=tuple(topics), url="mysql://u:s3cret@h/d")
    assert "s3cret" not in repr(spec)
    with open_scratch(spec.to_json()) as file:
        assert ChildSpec.from_json(read_scratch(os.dup(file.fileno()))) == spec


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"topics": 1}', "[" * 100_000])
def test_a_child_spec_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(EmsError, match="child"):
        ChildSpec.from_json(text)
