"""What a version promises: nothing of it is taken away without a new major version."""

import pytest

from verification.surface import REQUIRED, breaks, items, recorded_items

_RECORDED = {
    "name: f": "a call",
    "name: f a": f"{REQUIRED}, by name",
    "name: f b": "by name",
    "name: h": "a call",
    "setting: s": "text, 1",
}


def test_nothing_that_was_recorded_has_changed() -> None:
    found = breaks(recorded_items(), items())
    assert not found, "it needs a new major version, or before 1.0 `python -m verification.surface --record`"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, []),
        ({"name: f a": "by name"}, []),
        ({"name: f c": "by name", "name: g": "a call", "name: g x": f"{REQUIRED}, by name"}, []),
        ({"name: f b": None}, ["name: f b is gone; it was by name"]),
        ({"name: f b": f"{REQUIRED}, by name"}, [f"name: f b was by name, and is {REQUIRED}, by name"]),
        ({"name: f c": f"{REQUIRED}, by name"}, [f"name: f c is new, and {REQUIRED}, by name"]),
        ({"name: h a": f"{REQUIRED}, by name"}, [f"name: h a is new, and {REQUIRED}, by name"]),
        ({"setting: s": "text, 2"}, ["setting: s was text, 1, and is text, 2"]),
    ],
)
def test_what_breaks_programs_is_told(change: dict[str, str | None], told: list[str]) -> None:
    now = {name: form for name, form in (_RECORDED | change).items() if form is not None}
    assert breaks(_RECORDED, now) == told
