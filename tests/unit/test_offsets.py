"""Ranges of offsets: the start belongs to them, the end does not."""

import pytest

from emsworker.core.offsets import OffsetRange


def of(start: int, end: int) -> OffsetRange:
    return OffsetRange(1, 0, start, end)


def test_the_end_does_not_belong_to_a_range() -> None:
    assert len(of(3, 8)) == 5 and str(of(3, 8)) == "offsets 3 to 7"
    assert not of(3, 3) and not of(4, 3) and len(of(4, 3)) == 0
    assert of(1, 9) < of(2, 3) < OffsetRange(1, 1, 1, 2)


@pytest.mark.parametrize(
    ("start", "end", "part"),
    [(4, 6, (4, 6)), (0, 9, (3, 8)), (5, 1 << 62, (5, 8)), (6, 4, (6, 6)), (9, 12, (8, 8)), (0, 1, (3, 3))],
)
def test_a_part_is_never_outside(start: int, end: int, part: tuple[int, int]) -> None:
    assert of(3, 8).part(start, end) == of(*part)


def test_steps_and_cuts_cover_every_offset_once() -> None:
    assert list(of(1, 6).steps(2)) == [of(1, 3), of(3, 5), of(5, 6)]
    assert list(of(1, 6).steps(2, newest=True)) == [of(4, 6), of(2, 4), of(1, 2)]
    assert list(of(4, 4).steps(2)) == []
    assert of(1, 11).cut(3) == [of(1, 4), of(4, 7), of(7, 11)]
