"""A log whose reader hangs costs lines, and no more than a second."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from emsworker.core.process.clock import ticks
from emsworker.observe.log_stream import LogStream
from tests.support.waiting import until

LINE = "x" * 999 + "\n"


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, TextIO]]:
    """A reading end that does not block, and a stream at the other one."""
    if request.param == "pipe":
        reader, writer = os.pipe()
    else:
        reader, writer = (end.detach() for end in socket.socketpair())
    os.set_blocking(reader, False)
    with os.fdopen(writer, "w") as stream:
        yield reader, stream
    os.close(reader)


def drain(reader: int) -> str:
    parts = []
    while True:
        try:
            parts.append(os.read(reader, 1 << 20))
        except BlockingIOError:
            return b"".join(parts).decode()


def test_what_has_room_is_written_at_once(ends: tuple[int, TextIO]) -> None:
    reader, stream = ends
    LogStream(stream).write("a\ud800b\n")
    assert drain(reader) == "a\\ud800b\n"
    assert os.get_blocking(stream.fileno()), "others share the file"


def test_a_reader_that_hangs_costs_lines_which_are_counted(ends: tuple[int, TextIO]) -> None:
    reader, stream = ends
    log = LogStream(stream)
    began = ticks()
    for _ in range(5000):
        log.write(LINE)
    assert ticks() - began < 5
    seen = drain(reader)
    whole = seen.count(LINE)
    assert 10 < whole < 5000
    log.write("again\n")
    after = drain(reader)
    assert f"[{5000 - whole} lines left out: nobody read this stream]\nagain\n" in after
    assert after.startswith("\n") == (not seen.endswith("\n")), "a line that was broken off is ended"
    log.write("and again\n")
    assert drain(reader) == "and again\n"


def test_a_reader_that_has_gone_costs_nothing(ends: tuple[int, TextIO]) -> None:
    reader, stream = ends
    log = LogStream(stream)
    keep = os.dup(reader)
    os.close(reader)
    os.dup2(os.open(os.devnull, os.O_RDONLY), reader)
    os.close(keep)
    log.write(LINE)


def test_a_regular_file_and_one_that_replaces_a_pipe_are_written_to(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, (tmp_path / "log").open("w+") as file:
        log = LogStream(stream)
        log.write("first\n")
        os.dup2(file.fileno(), stream.fileno())
        log.write("second\n")
        file.seek(0)
        assert file.read() == "second\n"
    assert os.read(reader, 100) == b"first\n"
    os.close(reader)


def test_a_stream_without_a_file_is_written_to(capsys: pytest.CaptureFixture[str]) -> None:
    LogStream(sys.stderr).write("text\n")
    until(lambda: "text" in capsys.readouterr().err, 5, "the text")
