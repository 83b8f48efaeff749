"""The place to which the end of a call belongs: a flow of a stream, a step of it, and the call's number in the step."""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Any, NamedTuple

from emsworker.extending.values import ResultRow, storable, uid_text
from emsworker.flows.rows import CallEnd, StoredError

_PLACE = re.compile(r"flows:([0-9a-f]{1,32}):(\d{1,19})\.(\d{1,9})\.(\d{1,9})")

log = logging.getLogger(__name__)


class CallPlace(NamedTuple):
    """The place of a call.

    Attributes:
        stream: identity of the stream that keeps the flow; the call may be run on another one.
    """

    stream: str
    flow: int
    step: int
    number: int

    @property
    def word(self) -> str:
        """The word that a call carries in its header ``ems-follow``."""
        return f"flows:{self.stream}:{self.flow}.{self.step}.{self.number}"

    @property
    def uid(self) -> bytes:
        """The uid of the call, always the same: a UUIDv8 that sorts by flow, step and number.

        A topic may have calls of several streams whose flows have the same numbers: 48 bits tell these apart.
        """
        text = b"%s.%d.%d.%d" % (self.stream.encode(), self.flow, self.step, self.number)
        rest = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")
        stream = int.from_bytes(hashlib.blake2b(self.stream.encode(), digest_size=2).digest(), "big")
        flow = (self.flow ^ stream << 32) & (1 << 48) - 1
        value = flow << 80 | 8 << 76 | (self.step & 0xFFF) << 64 | 2 << 62 | self.number << 32 | rest
        return value.to_bytes(16, "big")

    @property
    def end_uid(self) -> bytes:
        """The uid of the message that tells another stream of the end of the call."""
        digest = int.from_bytes(hashlib.blake2b(self.uid, digest_size=16).digest(), "big")
        return (digest & ~(0xF << 76 | 3 << 62) | 8 << 76 | 2 << 62).to_bytes(16, "big")


def parse_place(word: Any) -> CallPlace | None:
    """Return the place that a word names; ``None`` if it is no such word."""
    found = _PLACE.fullmatch(word) if isinstance(word, str) else None
    if found is None:
        return None
    stream, *numbers = found.groups()
    return CallPlace(stream, *map(int, numbers))


def read_place(row: ResultRow) -> CallPlace | None:
    """Return the place of a call that has ended; ``None`` if its header is none that a flow has written.

    Anybody who may send can write such a header, and an error here would hold up the acks of others.
    """
    place = parse_place(row.follow)
    if place is not None and place.uid == row.uid:
        return place
    log.warning("message %s says that flow %.60r has called it, which has not", uid_text(row.uid), row.follow)
    return None


def end_of(row: ResultRow, number: int) -> CallEnd:
    """Return the end of a call."""
    failure = None if row.error_type is None else StoredError(row.error_type, storable(row.error or ""))
    return CallEnd(number, row.body, failure)
