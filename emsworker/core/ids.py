"""Identifiers: message uids (UUIDv7), fencing tokens of claims, client ids."""

from __future__ import annotations

import itertools
import os
import re
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator

from emsworker.core.errors import InvalidName
from emsworker.core.process import forks
from emsworker.core.url import DatabaseUrl

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,189}")
_RANDOM = re.compile(r"(?<=-)[0-9a-f]{32}(?=-|$)")
_THREAD = re.compile(r"-[0-9a-f]{32}-\d+$")
MAX_KEY_BYTES = 255
_VERSION_7 = 0x7 << 76 | 0x2 << 62  # and the variant
_COUNTED, _RANDOM_BITS = 1 << 32, 42


class _Randomness:
    """Random bytes of the system for many ids at once, and a counter; thread-safe, and a forked child has its own.

    A call of the system for each id would let other threads run, which costs a sender 50 us.
    """

    def __init__(self) -> None:
        self._start_over()
        forks.after_fork(self._start_over)

    def _start_over(self) -> None:
        self._left: Iterator[tuple[int]] = iter(())
        self._count = itertools.count(int.from_bytes(os.urandom(4), "big"))

    def next(self) -> int:
        """Return the next number of 32 bits of a counter that began at random."""
        return next(self._count) % _COUNTED

    def take(self) -> int:
        """Return 64 random bits that nobody else gets."""
        while (found := next(self._left, None)) is None:
            self._left = struct.iter_unpack("Q", os.urandom(2_048))
        return found[0]


_randomness = _Randomness()


def new_uid() -> bytes:
    """Return a new UUIDv7 (RFC 9562) as 16 bytes: milliseconds, a counter of 32 bits, and 42 random bits.

    It sorts by time, and by the counter within a millisecond, so that an index on it grows at its end and fills its
    pages: with ids that are random within a millisecond they are half empty.
    """
    count = _randomness.next()
    random = _randomness.take() & (1 << _RANDOM_BITS) - 1
    counted = count >> 20 << 64 | (count & (1 << 20) - 1) << _RANDOM_BITS
    return (int(time.time() * 1000) << 80 | _VERSION_7 | counted | random).to_bytes(16, "big")


def uid_text(uid: bytes) -> str:
    """Return a uid in the usual UUID notation."""
    h = uid.hex()  # takes a sixth of the time of uuid.UUID, for every message sent
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def parse_uid(text: str) -> bytes:
    """Parse a message id.

    Raises:
        InvalidName: not a UUID.
    """
    try:
        return uuid.UUID(text).bytes
    except (ValueError, AttributeError, TypeError):
        raise InvalidName(f"{text!r} is not a message id; it looks like 0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70") from None


def new_claim_id() -> int:
    """Return a new fencing token of 63 bits that no other owner of a claim ever had: 41 of milliseconds, 22 random."""
    random = _randomness.take() & (1 << 22) - 1
    return (int(time.time() * 1000) & (1 << 41) - 1) << 22 | random


CLIENT_NAME = 190  # characters of a worker's name, as its column holds
TASK_NAME = 190  # characters of a task's name


def check_name(what: str, name: str) -> str:
    """Return ``name`` if it may name a topic, group or task.

    The rules avoid differences between collations (case folding, trailing blanks, accents).

    Raises:
        InvalidName: the name breaks the rules.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{what} {name!r:.300} is not a valid name: use 1 to 190 of A-Z a-z 0-9 . _ : - "
            "and begin with a letter, digit or _"
        )
    return name


def encode_key(what: str, key: str | bytes | None) -> bytes | None:
    """Return a key or tag as it is stored: its bytes, compared byte by byte.

    Raises:
        InvalidName: neither text nor bytes, or too long.
    """
    if key is None:
        return None
    try:
        raw = key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        raise InvalidName(f"{what} {key!r} has no UTF-8 form; use valid text, or bytes") from None
    if not isinstance(raw, bytes):
        raise InvalidName(f"{what} {key!r} is of type {type(key).__name__}; use str or bytes")
    if len(raw) > MAX_KEY_BYTES:
        raise InvalidName(f"{what} of {len(raw)} bytes is too long; at most {MAX_KEY_BYTES} are kept")
    return raw


def decode_key(raw: bytes | None) -> str | bytes | None:
    """Return a stored key or tag as text if it is UTF-8, as everything that was sent as text is, else as bytes.

    Both forms, if sent again, are stored as the same bytes.
    """
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def local_ip(url: str | None) -> str:
    """Return the address by which this machine reaches the server of ``url``; nothing is sent."""
    host, port = ("127.0.0.1", 3306) if url is None else DatabaseUrl.parse(url).servers[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def new_client_id(ip: str) -> str:
    """Return a new client id of the calling thread: ``ip-pid-uuid-tid``."""
    return f"{ip}-{os.getpid()}-{uuid.uuid4().hex}-{threading.get_native_id()}"


def process_of(client_id: str) -> str:
    """Return the part of a client id that the threads of a process share: ``ip-pid``."""
    return _THREAD.sub("", client_id)


def short_client(client_id: str) -> str:
    """Return the id of a client or of a leader with its random part shortened to an ellipsis, for people."""
    return _RANDOM.sub("…", client_id)
