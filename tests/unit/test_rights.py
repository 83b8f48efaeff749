"""The table of rights: how it is read, and how another one adds to it."""

from __future__ import annotations

import pytest

from emsworker.store.engine.grants import ROLES, privileges, statements
from emsworker.store.engine.rights import RIGHTS, combine, merge, read_grid
from emsworker.store.engine.schema import table_columns

NOTES = read_grid(
    """
                worker  beat  notes  notes+cancel
    ems_note    SI      sD    SIUD   -
    ems_result  -       -     s      U
    ems_alarm   D       -     -      -
    """,
    {"SELECT ems_note": {"beat": "id, due_at"}, "SELECT ems_result": {"notes": "uid"}},
)


def test_a_capital_is_for_the_table_and_a_small_letter_for_columns() -> None:
    assert NOTES["worker"] == {"ems_note": {"SELECT": None, "INSERT": None}, "ems_alarm": {"DELETE": None}}
    assert NOTES["beat"] == {"ems_note": {"SELECT": ("id", "due_at"), "DELETE": None}}
    assert NOTES["notes+cancel"] == {"ems_result": {"UPDATE": None}}


def test_an_extension_adds_the_rights_on_its_tables_and_a_role() -> None:
    rights = combine(RIGHTS, NOTES)
    granted = statements("beat", "shop", "u@h", rights=rights)
    assert granted == [
        *statements("beat", "shop", "u@h"),
        "GRANT SELECT (id, due_at), DELETE ON `shop`.ems_note TO 'u'@'h'",
    ]
    assert privileges("worker", ["beat"], rights=rights)["ems_note"] == dict.fromkeys(("SELECT", "INSERT", "DELETE"))
    assert privileges("worker", rights=rights)["ems_alarm"] == dict.fromkeys(("SELECT", "DELETE"))
    assert statements("notes", "shop", "u@h", ["cancel"], rights=rights) == [
        "GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`.ems_note TO 'u'@'h'",
        "GRANT SELECT (uid) ON `shop`.ems_result TO 'u'@'h'",
        "GRANT UPDATE ON `shop`.ems_result TO 'u'@'h'",
    ]
    assert rights["reader"] == RIGHTS["reader"] and "ems_note" not in RIGHTS["beat"]


def test_who_has_columns_twice_has_each_once_and_the_table_beats_them() -> None:
    some, more = {"t": {"SELECT": ("a", "b")}}, {"t": {"SELECT": ("b", "c")}}
    assert merge([some, more]) == {"t": {"SELECT": ("a", "b", "c")}}
    assert merge([some, {"t": {"SELECT": None}}]) == merge([{"t": {"SELECT": None}}, some]) == {"t": {"SELECT": None}}


def test_faults_of_a_table_are_not_passed_over() -> None:
    with pytest.raises(ValueError, match="columns without a small letter in the grid: beat t SELECT"):
        read_grid("beat\nt S", {"SELECT t": {"beat": "a"}})
    with pytest.raises(KeyError):
        read_grid("beat\nt s", {})
    with pytest.raises(ValueError, match="zip"):
        read_grid("beat worker\nt S", {})


def test_it_names_the_tables_and_columns_that_there_are() -> None:
    named = {table for privileges_ in RIGHTS.values() for table in privileges_} - {"*"}
    assert named == set(table_columns()) and set(privileges("admin")) == named
    assert len(ROLES) == 10
