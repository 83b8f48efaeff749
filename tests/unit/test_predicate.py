"""The predicate language: what it chooses, what it tells a statement, and how it complains."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emsworker.core.errors import ConfigError, PredicateError
from emsworker.core.selection.parser import parse_predicate

ID = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"


@dataclass
class Fake:
    """What the language looks at."""

    id: str = ID
    key: bytes | None = b"eu-1"
    tag: bytes | None = b"new"
    partition: int = 0
    offset: int = 7
    size: int = 20
    producer: str = "me"
    headers: dict[str, str] = field(default_factory=lambda: {"region": "eu", "it's": "1"})
    born_at: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)
    body: Any = field(
        default_factory=lambda: {
            "amount": 10.5, "n": 3, "ok": True, "name": "O'Neil", "none": None, "items": [{"x": 1}, {"x": 2}],
            "odd name": "y", "price": Decimal("9.99"), "day": datetime(2026, 1, 1), "ref": UUID(ID),
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "tag = 'new'",
        "TAG='new' AND Key LIKE 'eu-%'",
        "tag = 'new' and key like 'eu-_' and header('region') = 'eu' and born_at >= '2026-01-31' and body.amount > 10",
        "key in ('a', 'eu-1')",
        "key not in ('a', 'b')",
        "not (tag = 'old' or tag = 'odd')",
        "tag = 'old' or tag = 'new' and offset = 7",
        "offset between 7 and 9 and partition = 0 and size <> 21",
        f"id = '{ID.upper()}'",
        "header('it''s') = '1'",
        "header('none') is null and header('region') is not null",
        "body.items[1].x = 2 and body.items[-1].x = 2 and body.items[2].x is null",
        "body['odd name'] = 'y'",
        "body.name = 'O''Neil' and body.name like 'O''%'",
        "body.n = 3.0 and body.n < 3.5 and body.ok = true and body.ok <> false",
        "body.price < 10 and body.price > 9.9e0",
        "body.none is null and body.absent.deeper is null",
        "body.day = '2026-01-01T00:00:00'",
        f"body.ref = '{ID}'",
        "born_at < '2026-03-01T14:00:01+02:00' and born_at >= '2026-03-01T12:00'",
        "producer != 'you'",
    ],
)
def test_what_is_chosen(text: str) -> None:
    assert parse_predicate(text).matches(Fake())
    assert not parse_predicate(f"not ({text})").matches(Fake())


@pytest.mark.parametrize(
    "text",
    [
        "body.absent > 1",
        "not body.absent > 1",
        "body.name > 1",
        "not body.name > 1",
        "body.ok = 1",
        "body.n = true",
        "body.none <> 1",
        "body.amount.deeper = 1",
        "body.n like '3'",
        "key like 'EU-%'",
        "key like 'eu_'",
        r"key like 'eu\_%'",
        "tag = 'new' and not tag = 'new'",
    ],
)
def test_what_is_missing_or_of_another_kind_is_unknown(text: str) -> None:
    assert not parse_predicate(text).matches(Fake())


def test_an_unknown_part_does_not_decide() -> None:
    assert parse_predicate("body.absent > 1 or tag = 'new'").matches(Fake())
    assert not parse_predicate("not (body.absent > 1 and tag = 'new')").matches(Fake())
    assert parse_predicate("not (body.absent > 1 and tag = 'old')").matches(Fake())
    assert not parse_predicate("key = 'x'").matches(Fake(key=None))
    assert parse_predicate("key is null").matches(Fake(key=None))


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("", 1, "a field is expected, and not the end"),
        ("tag = ", 6, "a value is expected"),
        ("tag = 'x", 7, "a text has no end"),
        ('tag = "x"', 7, "single quotes"),
        ("tag == 'x'", 6, "a value is expected"),
        ("colour = 'red'", 1, "there is no field 'colour'; there are id, key"),
        ("tag = 'x' tag = 'y'", 11, "'and', 'or' or the end"),
        ("(tag = 'x'", 11, "')' is expected, and not the end"),
        ("tag = null", 7, "write 'tag is null'"),
        ("tag = 1", 7, "compared with a text"),
        ("offset > 1.5", 10, "a whole number"),
        ("offset = true", 10, "a whole number"),
        ("born_at > 'soon'", 11, "a time like"),
        ("id = 'x'", 6, "a message id"),
        ("offset like '1%'", 8, "no text"),
        ("key like 3", 10, "a pattern"),
        ("key in ()", 9, "a value is expected"),
        ("header(region) = '1'", 8, "in quotes"),
        ("body. = 1", 7, "a name is expected"),
        ("body[1.5] = 1", 6, "an index"),
        ("body.ok > true", 11, "have no order"),
        ("tag = 'x'; drop table ems_message", 10, "nothing begins with ';'"),
        ("body.n = 1 -- x", 12, "nothing begins with '-'"),
        ("(" * 60 + "tag = 'x'" + ")" * 60, 51, "nested"),
        ("tag = 'x' or " * 1000, 1, "characters"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_position(text: str, position: int, why: str) -> None:
    with pytest.raises(PredicateError, match="predicate = ") as caught:
        parse_predicate(text)
    assert isinstance(caught.value, ConfigError)
    assert caught.value.position == position and why in str(caught.value), str(caught.value)


@given(st.text(alphabet="tag=key<>()'[].,bodyandornt 1-\\%\x00\u00e9\ud800", max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        parse_predicate(text).matches(Fake())
    except PredicateError as error:
        assert 1 <= error.position <= len(text) + 1


def test_what_a_statement_can_do() -> None:
    bounds = parse_predicate(
        "offset > 5 and offset between 1 and 9 and tag in ('a', 'b') and tag = 'b' and key like 'eu-1%x' "
        "and born_at < '2026-01-02' and body.n = 1"
    ).bounds
    assert (bounds.lo, bounds.hi, bounds.tags, bounds.keys, bounds.key_prefix) == (5, 9, {b"b"}, None, b"eu-1")
    assert bounds.born_to == datetime(2026, 1, 2, tzinfo=UTC) and bounds.bounds_time and not bounds.impossible
    assert parse_predicate("tag = 'a' and tag = 'b'").bounds.impossible
    assert parse_predicate("offset > 9 and offset < 5").bounds.impossible
    for loose in ("tag = 'a' or key = 'b'", "not tag = 'a'", "tag <> 'a'", "body.n = 1"):
        bounds = parse_predicate(loose).bounds
        assert bounds == type(bounds)(), loose


def test_the_body_is_judged_last() -> None:
    predicate = parse_predicate("body.n = 3 and tag = 'new'")
    assert predicate.uses_body and predicate.may_match(Fake(body=None)) and not predicate.may_match(Fake(tag=b"x"))
    assert not parse_predicate("tag = 'new'").uses_body
    assert parse_predicate("tag = 'new' or body.n = 3").uses_body
