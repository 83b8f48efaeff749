"""The place to which the end of a call belongs: a flow, a step of it, and the call's number in the step."""

from __future__ import annotations

import hashlib
import logging
import re

from emsworker.extending.values import ResultRow, storable, uid_text
from emsworker.flows.rows import CallEnd, StoredError

_PLACE = re.compile(r"flows:(\d{1,19})\.(\d{1,9})\.(\d{1,9})")

log = logging.getLogger(__name__)


def place_word(flow: int, step: int, number: int) -> str:
    """Return the word that a call carries in its header ``ems-follow``."""
    return f"flows:{flow}.{step}.{number}"


def read_place(row: ResultRow) -> tuple[int, int, int] | None:
    """Return the place of a call that has ended; ``None`` if its header is none that a flow has written.

    Anybody who may send can write such a header, and an error here would hold up the acks of others.
    """
    found = _PLACE.fullmatch(row.follow or "")
    if found is not None:
        flow, step, number = map(int, found.groups())
        if call_uid(flow, step, number) == row.uid:
            return flow, step, number
    log.warning("message %s says that flow %.60r has called it, which has not", uid_text(row.uid), row.follow)
    return None


def end_of(row: ResultRow, number: int) -> CallEnd:
    """Return the end of a call."""
    failure = None if row.error_type is None else StoredError(row.error_type, storable(row.error or ""))
    return CallEnd(number, row.body, failure)


def call_uid(flow: int, step: int, number: int) -> bytes:
    """Return the uid of a call of a flow, always the same: a UUIDv8 that sorts by flow, step and number."""
    rest = int.from_bytes(hashlib.blake2b(b"%d.%d.%d" % (flow, step, number), digest_size=4).digest(), "big")
    value = (flow & (1 << 48) - 1) << 80 | 8 << 76 | (step & 0xFFF) << 64 | 2 << 62 | number << 32 | rest
    return value.to_bytes(16, "big")
