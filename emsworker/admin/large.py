"""Large bodies as administration reads them: whole, if that is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from emsworker.core.codec import CONTENT_TYPE, LARGE_TYPE
from emsworker.core.large import LargeBody
from emsworker.store.engine.database import Database
from emsworker.store.stream import large


def whole_body(database: Database, headers: Mapping[str, str], raw: bytes) -> bytes:
    """Return the encoded body of a message, also if it is kept beside it.

    Raises:
        DecodeError: it is not there.
    """
    if headers.get(CONTENT_TYPE) != LARGE_TYPE:
        return raw
    reference = LargeBody.decode(raw)
    return database.call(lambda session: large.read(session, reference))
