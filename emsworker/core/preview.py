"""Headers and bodies as they are shown to people: decoded within a small budget, and otherwise as text.

A worker decodes a message once, within the budget of its settings. Lists and pages decode whatever anybody looks at, as
often as they look, and beside others who look; so they decode less, and nothing whose decoding can be made slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any

from emsworker.core.budget import JSON_TYPE, YAML_TYPE, Budget, count_marks
from emsworker.core.codec import (
    COMPRESSION,
    CONTENT_TYPE,
    LARGE_TYPE,
    MAX_HEADERS_BYTES,
    Decoder,
    decode_headers,
    unpack,
    unpacked_beginning,
)
from emsworker.core.errors import ContentRefused, DecodeError, EmsError
from emsworker.core.process.clock import ticks

TEXT_BYTES = 64 << 10
"""Bytes of a body that are shown as text."""
LIST_BYTES = 4 << 20
"""Stored bytes of the bodies of a list after which it ends, and goes on with its next page."""

_LIMIT = "the limit of what is shown"
_EACH = Budget(1 << 20, 100_000, (_LIMIT, _LIMIT))
# Objects were measured at 32 to 85 bytes of memory, so that all bodies of a list take 85 MB at most.
_TOGETHER = Budget(16 << 20, 1_000_000)
_SHOWN_HEADERS_BYTES = 64 << 10  # lists hold many of them, up to a thousand while they search
_MAX_DEPTH = 400  # Python's encoders and templates recurse; the interpreter ends them at about 1000
_NOT_DECODED = {YAML_TYPE: "YAML", "application/x-python-serialize": "pickle"}
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Preview:
    """Headers and body of a message as they may be shown.

    Attributes:
        headers: empty if they are damaged or too long.
        body: the decoded body, ``None`` if it is not decoded.
        problem: why the headers or the body are not decoded; ``None`` if they are.
        text: the beginning of the unpacked body as text, if it is not decoded.
    """

    headers: Mapping[str, str]
    body: Any = None
    problem: str | None = None
    text: str | None = None


class PreviewDecoder:
    """Decodes what one page or list shows, within a budget for each body and one for all together.

    YAML and pickle are never decoded: parsing YAML takes long even where it builds little.

    Attributes:
        header_bytes, body_bytes: how much to read of each: one more than is decoded, so that more is seen to be more.
    """

    header_bytes, body_bytes = _SHOWN_HEADERS_BYTES + 1, _EACH.max_bytes + 1

    def __init__(self) -> None:
        self._decoder = Decoder(("json", "msgpack"), _EACH)
        self._bytes = self._objects = 0

    def alone(self) -> PreviewDecoder:
        """Return a viewer with a budget of its own, for a body that is judged and then forgotten."""
        return PreviewDecoder()

    def headers(self, raw: bytes) -> Mapping[str, str]:
        """Parse headers.

        Raises:
            DecodeError: they are damaged, or too long to be shown.
        """
        if len(raw) > _SHOWN_HEADERS_BYTES:
            raise DecodeError(f"the headers have more than {_SHOWN_HEADERS_BYTES} bytes, and are not shown")
        return decode_headers(raw)

    def preview(self, raw_headers: bytes, raw: bytes | None) -> Preview:
        """Return a message as it may be shown; whatever it holds, nothing is raised.

        Args:
            raw: the stored body, or its first :attr:`body_bytes`; ``None`` if only the headers are wanted.
        """
        try:
            headers = self.headers(raw_headers)
        except EmsError as error:
            return Preview(_NONE, None, str(error), None if raw is None else _text(raw, _NONE))
        return Preview(headers) if raw is None else self.preview_of(headers, raw)

    def preview_of(self, headers: Mapping[str, str], raw: bytes) -> Preview:
        """Return a message whose headers are decoded as it may be shown; see :meth:`preview`."""
        try:
            return Preview(headers, self._decode(raw, headers))
        except EmsError as error:
            return Preview(headers, None, str(error), _text(raw, headers))

    def _decode(self, raw: bytes, headers: Mapping[str, str]) -> Any:
        content_type = headers.get(CONTENT_TYPE, JSON_TYPE)
        if content_type == LARGE_TYPE:  # the reference is shown, not the body
            content_type, headers = JSON_TYPE, {}
        if (name := _NOT_DECODED.get(content_type)) is not None:
            raise ContentRefused(f"a body of {name} is not decoded to be shown")
        if len(raw) >= self.body_bytes:
            raise DecodeError(f"the body has more than {_EACH.max_bytes} bytes ({_LIMIT})")
        if COMPRESSION in headers:
            self._decoder.check(content_type)
            raw = unpack(raw, headers[COMPRESSION], content_type, _EACH)
            headers = {name: value for name, value in headers.items() if name != COMPRESSION}
        self._spend(raw, content_type)
        body = self._decoder.decode(raw, headers)
        return body if isinstance(body, str | bytes) else _printable(body)

    def _spend(self, raw: bytes, content_type: str) -> None:
        objects = count_marks(raw) if content_type == JSON_TYPE else min(len(raw), _EACH.max_objects)
        size, count = self._bytes + len(raw), self._objects + min(objects, _EACH.max_objects)
        if size > _TOGETHER.max_bytes or count > _TOGETHER.max_objects:
            raise DecodeError("this list has reached the limit of what is shown; look at this body alone")
        self._bytes, self._objects = size, count


class FullDecoder:
    """Decodes as a worker does, with YAML: for a selection that changes something, such as a replay.

    Args:
        until: by :func:`ticks`, when to give up.
    """

    header_bytes, body_bytes = MAX_HEADERS_BYTES + 1, (1 << 32) - 1

    def __init__(self, until: float = inf) -> None:
        self._decoder, self._until = Decoder(("json", "msgpack", "yaml")), until

    def alone(self) -> FullDecoder:
        """Return itself: it has no budget for all together."""
        return self

    def preview(self, raw_headers: bytes, raw: bytes | None) -> Preview:
        """Decode all of a message.

        Raises:
            TimeoutError: it is too late.
        """
        if ticks() >= self._until:
            raise TimeoutError("looking at the bodies takes too long")
        headers: Mapping[str, str] = _NONE
        try:
            headers = decode_headers(raw_headers)
            return Preview(headers, None if raw is None else self._decoder.decode(raw, headers))
        except EmsError as error:
            return Preview(headers, None, str(error))


def _text(raw: bytes, headers: Mapping[str, str]) -> str:
    if COMPRESSION in headers:
        raw = unpacked_beginning(raw, headers[COMPRESSION], TEXT_BYTES) or raw
    return raw[:TEXT_BYTES].decode(errors="backslashreplace")


def _printable(body: Any, depth: int = 0) -> Any:
    """Return a body that every encoder of JSON takes: MessagePack has keys of bytes.

    Raises:
        DecodeError: it is nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise DecodeError(f"the body is nested more than {_MAX_DEPTH} deep, {_LIMIT}")
    if isinstance(body, list):
        return [_printable(part, depth + 1) if isinstance(part, list | dict) else part for part in body]
    if isinstance(body, dict):
        return {
            key.decode(errors="backslashreplace") if isinstance(key, bytes) else key: (
                _printable(part, depth + 1) if isinstance(part, list | dict) else part
            )
            for key, part in body.items()
        }
    return body
