"""Answers that are read without PyMySQL: whatever comes, in whatever pieces, is read as PyMySQL reads it."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymysql.constants import COMMAND
from pymysql.err import MySQLError, OperationalError

from emsworker.store.engine.connection import Connection
from emsworker.store.engine.session import Result, _read_results, _result

_MORE = 0x0008


def _ok(affected: bytes = b"\x01", insert_id: bytes = b"\x00", status: int = 2, message: bytes = b"") -> bytes:
    return b"\x00" + affected + insert_id + status.to_bytes(2, "little") + b"\x00\x00" + message


_SHORT = _ok()
_BEGUN, _PLACED = _ok(b"\x00", status=3 | _MORE), _ok(status=3 | _MORE)
_COUNTED = _ok(insert_id=b"\xfd\x01\x02\x03", status=3 | _MORE, message=b"(Rows matched: 1")
_REFUSED = b"\xff\x26\x04#23000Duplicate entry"
_ONE_COLUMN = [b"\x01", b"\x03def\x00\x00\x00\x01a\x00\x0c\x3f\x00\x0b\x00\x00\x00\x08\x81\x00\x00\x00\x00"]
_ROWS = [*_ONE_COLUMN, b"\xfe\x00\x00\x02\x00", b"\x017", b"\xfe\x00\x00\x02\x00"]
_ANSWERS = {
    "an insert": [_SHORT],
    "a raised counter": [_BEGUN, _COUNTED, _PLACED, _SHORT],
    "an insert id of two bytes": [_ok(insert_id=b"\xfc\xfb\x00")],
    "an insert id of three bytes": [_ok(insert_id=b"\xfd\x01\x02\x03", status=3 | _MORE), _SHORT],
    "an insert id of eight bytes": [_ok(insert_id=b"\xfe\x01\x02\x03\x04\x05\x06\x07\x08")],
    "an insert id, and a message": [_ok(insert_id=b"\xfc\xfb\x00", message=b"!")],
    "many rows": [_ok(b"\xfc\xf4\x01", message=b"&Records: 500")],
    "more than one byte of rows": [_ok(b"\xfc\xfb\x00")],
    "a result that is longer": [_PLACED, _ok(insert_id=b"\xfc\x00\x01")],
    "rows": _ROWS,
    "an error": [_REFUSED],
    "an error later": [_BEGUN, _PLACED, _REFUSED],
    "a wrong number": [_BEGUN, b""],
}


class Answering:
    """A connection to a server that gives one answer, in pieces."""

    def __init__(self, packets: list[bytes], piece: int) -> None:
        self.connection: Any = Connection(defer_connect=True, user="x")
        own, self._server = socket.socketpair()
        connection = self.connection
        connection._sock, connection._rfile, connection._closed = own, own.makefile("rb"), False
        connection._current_timeout, connection.server_status = None, 0
        connection.wait_for(10.0)
        numbered = [len(one).to_bytes(3, "little") + bytes([n]) + one for n, one in enumerate(packets, 1) if one]
        self._said, self._piece = b"".join(numbered), piece

    def read(self, read: Callable[[Any], list[Result]]) -> tuple[Any, ...]:
        """What reading comes to, and the state in which it leaves the connection."""
        self.connection._execute_command(COMMAND.COM_QUERY, b"x")
        answering = threading.Thread(target=self._answer)
        answering.start()
        try:
            found: object = read(self.connection)
        except MySQLError as error:
            found = type(error), error.args[0]
        answering.join()
        one = self.connection
        return found, one.server_status if isinstance(found, list) else None, one._next_seq_id, one.cut, one.open

    def _answer(self) -> None:
        for at in range(0, len(self._said), self._piece):
            self._server.sendall(self._said[at : at + self._piece])
        self._server.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.connection._force_close()
        self._server.close()


@pytest.fixture
def answering() -> Iterator[Callable[[list[bytes], int], Answering]]:
    opened: list[Answering] = []

    def answer(packets: list[bytes], piece: int) -> Answering:
        opened.append(Answering(packets, piece))
        return opened[-1]

    yield answer
    for one in opened:
        one.close()


def _as_pymysql(connection: Any) -> list[Result]:
    connection._read_query_result()
    results = [_result(connection)]
    while connection._result.has_next:
        connection.next_result()
        results.append(_result(connection))
    return results


@pytest.mark.parametrize("piece", [1, 5, 11, 15, 22, 1 << 20])
@pytest.mark.parametrize("packets", _ANSWERS.values(), ids=_ANSWERS)
def test_every_answer_is_read_as_pymysql_reads_it(
    answering: Callable[[list[bytes], int], Answering], packets: list[bytes], piece: int
) -> None:
    found = answering(packets, piece).read(_read_results)
    assert found == answering(packets, piece).read(_as_pymysql)
    results = found[0]
    assert not found[3], "nothing is left to be read, or the connection is closed"
    if packets == [_SHORT]:
        assert results == [Result((), 1, 0)]


@pytest.mark.parametrize("insert_id", [b"\x00", b"\xfa", b"\xfc\xfb\x00", b"\xfd\x01\x02\x03", b"\xfe" + b"\x01" * 8])
def test_an_insert_id_of_any_size_is_read_without_pymysql(
    answering: Callable[[list[bytes], int], Answering], insert_id: bytes
) -> None:
    connection = answering([_ok(insert_id=insert_id)], 1 << 20)
    found = connection.read(lambda own: own.read_short_ok())
    assert found[0] == (1, int.from_bytes(insert_id[1:] or insert_id, "little"))
    assert not found[3]


def test_a_packet_whose_answers_were_not_all_read_is_not_used_again(
    answering: Callable[[list[bytes], int], Answering],
) -> None:
    for before in ([], [_COUNTED]):  # PyMySQL's last result says that another one follows
        one = answering([*before, _BEGUN, _SHORT], 1 << 20)
        connection = one.connection
        connection._execute_command(COMMAND.COM_QUERY, b"x")
        one._answer()
        if before:
            connection._read_query_result()
        assert connection.read_short_ok() == (0, 0)
        assert connection.cut, "as if an exception from outside had come here"
        with pytest.raises(OperationalError, match="cut an exchange"):
            connection._execute_command(COMMAND.COM_QUERY, b"y")
        assert not connection.open


def test_a_server_that_does_not_answer_is_lost(answering: Callable[[list[bytes], int], Answering]) -> None:
    connection = answering([_SHORT], 11).connection
    connection.wait_for(0.01)
    connection._execute_command(COMMAND.COM_QUERY, b"x")
    with pytest.raises(OperationalError, match=r"Lost connection .*timed out"):
        connection.read_short_ok()
    assert not connection.open
