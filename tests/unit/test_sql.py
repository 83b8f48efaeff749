"""Composition of SQL."""

from pathlib import Path

import pytest

from emsworker.core.errors import InvalidName
from emsworker.store.engine.sql import (
    Sql,
    Statements,
    column,
    fill,
    fill_rows,
    identifier,
    insertion,
    literal,
    message_blobs,
)

_ROW = Sql("(%(topic)s,%(offset)s + %(topic)s,%(body)s)")


def test_parameters_are_replaced_wherever_they_stand() -> None:
    parts = {"topic": 7, "offset": 1, "body": literal("50%s %(topic)s"), "more": 0}
    assert fill(_ROW, parts) == "(7,1 + 7,'50%s %(topic)s')"
    assert fill(Sql("COMMIT"), parts) == "COMMIT"
    assert fill(Sql("SELECT %(body)s"), parts) == "SELECT '50%s %(topic)s'"
    with pytest.raises(KeyError):
        fill(_ROW, {"topic": 7})


@pytest.mark.parametrize("columns", [["offset"], ["body"], ["topic", "body"], ["topic", "offset", "body"]])
def test_many_rows_are_those_of_fill(columns: list[str]) -> None:
    parts = {"topic": [1, 2, 3], "offset": [4, 5, 6], "body": column(["%s", b"%", None])}
    common = {name: 9 for name in parts if name not in columns}
    one_by_one = [fill(_ROW, {**common, **{name: parts[name][n] for name in columns}}) for n in range(3)]
    assert fill_rows(_ROW, common, {name: parts[name] for name in columns}) == one_by_one


def test_values_are_written_as_sql() -> None:
    assert column([True, 2**63, 1.5, None, b"\x00'", "it's", ["a", 1]]) == [
        "1", "9223372036854775808", "1.5", "NULL", "X'0027'", "_utf8mb4 X'69742773'", "('a',1)",
    ]  # fmt: skip
    columns = (b"a", None, b"b", b"", b"'%s")
    assert message_blobs(columns) == "X'61',NULL,X'62',X'',X'272573'"
    assert (
        message_blobs(columns, "c", sized=True)
        == f"{message_blobs(columns, 'c')},3"
        == f"{message_blobs(columns)},X'63',3"
    )
    assert identifier("a`b") == "`a``b`"
    assert insertion(Sql("INSERT VALUES"), [Sql("(1)"), Sql("(2)")], Sql("END")) == "INSERT VALUES (1),(2) END"
    with pytest.raises(InvalidName, match="UTF-8"):
        literal("\ud800")
    for value in (float("nan"), object()):
        with pytest.raises(TypeError, match="cannot be written"):
            literal(value)


def test_a_statement_is_found_by_its_name() -> None:
    statements = Statements("emsworker.store.groups.cursors")
    assert (
        statements.lock_cursor == statements["lock_cursor"]
        and "lock_cursor" in statements
        and "lock_cursor" in [*statements]
    )
    assert "no_such" not in statements
    with pytest.raises(AttributeError):
        _ = statements.no_such


def test_a_name_that_stands_twice_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice" / "__init__.py").touch()
    (tmp_path / "twice" / "some.sql").write_text("-- name: get_run\nSELECT 1\n\n-- name: get_run\nSELECT 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"some\.sql: two statements have one name"):
        Statements("twice.some")


def test_a_list_that_is_not_given_is_missed_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"claims\.sql: no list is given for \{m_message_columns\}, \{message_columns\}"
    ):
        Statements("emsworker.store.groups.claims")
