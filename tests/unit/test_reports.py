"""Reports of a child: its pipe is read in pieces of any length, and each report comes out whole and once."""

import os
from collections.abc import Iterator
from itertools import pairwise

import pytest

from emsworker.worker.child_spec import READY, WorkDone
from emsworker.worker.supervisor import _Slot


@pytest.fixture
def pipe() -> Iterator[tuple[_Slot, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    slot = _Slot(0, status=os.fdopen(reader, "rb", buffering=0))
    yield slot, writer
    slot.close_status()


@pytest.mark.parametrize("cuts", [(), (3,), (6, 7), (1, 5, 6, 9, 20)])
def test_a_report_that_arrives_in_pieces_is_read_once(pipe: tuple[_Slot, int], cuts: tuple[int, ...]) -> None:
    slot, writer = pipe
    tally = WorkDone(123456, 2, 1).to_report()
    text = "\0".join([READY, tally, "größer\0"]).encode()
    found = []
    for begin, end in pairwise((0, *cuts, len(text))):
        os.write(writer, text[begin:end])
        found += slot.read_reports()
        assert slot.read_reports() == []
    os.close(writer)
    assert [*found, *slot.read_reports()] == [READY, tally, "größer"]


def test_a_report_longer_than_one_read_is_whole(pipe: tuple[_Slot, int]) -> None:
    slot, writer = pipe
    os.write(writer, b"x" * 65_000 + b"\0")
    assert [len(text) for text in slot.read_reports()] == [65_000]
    os.write(writer, b"y" * 65_000)
    assert slot.read_reports() == []
    os.write(writer, b"y" * 5_000 + b"\0" + b"last")
    assert [len(text) for text in slot.read_reports()] == [70_000]
    os.close(writer)  # it died in the middle of a report: what it has said is better than nothing
    assert slot.read_reports() == ["last"]
    assert slot.status is None
