"""One check of whole numbers, for settings, jobs, readers and forms."""

from __future__ import annotations

import pytest

from emsworker.arrow.options import positive
from emsworker.core.errors import ConfigError
from emsworker.core.options import LARGEST, whole


@pytest.mark.parametrize("text", ["", "x", "1.5", "1e3", "1_000", "0x1", "\u0663", "9" * 21, "0", "10", "-3"])
def test_what_is_no_number_of_a_span_is_refused_with_the_span(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a whole number from 1 to 9$"):
        whole(1, 9).parse(text)


def test_a_number_is_read() -> None:
    assert [whole(-5, 9).parse(text) for text in ("9", " 7 ", "-5", "007")] == [9, 7, -5, 7]
    assert whole().parse(str(LARGEST)) == LARGEST
    with pytest.raises(ValueError, match=r"^must be a whole number of 0 or more$"):
        whole().parse(str(LARGEST + 1))


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_only_looks_like_a_number_is_refused(value: object) -> None:
    assert [str(one) for one in whole(1, 9).problems("n", value)] == [
        f"n = {value!r}: must be a whole number from 1 to 9"
    ]


def test_those_that_read_texts_say_the_same() -> None:
    from emsworker.web.page import read_number

    with pytest.raises(ValueError, match=r"^must be a whole number of 1 or more$"):
        positive("0")
    with pytest.raises(ConfigError, match="partition = '-1': must be a whole number from 0 to 65535"):
        read_number("partition", "-1", None, 65535)
    assert read_number("partition", None, 3) == 3 and read_number("partition", "12") == 12
