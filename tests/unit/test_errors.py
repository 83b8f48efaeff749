"""Stored errors in one line."""

import traceback

import pytest

from emsworker.core.errors import error_line


class Refused(Exception):
    """An error of a user's."""


def stored(error: BaseException, cause: BaseException | None = None) -> str:
    try:
        raise error from cause
    except BaseException:
        return traceback.format_exc().strip()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, ""),
        ("", ""),
        ("its lease expired", "its lease expired"),
        ("ValueError: bad\nwith newline", "ValueError: bad"),
        (stored(ValueError("bad\nwith newline")), "ValueError: bad"),
        (stored(ValueError("\nbad")), "ValueError: bad"),
        (stored(ValueError()), "ValueError"),
        (stored(Refused("a\nb")), f"{__name__}.Refused: a"),
        (stored(KeyError("k"), ValueError("a\nb")), "KeyError: 'k'"),
        (stored(ExceptionGroup("two", [ValueError("a\nb"), TypeError("c")])), "ExceptionGroup: two (2 sub-exceptions)"),
        (stored(ValueError(f"remote:\n{stored(TypeError('inner'))}")), "ValueError: remote:"),
        (stored(ValueError("bad\nwith newline"))[50:], "ValueError: bad"),
    ],
)
def test_an_error_is_named_by_its_class_and_first_line(text: str | None, line: str) -> None:
    assert error_line(text) == line
