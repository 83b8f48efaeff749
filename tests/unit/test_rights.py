"""The table of rights: how it is read, and how another one adds to it."""

from __future__ import annotations

import pytest

from emsworker.core.extension import Extension, extensions, load
from emsworker.store.engine.grants import Grants
from emsworker.store.engine.rights import CORE, merge, read_grid

NOTES_EXTENSION = Extension("notes", "tests.unit", rights=f"{__name__}:NOTES")

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
    core, more = Grants(), Grants([NOTES_EXTENSION])
    granted = more.statements("beat", "shop", "u@h")
    assert granted == [
        *core.statements("beat", "shop", "u@h"),
        "GRANT SELECT (id, due_at), DELETE ON `shop`.ems_note TO 'u'@'h'",
    ]
    assert more.privileges("worker", ["beat"])["ems_note"] == dict.fromkeys(("SELECT", "INSERT", "DELETE"))
    assert more.privileges("worker")["ems_alarm"] == dict.fromkeys(("SELECT", "DELETE"))
    assert more.statements("notes", "shop", "u@h", ["cancel"]) == [
        "GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`.ems_note TO 'u'@'h'",
        "GRANT SELECT (uid) ON `shop`.ems_result TO 'u'@'h'",
        "GRANT UPDATE ON `shop`.ems_result TO 'u'@'h'",
    ]
    assert more.privileges("reader") == core.privileges("reader") and "ems_note" not in core.privileges("beat")
    assert "notes" in more.roles and "notes" not in core.roles


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


def test_it_names_the_tables_that_there_are() -> None:
    for used in ([], list(extensions().values())):
        grants = Grants(used)
        named = {table for role in grants.roles for table in grants.privileges(role)}
        # Those that only Spark's sink writes are the core's.
        assert named == set(grants.columns)


def test_each_extension_that_is_installed_brings_its_roles() -> None:
    brought = [load(one.rights) for one in extensions().values() if one.rights is not None]
    named = {role.partition("+")[0] for rights in (CORE, *brought) for role in rights}
    assert named == set(Grants(extensions().values()).roles)
