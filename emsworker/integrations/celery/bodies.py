"""Bodies of kombu's messages and of Celery's results, measured before kombu decompresses or decodes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from emsworker.extending.errors import DecodeError, EmsError, MessageTooLarge
from emsworker.extending.values import Budget, check_encoding, is_accepted, unpack

_RAW = "application/data"  # what kombu takes a body without a content type for
# kombu has several names for one compression, and takes each of them from a message. One that it knows and that is not
# among them, such as brotli, cannot be unpacked within limits, and is refused.
_COMPRESSIONS = {
    "zlib": "application/x-gzip",
    "gzip": "application/x-gzip",
    "bzip2": "application/x-bz2",
    "bzip": "application/x-bz2",
    "lzma": "application/x-lzma",
    "xz": "application/x-lzma",
    "zstd": "application/zstd",
    "zstandard": "application/zstd",
}


def unpacked(
    body: bytes,
    compression: Any,
    content_type: str | None,
    encoding: str | None,
    budget: Budget,
    accept: Collection[str] | None = None,
) -> bytes:
    """Decompress a body within a budget, and count what a decoder would make of it.

    Args:
        compression, content_type, encoding: what the message says of its body.
        accept: the content types that its consumer takes, by kombu's or Celery's names; of others no objects are
            counted, because nobody decodes them. By default all.

    Raises:
        ContentRefused: the compression or the encoding is not known here.
        DecodeError: the body is damaged, or exceeds the budget.
    """
    content_type = content_type or _RAW
    if compression:
        if not isinstance(compression, str):
            raise DecodeError(f"its header compression is a {type(compression).__name__}, and not what kombu writes")
        body = unpack(body, _COMPRESSIONS.get(compression, compression), content_type, budget)
    if accept is None or is_accepted(content_type, accept):
        budget.check(body, content_type)
    check_encoding(encoding or "")  # some of Python's codecs decompress
    return body


def check_sent(body: bytes, compression: Any, content_type: str | None, budget: Budget) -> None:
    """Check a body that is about to be sent: what is refused here would become a dead letter.

    Raises:
        MessageTooLarge: it exceeds the budget, or its compression is not known here.
    """
    if not compression:
        budget.check_sent(body, content_type or _RAW, is_compressed=False)
        return
    try:
        unpacked(body, compression, content_type, None, budget)
    except EmsError as error:
        raise MessageTooLarge(f"{error}; nothing was sent") from None


class Total:
    """Sum of several bodies that are built together.

    Args:
        budget: their limits together.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget, self._bytes, self._objects = budget, 0, 0

    def add(self, raw: bytes, content_type: str) -> None:
        """Add an unpacked body, before it is built.

        Raises:
            DecodeError: together they exceed the budget.
        """
        self._bytes += len(raw)
        self._budget.check_bytes(self._bytes)
        self._objects += self._budget.count(raw, content_type)
        self._budget.check_objects(self._objects)
