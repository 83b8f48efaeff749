"""Large bodies: what travels in a message whose body is kept beside it.

A body of more than :data:`LARGE_BYTES` is stored in chunks in ``ems_body_chunk``. The message holds a reference, JSON
that begins with its mark and with the size as eight hexadecimal digits: the server reads them there, so that claims and
lists count the whole body. The headers that say how to decode the body stand in the reference, and the message's own
name the content type :data:`LARGE_TYPE`, which nothing decodes by mistake.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from emsworker.core.codec import (
    COMPRESSION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    LARGE_MARK,
    LARGE_TYPE,
    decode_headers,
    encode_headers,
)
from emsworker.core.errors import DecodeError
from emsworker.core.ids import new_uid
from emsworker.core.model import NewMessage

LARGE_BYTES = 4 << 20
"""The largest body that is kept in its message."""
RESULT_BYTES = 1 << 20
"""The largest result that is kept in its row."""
CHUNK_BYTES = 256 << 10  # twice as much in a statement, which every server takes
_RESULT_MARK, _SIZE_BYTES = b"\0", 4
_CODING = (CONTENT_TYPE, CONTENT_ENCODING, COMPRESSION)


@dataclass(frozen=True, slots=True)
class LargeBody:
    """A reference to a body that is kept beside its message.

    Attributes:
        body_id: of its chunks.
        size: its bytes.
        coding: the headers that say how to decode it.
    """

    body_id: bytes
    size: int
    coding: Mapping[str, str]

    def encode(self) -> bytes:
        """Return the body of the message; statements read the size and the id at their places."""
        coding = json.dumps(dict(self.coding), separators=(",", ":")).encode()
        beginning = b'%s%08x","id":"%s"' % (LARGE_MARK, self.size, self.body_id.hex().encode())
        return b'%s,"bytes":%d,"headers":%s}' % (beginning, self.size, coding)

    @classmethod
    def decode(cls, raw: bytes) -> LargeBody:
        """Read the body of a message.

        Raises:
            DecodeError: it is no reference.
        """
        try:
            found = json.loads(raw)
            coding, body_id = found["headers"], bytes.fromhex(found["id"])
            if len(body_id) != 16 or not all(isinstance(value, str) for value in coding.values()):
                raise ValueError
            return cls(body_id, int(found["ems-large"], 16), {name: coding[name] for name in _CODING if name in coding})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise DecodeError(f"the reference to a large body is damaged: {raw[:100]!r}") from None

    def restore(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of its message as they would be if the body were there."""
        return {name: value for name, value in headers.items() if name != CONTENT_TYPE} | dict(self.coding)


@dataclass(slots=True)
class LargeMessage(NewMessage):
    """Message whose body is kept beside it.

    Attributes:
        body_id: of the chunks.
        whole: the body; ``body`` is the reference to it.
    """

    body_id: bytes = b""
    whole: bytes = b""

    def chunks(self) -> Iterator[bytes]:
        """Yield the body in parts."""
        return chunks_of(self.whole)


def chunks_of(whole: bytes) -> Iterator[bytes]:
    """Yield a body in parts."""
    for first in range(0, len(whole), CHUNK_BYTES):
        yield whole[first : first + CHUNK_BYTES]


def put_beside(message: NewMessage) -> LargeMessage:
    """Return a message with its body beside it."""
    headers = decode_headers(message.headers)
    large = LargeBody(new_uid(), len(message.body), {name: headers[name] for name in _CODING if name in headers})
    kept = {name: value for name, value in headers.items() if name not in _CODING} | {CONTENT_TYPE: LARGE_TYPE}
    values = {field.name: getattr(message, field.name) for field in fields(NewMessage)}
    values |= {"headers": encode_headers(kept), "body": large.encode()}
    return LargeMessage(**values, body_id=large.body_id, whole=message.body)


def reference_of(message: NewMessage) -> LargeBody | None:
    """Return the reference that a stored message holds, or ``None`` if its body is in it.

    Raises:
        DecodeError: the headers or the reference are damaged.
    """
    if not message.body.startswith(LARGE_MARK) or decode_headers(message.headers).get(CONTENT_TYPE) != LARGE_TYPE:
        return None
    return LargeBody.decode(message.body)


def carry(message: NewMessage, large: LargeBody, whole: bytes) -> LargeMessage:
    """Return a stored message with its large body, to be written down elsewhere as it is."""
    values = {field.name: getattr(message, field.name) for field in fields(NewMessage)}
    return LargeMessage(**values, body_id=large.body_id, whole=whole)


def result_reference(body_id: bytes, size: int) -> bytes:
    """Return what stands in the row of a result that is kept beside it: JSON begins with no such byte."""
    return _RESULT_MARK + body_id + size.to_bytes(_SIZE_BYTES)


def result_beside(body: bytes | None) -> LargeBody | None:
    """Return what the row of a result refers to, or ``None`` if the result is in the row."""
    if body is None or not body.startswith(_RESULT_MARK):
        return None
    return LargeBody(body[1:17], int.from_bytes(body[17:]), {})
