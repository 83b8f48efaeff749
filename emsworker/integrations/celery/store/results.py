"""Results of Celery applications, as keys and values that expire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emsworker.extending.database import Packet, Session, Sql, Statements
from emsworker.extending.errors import InvalidName, MessageTooLarge

_SQL = Statements(__name__)
_KEY_BYTES = 512
_STATEMENT_BYTES = len(_SQL.put_results) + len(_SQL.put_results_end) + 2
_KEYS_A_STATEMENT = 2_000


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value to store.

    Attributes:
        key: at most 512 bytes.
        body: the value.
        is_final: a success: nothing overwrites it until it expires.
        ttl_s: seconds to keep it; ``None`` for ever.
    """

    key: bytes
    body: bytes
    is_final: bool
    ttl_s: float | None


def check_key(what: str, key: bytes) -> bytes:
    """Return a key that fits its column.

    Args:
        what: its name, for the error.

    Raises:
        InvalidName: it is empty or too long.
    """
    if not 0 < len(key) <= _KEY_BYTES:
        raise InvalidName(f"{what} {key!r:.100} has {len(key)} bytes; 1 to {_KEY_BYTES} are stored")
    return key


def put(session: Session, entries: Sequence[StoredValue]) -> None:
    """Store values, in one statement if the server takes it; a success stays as it is.

    Raises:
        MessageTooLarge: a value is larger than what the server takes.
    """
    packet = session.packet()
    add_entries(packet, entries)
    if len(packet) == 1:
        session.retry_on_conflict(packet.send)
    else:
        session.transaction(lambda _: packet.send())


def add_entries(packet: Packet, entries: Sequence[StoredValue]) -> None:
    """Append values to a packet; their order is that of their keys, against deadlocks.

    Raises:
        MessageTooLarge: a value is larger than what the server takes.
    """
    latest = {one.key: one for one in entries}
    rows = [_row(packet.session, latest[key]) for key in sorted(latest)]
    packet.add_rows(_SQL.put_results, rows, _SQL.put_results_end)


def _row(session: Session, entry: StoredValue) -> Sql:
    values = {"key": entry.key, "is_final": entry.is_final, "body": entry.body, "ttl_s": entry.ttl_s}
    row = session.mogrify(_SQL.result_row, values)
    check_size(session, "a result", entry.body, len(row) + _STATEMENT_BYTES)
    return row


def check_size(session: Session, what: str, body: bytes, size: int) -> None:
    """Check that the server takes a value.

    Raises:
        MessageTooLarge: it does not.
    """
    if size > session.most_bytes:
        raise MessageTooLarge(
            f"{what} of {len(body)} bytes makes a statement of {size}; the server takes {session.most_bytes} "
            "(max_allowed_packet): raise that, or return a reference instead of the data"
        )


def find(session: Session, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the values that exist and have not expired, by key."""
    found: dict[bytes, bytes] = {}
    for some in _parts(keys):
        found.update(session.rows(_SQL.find_results, {"keys": some}))
    return found


def delete(session: Session, keys: Sequence[bytes]) -> None:
    for some in _parts(sorted(keys)):
        session.change(_SQL.delete_results, {"keys": some})


def count_late(session: Session, late_s: float, limit: int) -> int:
    """Return the number of values that expired at least ``late_s`` seconds ago and still exist, up to ``limit``."""
    return int(session.rows(_SQL.count_late, {"late_s": late_s, "limit": limit})[0][0])


def sweep(session: Session, limit: int) -> int:
    """Delete at most ``limit`` expired values; returns how many."""
    return session.change(_SQL.delete_expired, {"limit": limit})


def _parts(keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(keys), _KEYS_A_STATEMENT):
        yield list(keys[start : start + _KEYS_A_STATEMENT])
