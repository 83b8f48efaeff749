"""Statements that the server has parsed once for a connection: a quarter of its time for a short INSERT is parsing.

A connection prepares a statement when it runs it for the sixteenth time, which costs one round trip. Until then, and
where the server or a proxy before it refuses to prepare, the statement is sent as text, with the same effect.

Bytes travel as hexadecimal digits, as they do in text: a server shows the values of a running statement as they came,
and who asks for its list of processes then (``SHOW PROCESSLIST``, a monitor) cannot read bytes that are no text.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from emsworker.store.engine.sql import Sql, by_position

AFTER = 16  # runs as text
FORGOTTEN = (1243, 1615)
"""Errors of a server that does not know a prepared statement, or must parse it again; it has not run it."""
_LONGLONG, _STRING, _UNSIGNED = 0x08, 0xFD, 0x80  # types of the protocol
_ONCE = struct.Struct("<IBI")


class PreparedStatement(NamedTuple):
    """A statement that is prepared on a connection.

    Args:
        head: the beginning of each run: its number, no cursor, one run.
        pick: returns its values, in order.
        kinds: the types of these.
    """

    head: bytes
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    kinds: bytes

    def payload(self, args: Mapping[str, Any]) -> bytes:
        """Return what is sent to run it with these values."""
        nulls, parts = 0, []
        for number, value in enumerate(self.pick(args)):
            if value is None:
                nulls |= 1 << number
            elif type(value) is int:
                parts.append(value.to_bytes(8, "little"))
            else:
                parts += (_length(2 * len(value)), hexlify(value))
        bitmap = nulls.to_bytes((len(self.kinds) // 2 + 7) // 8, "little")
        return b"".join((self.head, bitmap, b"\x01", self.kinds, *parts))


def _length(size: int) -> bytes:
    if size < 0xFB:
        return size.to_bytes(1, "little")
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little")
    return b"\xfe" + size.to_bytes(8, "little")


class PreparedStatements:
    """The statements of one connection that are run often.

    Args:
        prepare: has the server prepare a text with ``?``; returns its number, or ``None`` if it refuses.
    """

    def __init__(self, prepare: Callable[[str], int | None]) -> None:
        self._prepare = prepare
        self._runs: dict[Sql, int] = {}
        self._prepared: dict[Sql, PreparedStatement | None] = {}

    def find(self, statement: Sql, args: Mapping[str, Any]) -> PreparedStatement | None:
        """Return a statement if it is prepared; ``None`` if it is to be sent as text.

        Args:
            args: its values by name; a value is a whole number in each run, or bytes or ``None`` in each.
        """
        if statement in self._prepared:
            return self._prepared[statement]
        runs = self._runs[statement] = self._runs.get(statement, 0) + 1
        if runs > AFTER:
            self._prepared[statement] = self._make(statement, args)
        return self._prepared.get(statement)

    def give_up(self, statement: Sql) -> None:
        """Send a statement as text from now on."""
        self._prepared[statement] = None

    def _make(self, statement: Sql, args: Mapping[str, Any]) -> PreparedStatement | None:
        pattern, names, pick = by_position(statement)
        whole = [type(args[name]) is int for name in names]
        number = self._prepare(pattern % tuple("?" if one else "UNHEX(?)" for one in whole))
        if number is None:
            return None
        kinds = [(_LONGLONG, _UNSIGNED) if one else (_STRING, 0) for one in whole]
        return PreparedStatement(_ONCE.pack(number, 0, 1), pick, b"".join(map(bytes, kinds)))
