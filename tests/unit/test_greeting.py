"""The first connection on which a server greets: a router may have led others to servers that never will."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from emsworker.local.ports import free_port
from emsworker.store.engine.greeting import first_to_greet


class Address:
    """Takes connections; those whose numbers are given are greeted, each so many seconds after it came."""

    def __init__(self, greets: dict[int, float]) -> None:
        self._greets = greets
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.at = self._listening.getsockname()
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            number = len(self.taken)
            self.taken.append(connection)
            if number in self._greets:
                threading.Timer(self._greets[number], connection.sendall, (b"hello %d" % number,)).start()

    def left_open(self) -> list[int]:
        """The numbers of the connections that the client has not closed."""
        opened = []
        for number, connection in enumerate(self.taken):
            connection.settimeout(0.2)
            try:
                assert connection.recv(1) == b""
            except TimeoutError:
                opened.append(number)
        return opened

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self.taken:
            connection.close()


@pytest.fixture
def silent() -> Iterator[Address]:
    address = Address({})
    yield address
    address.close()


def _first(greets: dict[int, float], timeout_s: float = 20.0, pause_s: float = 0.1) -> tuple[bytes, list[int], int]:
    address = Address(greets)
    try:
        with first_to_greet(address.at, timeout_s, pause_s) as connection:
            connection.settimeout(5)
            return connection.recv(100), address.left_open(), len(address.taken)
    finally:
        address.close()


def test_one_that_greets_at_once_is_the_only_one() -> None:
    assert _first({0: 0.0}, pause_s=5) == (b"hello 0", [0], 1)


def test_silent_ones_cost_a_pause_each_and_are_closed() -> None:
    began = time.monotonic()
    assert _first({3: 0.0}, pause_s=0.2) == (b"hello 3", [3], 4)
    assert time.monotonic() - began >= 0.2 + 0.3 + 0.45


def test_a_slow_one_may_still_be_the_first() -> None:
    greeting, opened, _ = _first({0: 1.0})
    assert (greeting, opened) == (b"hello 0", [0])


def test_if_nobody_greets_it_ends_in_time_and_leaves_nothing_open(silent: Address) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        first_to_greet(silent.at, 0.5, 0.1)
    assert 0.5 <= time.monotonic() - began < 5
    assert silent.left_open() == []


def test_an_address_that_refuses_is_told_at_once() -> None:
    with pytest.raises(ConnectionRefusedError):
        first_to_greet(("127.0.0.1", free_port()), 60, 60)


def test_one_that_closes_has_spoken(silent: Address) -> None:
    """PyMySQL tells of the end; a router that reaches no server closes so."""
    closing = threading.Timer(0.1, lambda: silent.taken[0].shutdown(socket.SHUT_RDWR))
    closing.start()
    with first_to_greet(silent.at, 20, 10) as connection:
        assert connection.recv(1) == b""
    closing.join()
